"""Reads what variables are in another session of the same job, whose state is in other containers.

A server copies what it has itself: nothing travels, and what a step of the other session may still
write there is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from caramel.core.facts import Variable
from caramel.core.names import EVALUATION, TensorRef, added, in_copy, in_replica, replica_prefix
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter

_WHAT = "inherited"


def take_op(variable: Variable) -> str:
    """Gives a variable on a server the value that it has in the other session."""
    return added(0, _WHAT, "take", variable.name)


def value_there(worker: int, variable: Variable) -> TensorRef:
    """What a variable of a worker is in the other session."""
    return TensorRef(added(worker, _WHAT, "value", variable.name))


def read_other(
    plan: Plan,
    handles: Mapping[str, Any],
    on_servers: str,
    on_workers: str,
    devices: Mapping[int, str],
) -> Any:
    """A GraphDef of `take_op` and `value_there`, which a session adds to its graph.

    Args:
        plan: says which variables there are.
        handles: by name the nodes that put out the variables' handles.
        on_servers, on_workers: the other session's containers.
        devices: where its workers' variables are to be read, by their numbers in it.
    """
    graph_def = tf.compat.v1.GraphDef()
    writer = GraphWriter(graph_def)
    for variable in plan.job.variables:
        if variable.name in plan.job.served:
            _write_take(writer, variable, handles[in_copy(EVALUATION, variable.handle)], on_servers)
            continue
        for worker, device in devices.items():
            name = added(worker, _WHAT, "handle", variable.name)
            handle = _handle(writer, name, handles[in_replica(0, variable.handle)], on_workers)
            shared = writer.last.attr["shared_name"].s.decode()
            own = shared.removeprefix(in_copy(replica_prefix(0), ""))
            writer.last.attr["shared_name"].s = in_replica(worker, own).encode()
            writer.last.device = device
            _read(writer, value_there(worker, variable).op, variable, handle)
    return graph_def


def _write_take(writer: GraphWriter, variable: Variable, original: Any, container: str) -> None:
    there = _handle(writer, added(0, _WHAT, "there", variable.name), original, container)
    value = _read(writer, added(0, _WHAT, "value", variable.name), variable, there)
    # A part of the graph names no ops of others.
    here = _handle(writer, added(0, _WHAT, "here", variable.name), original, None)
    writer.add(
        take_op(variable),
        "AssignVariableOp",
        [here, value],
        device=original.device,
        dtype=variable.spec.dtype,
    )


def _handle(writer: GraphWriter, name: str, original: Any, container: str | None) -> TensorRef:
    """The handle of the variable of an original, in another container if one is given."""
    handle = writer.add(name, "VarHandleOp", device=original.device)
    writer.last.CopyFrom(original)
    writer.last.name = name
    writer.last.attr.pop("_class", None)
    if container is not None:
        writer.last.attr["container"].s = container.encode()
    return handle


def _read(writer: GraphWriter, name: str, variable: Variable, handle: TensorRef) -> TensorRef:
    device = writer.last.device
    return writer.add(name, "ReadVariableOp", [handle], device=device, dtype=variable.spec.dtype)
