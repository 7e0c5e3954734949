"""Holds updates back until every worker has read its inputs.

Which updates these are is in the plan (`planning.held_updates`).
"""

from __future__ import annotations

from typing import Any

from caramel.core.names import (
    ONCE,
    all_inputs_read,
    control_string,
    in_copy,
    in_replica,
    inputs_read,
    server_at,
    server_place,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of


def await_inputs(graph_def: Any, plan: Plan) -> Any:
    """Add control edges from the reads of all workers to the held updates."""
    if not plan.consequences.held:
        return graph_def
    awaited = copy_of(graph_def)
    nodes = {node.name: node for node in awaited.node}
    writer = GraphWriter(awaited)
    for worker, device in enumerate(plan.job.devices):
        controls = [in_replica(worker, read) for read in plan.consequences.input_reads]
        writer.add(inputs_read(worker), "NoOp", device=device, controls=controls)
    once = plan.consequences.serving.done_once
    for place, device in plan.job.places.items():
        # Over these edges nothing but the fact travels.
        controls = [inputs_read(source) for source in range(plan.workers)]
        writer.add(all_inputs_read(place), "NoOp", device=device, controls=controls)
        for update in plan.consequences.held:
            if server_at(place) is None and update not in once:
                _wait(nodes[in_replica(place, update)], place)
    for each in plan.consequences.serving.places:
        if each.op in once and each.op in plan.consequences.held:
            _wait(nodes[in_copy(ONCE, each.op)], server_place(each.server))
    return awaited


def _wait(node: Any, place: int) -> None:
    """Let an update wait at its place."""
    node.input.append(control_string(all_inputs_read(place)))
