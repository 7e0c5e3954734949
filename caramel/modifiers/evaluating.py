"""Copies of a part of the evaluation graph, one on each worker, so that all of them evaluate.

Worker 0 evaluates on the source of the variables (`variable_ops.source_prefix`). Another worker
gets a copy of what is needed of that, which reads the variables and tables of its own replica. Of
local variables it has copies of its own: they get what the evaluation copy has, which is what
those of all workers are together. Variables on parameter servers are read there.

Where what each worker has for itself is wanted, all have copies, which read the local variables of
their own replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from caramel.core import op_types
from caramel.core.devices import merge, task_of, without_task
from caramel.core.facts import Variable
from caramel.core.names import (
    TensorRef,
    evaluating,
    in_copy,
    replica_prefix,
    source_op,
    with_prefix,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter
from caramel.modifiers.replicate import offset_seed
from caramel.modifiers.variable_ops import source_prefix

_SHARED, _FRAME, _CLASS = "shared_name", "frame_name", "_class"


def op_evaluated(plan: Plan, worker: int, number: int, op: str, *, apart: bool) -> str:
    """Where an op of the user's graph is evaluated on a worker.

    Args:
        number: of the copies.
        apart: whether they read what each worker has for itself.
    """
    original = in_copy(source_prefix(plan), op)
    return in_copy(evaluating(worker, number), original) if worker or apart else original


def copy_for_evaluation(
    nodes: Mapping[str, Any], plan: Plan, ops: Iterable[str], number: int, *, apart: bool
) -> tuple[Any, list[str]]:
    """A GraphDef of copies on workers, and what gives local variables there their values.

    The first worker needs one only where they read what each has for itself.

    Args:
        nodes: of the distributed graph, by name.
        plan: says which workers and variables there are.
        ops: what is to be evaluated: ops of the user's graph.
        number: of these copies, which no others of a session have.
        apart: whether they read what each worker has for itself.
    """
    copied, source = tf.compat.v1.GraphDef(), source_prefix(plan)
    needed = _needed(nodes, [in_copy(source, op) for op in ops])
    handles = {in_copy(source, v.handle): v for v in plan.job.variables if v.name in plan.job.local}
    local = {n: variable for n, variable in handles.items() if n in needed and not apart}
    writer, refreshed = GraphWriter(copied), []
    values = {name: _source_value(writer, nodes[name], v, number) for name, v in local.items()}
    for worker in range(0 if apart else 1, plan.workers):
        prefix = evaluating(worker, number)
        for name in needed:
            _copy(copied.node.add(), nodes[name], plan, worker, prefix, is_own=name in local)
        for name, variable in local.items():
            refreshed.append(in_copy(prefix, f"refresh/{variable.name}"))
            writer.add(
                refreshed[-1],
                "AssignVariableOp",
                [TensorRef(in_copy(prefix, name)), values[name]],
                device=_moved(nodes[name].device, plan, worker),
                dtype=variable.spec.dtype,
            )
    return copied, refreshed


def _needed(nodes: Mapping[str, Any], roots: Iterable[str]) -> list[str]:
    """Some nodes, and all that they wait for."""
    found: dict[str, None] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting.extend(source_op(text) for text in nodes[name].input)
    return list(found)


def _source_value(writer: GraphWriter, handle: Any, variable: Variable, number: int) -> TensorRef:
    """What the evaluation copy has of a local variable."""
    # A part of a graph names no ops of others.
    name = in_copy(evaluating(0, number), variable.handle)
    own = writer.add(name, handle.op, device=handle.device)
    writer.last.CopyFrom(handle)
    writer.last.name = name
    writer.last.attr.pop(_CLASS, None)
    spec = variable.spec
    return writer.add(
        in_copy(evaluating(0, number), f"value/{variable.name}"),
        "ReadVariableOp",
        [own],
        device=handle.device,
        outputs=[spec],
        dtype=spec.dtype,
    )


def _copy(
    target: Any,
    node: Any,
    plan: Plan,
    worker: int,
    prefix: str,
    *,
    is_own: bool,
) -> None:
    """Fill `target` with a node as it stands in a worker's copy.

    Args:
        is_own: whether it puts out the handle of a variable that the copy has for itself.
    """
    target.CopyFrom(node)
    target.name = in_copy(prefix, node.name)
    target.device = _moved(node.device, plan, worker)
    target.attr.pop(_CLASS, None)  # it has its device
    del target.input[:]
    target.input.extend(with_prefix(prefix, text) for text in node.input)
    # What is on a server is that of all workers.
    if _SHARED in node.attr and task_of(target.device) == task_of(plan.job.devices[worker]):
        shared = node.attr[_SHARED].s.decode()
        own = in_copy(evaluating(worker), shared) if is_own else _of_replica(shared, plan, worker)
        target.attr[_SHARED].s = own.encode()
    if _FRAME in node.attr:  # TensorFlow takes loops of equal name for one loop
        target.attr[_FRAME].s = in_copy(prefix, node.attr[_FRAME].s.decode()).encode()
    if node.op in op_types.SEEDED_RANDOM:
        offset_seed(target, worker)


def _moved(device: str, plan: Plan, worker: int) -> str:
    """Where on a worker is what is on worker 0; what is on a parameter server stays there."""
    first, own = plan.job.devices[0], plan.job.devices[worker]
    if device == first:
        return own
    return merge(without_task(device), own) if task_of(device) == task_of(first) else device


def _of_replica(shared: str, plan: Plan, worker: int) -> str:
    """What something is called in a worker's replica that is shared with worker 0's."""
    for prefix in (source_prefix(plan), replica_prefix(0)):
        start = in_copy(prefix, "")
        if shared.startswith(start):
            return in_copy(replica_prefix(worker), shared.removeprefix(start))
    return shared
