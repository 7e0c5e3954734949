"""Tokens by which ops of a step wait for moved ops of the step before, across two calls.

The moved part puts a token when its ops are done (`defer` writes that), the step takes it before
its own ops run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caramel.core.devices import Device
from caramel.core.dtypes import dtype_number
from caramel.core.graph import TensorSpec
from caramel.core.names import (
    ALL_KEPT,
    TensorRef,
    added,
    arrived,
    token_count,
    token_filled,
    token_put,
    token_taken,
    tokens,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of

_TOKEN = TensorSpec("bool", ())


def add_tokens(graph_def: Any, plan: Plan) -> Any:
    """Add the queues, and what fills, takes and counts their tokens."""
    if not plan.consequences.deferral.moved:
        return graph_def
    extended = copy_of(graph_def)
    writer = GraphWriter(extended)
    for worker, device in enumerate(plan.job.devices):
        host = host_of(device)
        writer.constant(_token(worker).op, np.array(True), device=host)
        for variable in token_variables(plan):
            _add_queue(writer, worker, variable, host)
    return extended


def token_variables(plan: Plan) -> list[str]:
    """The names that tokens stand for.

    Each variable that both parts touch, everything that is kept, and each deferred group that
    transfers of the step wait for. For each a worker has a queue with at most one token.
    """
    if not plan.consequences.deferral.moved:
        return []
    groups = dict.fromkeys(arrived(gate.after) for gate in plan.gates_between_steps)
    return [
        ALL_KEPT,
        *(barrier.variable for barrier in plan.consequences.deferral.barriers),
        *groups,
    ]


def host_of(device: str) -> str:
    """The CPU of a device's task, where queues are."""
    parsed = Device.parse(device)
    return str(Device(parsed.job, parsed.task, "CPU", 0))


def add_put(writer: GraphWriter, worker: int, variable: str, host: str, after: list[str]) -> None:
    """Put a variable's token when ops have run."""
    _add_enqueue(writer, token_put(worker, variable), worker, variable, host, after)


def _token(worker: int) -> TensorRef:
    return TensorRef(added(worker, "token"))


def _add_queue(writer: GraphWriter, worker: int, variable: str, host: str) -> None:
    name = tokens(worker, variable)
    queue = writer.add(
        name, "FIFOQueueV2", device=host, outputs=[TensorSpec("resource", ())], capacity=-1
    )
    attributes = writer.last.attr
    attributes["component_types"].list.type.append(dtype_number(_TOKEN.dtype))
    attributes["shapes"].list.shape.add()
    attributes["shared_name"].s = name.encode()
    _add_enqueue(writer, token_filled(worker, variable), worker, variable, host, [])
    taken = token_taken(worker, variable)
    writer.add(taken, "QueueDequeueV2", [queue], device=host, outputs=[_TOKEN])
    writer.last.attr["component_types"].list.type.append(dtype_number(_TOKEN.dtype))
    count = token_count(worker, variable).op
    writer.add(count, "QueueSizeV2", [queue], device=host, outputs=[TensorSpec("int32", ())])


def _add_enqueue(
    writer: GraphWriter, name: str, worker: int, variable: str, host: str, after: list[str]
) -> None:
    queue = TensorRef(tokens(worker, variable))
    writer.add(name, "QueueEnqueueV2", [queue, _token(worker)], device=host, controls=after)
    writer.last.attr["Tcomponents"].list.type.append(dtype_number(_TOKEN.dtype))
