"""The invariants of a distributed graph, in one place."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import tensorflow as tf

from caramel.analyzers.fusions import find_cycle, matches
from caramel.core.devices import task_of
from caramel.core.dtypes import dtype_name
from caramel.core.errors import InvariantError
from caramel.core.graph import Op, OpGraph
from caramel.core.graph_reader import may_call, read_graph
from caramel.core.names import colocated_op, worker_of
from caramel.core.plan import Plan


def check_graph(graph_def: Any, plan: Plan) -> None:
    """Raise unless the graph keeps what Caramel promises of every distributed graph.

    1. No two nodes have the same name.
    2. Every input, control input and colocation group names a node of the graph.
    3. There is no cycle but those of loops, also where ops that TensorFlow may compute as one
       (`analyzers.fusions`) are taken for one.
    4. Every node is placed on a task, and it is that of the worker it belongs to.
    5. No edge crosses the border of a loop's frame but through ``Enter`` and ``Exit``.
    6. Loops of different workers have frames of different names.
    7. Colocated nodes are on one task.
    8. Functions of the library exist where they are called, and their nodes name no task: they run
       where their caller is.

    Raises:
        InvariantError: names the node and what is wrong with it.
    """
    _check_names(graph_def)
    functions = {function.signature.name for function in graph_def.library.function}
    graph = read_graph(graph_def, {}, calls=lambda kind: kind not in functions and _may_call(kind))
    order = graph.topological_order()  # which needs every source
    _check_fusions(graph_def, graph)
    _check_devices(graph, plan)
    _check_frames(graph, order, _frame_names(graph_def))
    _check_colocation(graph_def, graph)
    _check_functions(graph_def, graph)


@functools.cache
def _may_call(kind: str) -> bool:
    """Whether ops of a kind may call functions; of kinds that TensorFlow does not know, too."""
    try:
        return may_call(tf.Graph().op_def_for_type(kind))
    except (RuntimeError, tf.errors.OpError):
        return True


def _check_names(graph_def: Any) -> None:
    repeated = [n for n, c in Counter(node.name for node in graph_def.node).items() if c > 1]
    if repeated:
        raise InvariantError(f"several nodes are called '{repeated[0]}'")


def _check_fusions(graph_def: Any, graph: OpGraph) -> None:
    @functools.cache
    def nodes() -> dict[str, Any]:
        return {node.name: node for node in graph_def.node}

    def dtype_of(op: Op) -> str:
        # Without definitions of ops, the graph knows no dtypes of outputs.
        node = nodes()[op.name]
        return dtype_name(node.attr["T"].type if "T" in node.attr else 0)

    found = matches(graph, graph.ops, dtype_of)
    cycle = find_cycle(graph, found)
    if cycle is not None:
        raise InvariantError(
            "the graph has a cycle where TensorFlow, with oneDNN, computes some of its ops as one: "
            + " -> ".join(cycle)
        )


def _check_devices(graph: OpGraph, plan: Plan) -> None:
    tasks = {place: task_of(device) for place, device in plan.job.places.items()}
    # What belongs to worker 0 may be spread.
    placed = () if plan.placement is None else plan.placement.devices
    spread = {task_of(device) for device in (*plan.job.servers, *placed)}
    for op in graph:
        task = task_of(op.device) if op.device else None
        if task is None:
            raise InvariantError(f"'{op.name}' ({op.kind}) has no task: device '{op.device}'")
        owner = worker_of(op.name)
        if owner is None or owner not in tasks:
            raise InvariantError(f"'{op.name}' is on {task} but belongs to no worker")
        # The evaluation copy, and what handles its variables, is spread over worker 0 and servers;
        # a placed replica over all devices.
        if task != tasks[owner] and not (owner == 0 and task in spread):
            belongs = f"worker {owner} ({tasks[owner]})"
            raise InvariantError(f"'{op.name}' is on {task} but belongs to {belongs}")


# Loops ------------------------------------------------------------------------------------------


def _frame_names(graph_def: Any) -> dict[str, str]:
    """The frame that each ``Enter`` leads into, as TensorFlow knows it."""
    return {
        node.name: node.attr["frame_name"].s.decode()
        for node in graph_def.node
        if node.op == "Enter"
    }


def _check_frames(graph: OpGraph, order: tuple[str, ...], frame_names: dict[str, str]) -> None:
    """Follow the frames from op to op; all that an op waits for must be in one frame."""
    owners: dict[str, int | None] = {}
    for name, frame in frame_names.items():
        owner = owners.setdefault(frame, worker_of(name))
        if owner != worker_of(name):
            raise InvariantError(f"'{name}' enters the loop '{frame}' of worker {owner}")
    behind: dict[str, tuple[str, ...]] = {}  # the frames around what reads an op
    for name in order:
        op = graph[name]
        around = _frame_of(op, behind)
        if op.kind == "Enter":
            around = (*around, frame_names[name])
        elif op.kind == "Exit":
            around = around[:-1]
        behind[name] = around


def _frame_of(op: Op, behind: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The frame an op is in; sources that come later in the order close a loop."""
    first: str | None = None
    for source in op.sources:
        if source not in behind:
            continue
        if first is None:
            first = source
        if behind[source] != behind[first]:
            raise InvariantError(
                f"'{op.name}' waits for '{first}', which is {_in_frame(behind[first])}, and for "
                f"'{source}', which is {_in_frame(behind[source])}"
            )
    return behind[first] if first is not None else ()


def _in_frame(frames: tuple[str, ...]) -> str:
    return f"in the loop '{frames[-1]}'" if frames else "in no loop"


# Colocation and functions -----------------------------------------------------------------------


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


def _check_functions(graph_def: Any, graph: OpGraph) -> None:
    calls = [(op.name, op.functions) for op in graph]
    for function in graph.functions.values():
        calls += [(f"{function.name}/{op.name}", op.functions) for op in function.body]
    for name, called in calls:
        missing = [function for function in called if function not in graph.functions]
        if missing:
            raise InvariantError(f"'{name}' calls the function '{missing[0]}', which is missing")
    for function in graph_def.library.function:
        for node in function.node_def:
            if node.device and task_of(node.device) is not None:
                raise InvariantError(
                    f"'{node.name}' in the function '{function.signature.name}', which all "
                    f"workers share, is on {node.device}"
                )
