"""Copies of variables, which are taken before a step that may be given up, and put back after it.

What copies variables is as far from training as reading a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import Copy, TensorRef, copied, in_copy, in_variant
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, static_shape
from caramel.modifiers.serving.servers import prefix_of
from caramel.modifiers.step_tokens import host_of


def differs(variable: Variable, plan: Plan) -> bool:
    """Whether workers may have different values of a variable."""
    job = plan.job
    return any(variable.name in names for names in (job.local, job.drawing, job.summed))


def copies(plan: Plan) -> Iterator[tuple[int, Variable]]:
    """What is copied: variables, each with the worker whose it is."""
    for variable in plan.job.variables:
        # What is equal on all workers is copied on its source, from where it is broadcast; what
        # differs between them, on each.
        for worker in range(plan.workers if differs(variable, plan) else 1):
            yield worker, variable


def original_of(plan: Plan, worker: int, variable: Variable) -> str:
    """The op that puts out the handle of what is copied."""
    return in_copy(prefix_of(plan, variable.name, worker), variable.handle)


def ops_of(plan: Plan, what: Copy) -> list[str]:
    """All ops that take the copies, put them back, or let go of them."""
    return [copied(worker, variable.name, what) for worker, variable in copies(plan)]


def remember(plan: Plan, handles: Mapping[str, Any], variant: int) -> Any:
    """A GraphDef of what takes copies, puts them back, and lets go of them.

    It is a part of the graph of its own, which a session adds when it needs it.

    Args:
        plan: says which variables there are.
        handles: by name the nodes that put out the handles of the replicas' variables.
        variant: the number of the variant to which the nodes will belong.
    """
    graph_def = tf.compat.v1.GraphDef()
    for worker, variable in copies(plan):
        original = handles[original_of(plan, worker, variable)]
        _Copy(GraphWriter(graph_def), worker, variable, original.device).write(original, variant)
    return graph_def


class _Copy:
    """The nodes for one variable of a worker."""

    def __init__(self, writer: GraphWriter, worker: int, variable: Variable, device: str) -> None:
        self._writer, self._worker, self._variable = writer, worker, variable
        self._device, self._host = device, host_of(device)

    def write(self, original: Any, variant: int) -> None:
        """Add them.

        Args:
            original: the node that puts out the variable's handle.
            variant: the number of the variant to which they will belong.
        """
        name, spec = self._name("copy"), self._variable.spec
        shared, handle = in_variant(variant, name), TensorRef(self._name("original"))
        self._writer.add(handle.op, "VarHandleOp", device=self._device)
        self._writer.last.CopyFrom(original)
        self._writer.last.name = handle.op
        self._writer.last.attr.pop("_class", None)
        copy = self._writer.add(
            name,
            "VarHandleOp",
            device=self._host,
            outputs=[TensorSpec("resource", ())],
            dtype=spec.dtype,
            shape=static_shape(spec),
        )
        self._writer.last.attr["shared_name"].s = shared.encode()
        self._writer.last.attr["container"].s = original.attr["container"].s
        # Nothing is copied that is not written meanwhile: a copy shares its variable's buffer until
        # then.
        self._assign("take", copy, self._host, self._read("taken_value", handle, self._device))
        back = self._read("value_put_back", copy, self._host)
        self._assign("put_back", handle, self._device, back)
        self._writer.add(
            self._name("drop"),
            "DestroyResourceOp",
            [copy],
            device=self._host,
            ignore_lookup_error=True,
        )

    def _read(self, what: Copy, handle: TensorRef, device: str) -> TensorRef:
        spec = self._variable.spec
        return self._writer.add(
            self._name(what),
            "ReadVariableOp",
            [handle],
            device=device,
            outputs=[spec],
            dtype=spec.dtype,
        )

    def _assign(self, what: Copy, handle: TensorRef, device: str, value: TensorRef) -> None:
        dtype = self._variable.spec.dtype
        self._writer.add(
            self._name(what), "AssignVariableOp", [handle, value], device=device, dtype=dtype
        )

    def _name(self, what: Copy) -> str:
        return copied(self._worker, self._variable.name, what)
