"""The control edges by which devices execute ops in the planned order.

TensorFlow executes what gets executable first. An edge from each op of a device to the next one
lets them run one after the other, as they do in the simulation. Which ops are ordered: those of at
least 50 microseconds, since an edge costs time, too; that run in every step and nowhere else
(`step_ops`); and that loss and gradients are computed from. Updates stay outside: schedulers would
let them run last, as nothing waits for them, and all gradients would have to be kept until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from caramel.analyzers.fusions import waits_for_itself
from caramel.core.decision import Edge
from caramel.core.facts import Fusions
from caramel.core.graph import OpGraph
from caramel.planning.placement.from_graph import PlacedGraph
from caramel.planning.placement.place import Placed
from caramel.planning.placement.step_ops import StepOps

LEAST_S = 50e-6
"""Ops that take less are not ordered."""


def planned_edges(
    layout: PlacedGraph,
    placed: Placed,
    graph: OpGraph,
    ops: StepOps,
    computed: Iterable[str],
    fusions: Fusions,
) -> tuple[Edge, ...]:
    """An edge from each ordered op to the next one of its device, unless it waits for that anyway.

    They close no cycle with the edges of the simulated step: in the schedule each op begins behind
    all that it waits for by either. Other steps of the job may have more edges, as those by which
    they read and write variables in order.

    Args:
        layout: the problem, and the ops of its vertices.
        placed: the placement, and its simulated step.
        graph: the single-device graph.
        ops: which may be ordered.
        computed: the ops that put out loss and gradients.
        fusions: ops that TensorFlow may compute as one. None of them waits for more than it does,
            since that would keep them apart.

    Returns:
        Nothing if an op would wait for itself: in another step, or as one with others.
    """
    may_be = graph.ancestors(computed) & ops.steady - ops.beside
    fused = {name for group in fusions.groups for name in group}
    vertices, devices = layout.problem.vertices, layout.problem.devices
    ordered: dict[str, int] = {}  # in order, each with its device
    for vertex in placed.schedule.order:
        name, device = layout.ops[vertex][0], placed.placement[vertex]
        if name in may_be and vertices[vertex].operations >= LEAST_S * devices[device].speed:
            ordered[name] = device
    waits = _waits(graph, ordered)
    last: dict[int, str] = {}
    edges: list[Edge] = []
    for name, device in ordered.items():
        before = last.get(device)
        if before is not None and name not in fused and before not in waits[name]:
            edges.append(Edge(before, name))
        last[device] = name
    return () if waits_for_itself(graph, fusions, edges) else tuple(edges)


def _waits(graph: OpGraph, ops: Collection[str]) -> Mapping[str, frozenset[str]]:
    """Of some ops those that each op waits for, directly or by ops that are none of them."""
    found: dict[str, frozenset[str]] = {}
    for name in graph.topological_order():
        own: set[str] = set()
        for source in graph[name].sources:
            own |= {source} if source in ops else found.get(source, frozenset())
        found[name] = frozenset(own)
    return found
