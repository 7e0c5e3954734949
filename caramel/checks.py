"""The invariants of a distributed graph, in one place."""

from __future__ import annotations

from collections import Counter
from typing import Any

from caramel.analyzers.frames import loop_frames
from caramel.devices import task_of
from caramel.errors import InvariantError
from caramel.graph import OpGraph
from caramel.names import colocated_op, worker_of
from caramel.plan import Plan

_OPENS_OR_CLOSES_FRAMES = frozenset({"Enter", "Exit", "NextIteration"})


def check_graph(graph_def: Any, plan: Plan) -> None:
    """Raise unless the graph keeps what Caramel promises of every distributed graph.

    1. No two nodes have the same name.
    2. Every input, control input and colocation group names a node of the graph.
    3. There is no cycle but those of loops.
    4. Every node is placed on a task, and it is that of the worker it belongs to.
    5. No control edge crosses the border of a loop's frame.
    6. Colocated nodes are on one task.

    Raises:
        InvariantError: names the node and what is wrong with it.
    """
    _check_names(graph_def)
    graph = OpGraph.from_graph_def(graph_def, {})
    for op in graph:
        for source in op.sources:
            if source not in graph:
                raise InvariantError(f"'{op.name}' reads '{source}', which does not exist")
    graph.topological_order()
    _check_devices(graph, plan)
    _check_frames(graph)
    _check_colocation(graph_def, graph)


def _check_names(graph_def: Any) -> None:
    repeated = [n for n, c in Counter(node.name for node in graph_def.node).items() if c > 1]
    if repeated:
        raise InvariantError(f"several nodes are called '{repeated[0]}'")


def _check_devices(graph: OpGraph, plan: Plan) -> None:
    tasks = [task_of(device) for device in plan.devices]
    for op in graph:
        task = task_of(op.device) if op.device else None
        if task is None:
            raise InvariantError(f"'{op.name}' ({op.kind}) has no task: device '{op.device}'")
        owner = worker_of(op.name)
        if owner is None or task != tasks[owner]:
            belongs = "no worker" if owner is None else f"worker {owner} ({tasks[owner]})"
            raise InvariantError(f"'{op.name}' is on {task} but belongs to {belongs}")


def _check_frames(graph: OpGraph) -> None:
    """Ops inside a loop wait by control for ops inside only; ops outside for ops outside only."""
    frame = loop_frames(graph).frame
    for op in graph:
        for source in op.control_inputs:
            if graph[source].kind in _OPENS_OR_CLOSES_FRAMES or op.kind == "Exit":
                continue
            if bool(frame[op.name]) != bool(frame[source]) and not frame[op.name]:
                raise InvariantError(
                    f"'{op.name}' waits for '{source}', which is inside the loop of "
                    f"'{frame[source]}'"
                )


def _check_colocation(graph_def: Any, graph: OpGraph) -> None:
    for node in graph_def.node:
        if "_class" not in node.attr:
            continue
        for group in node.attr["_class"].list.s:
            op = colocated_op(group.decode())
            if op is None:
                continue
            if op not in graph:
                raise InvariantError(f"'{node.name}' is colocated with '{op}', which is missing")
            if task_of(graph[op].device) != task_of(node.device):
                raise InvariantError(
                    f"'{node.name}' on {node.device} is colocated with '{op}' on {graph[op].device}"
                )
