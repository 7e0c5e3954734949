"""Adds the plan's control edges to every replica. Caramel paper, section 4.1, stage 2."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from caramel.core.errors import PlanError
from caramel.core.names import (
    ONCE,
    control_string,
    in_copy,
    in_replica,
    is_done_once,
    is_in_replica,
    source_op,
    without_prefix,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import copy_of


def serialize(graph_def: Any, plan: Plan) -> Any:
    """Let the `after` of every edge wait for its `before`, on each worker for its own.

    What is done once, with parameter servers, is ordered where it is done.

    Raises:
        PlanError: an edge names an op that a replica does not have, or the edges close a cycle.
    """
    # Also those that order what a step reads and writes of variables. The evaluation copy goes
    # without.
    edges = [*plan.consequences.orders, *plan.decision.edges]
    if not edges:
        return graph_def
    serialized = copy_of(graph_def)
    nodes = {node.name: node for node in serialized.node}
    absent = frozenset(plan.consequences.serving.absent)
    once = plan.consequences.serving.done_once
    for edge in plan.consequences.orders:
        if {edge.before, edge.after} <= once:
            _wait(nodes[in_copy(ONCE, edge.after)], in_copy(ONCE, edge.before))
    for worker in range(plan.workers):
        for edge in edges:
            if not absent.isdisjoint((edge.before, edge.after)):
                continue
            before, after = in_replica(worker, edge.before), in_replica(worker, edge.after)
            for name in (before, after):
                if name not in nodes:
                    raise PlanError(
                        f"an edge of the plan, '{edge.before}' -> '{edge.after}', names "
                        f"'{without_prefix(name)}', which worker {worker} does not have"
                    )
            _wait(nodes[after], before)
    # Replicas are alike.
    _check_acyclic([node for name, node in nodes.items() if is_in_replica(0, name)])
    if once:
        _check_acyclic([node for name, node in nodes.items() if is_done_once(name)])
    return serialized


def _wait(node: Any, before: str) -> None:
    if control_string(before) not in node.input:
        node.input.append(control_string(before))


def _check_acyclic(nodes: Sequence[Any]) -> None:
    """Raise if nodes wait for each other, but for what closes a loop."""
    kinds = {node.name: node.op for node in nodes}
    waits: TopologicalSorter[str] = TopologicalSorter()
    for node in nodes:
        sources = map(source_op, node.input)
        waits.add(node.name, *(each for each in sources if kinds.get(each) != "NextIteration"))
    try:
        waits.prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise PlanError(
            f"the edges of the plan do not fit the graph: the graph has a cycle: {cycle}"
        ) from None
