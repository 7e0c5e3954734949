"""The control edges by which devices execute ops in the planned order.

TensorFlow executes what gets executable first. An edge from each op of a device to the next one
lets them run one after the other, as they do in the simulation. Which ops are ordered: those of at
least 50 microseconds, since an edge costs time, too; that only the step runs, since an edge onto
what an initializer reads would let it run the step; and that loss and gradients are computed from.
Updates stay outside: schedulers would let them run last, as nothing waits for them, and all
gradients would have to be kept until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.fusions import find_cycle
from caramel.core.decision import Edge
from caramel.core.facts import Fusions
from caramel.core.graph import OpGraph
from caramel.planning.placement.from_graph import PlacedGraph
from caramel.planning.placement.place import Placed

LEAST_S = 50e-6
"""Ops that take less are not ordered."""

_CONTROL_FLOW = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"})


def planned_edges(
    layout: PlacedGraph, placed: Placed, graph: OpGraph, computed: Iterable[str], fusions: Fusions
) -> tuple[Edge, ...]:
    """An edge from each ordered op to the next one of its device, unless it waits for that anyway.

    Args:
        layout: the problem, and the ops of its vertices.
        placed: the placement, and its simulated step.
        graph: the single-device graph.
        computed: the ops that put out loss and gradients.
        fusions: ops that TensorFlow may compute as one. None of them waits for more than it does,
            since that would keep them apart.

    Returns:
        Nothing if ops that are computed as one would wait for themselves.
    """
    may_be = _may_be_ordered(layout, graph, computed)
    fused = {name for group in fusions.groups for name in group}
    vertices, devices = layout.problem.vertices, layout.problem.devices
    last: dict[int, str] = {}
    edges: list[Edge] = []
    waits = _waits(graph, may_be)
    for vertex in placed.schedule.order:
        name, device = layout.ops[vertex][0], placed.placement[vertex]
        seconds = vertices[vertex].operations / devices[device].speed
        if name not in may_be or seconds < LEAST_S:
            continue
        before = last.get(device)
        if before is not None and name not in fused and before not in waits.get(name, ()):
            edges.append(Edge(before, name))
        last[device] = name
    found = tuple(edges)
    return found if find_cycle(graph, fusions, found) is None else ()


def _may_be_ordered(layout: PlacedGraph, graph: OpGraph, computed: Iterable[str]) -> frozenset[str]:
    step = {name for names in layout.ops for name in names}
    shared = graph.ancestors(name for name in graph.ops if name not in step)
    around = predicates_around(graph)
    alone = {names[0] for names in layout.ops if len(names) == 1}
    return frozenset(
        name
        for name in graph.ancestors(computed)
        if name in alone
        and name not in shared
        and not around[name]
        and graph[name].kind not in _CONTROL_FLOW
    )


def _waits(graph: OpGraph, ops: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """The ops that each op waits for, directly or by ops that are not among `ops`."""
    found: dict[str, frozenset[str]] = {}
    nearest: dict[str, frozenset[str]] = {}
    for name in graph.topological_order():
        own: set[str] = set()
        for source in graph[name].sources:
            own |= {source} if source in ops else nearest.get(source, frozenset())
        nearest[name] = found[name] = frozenset(own)
    return found
