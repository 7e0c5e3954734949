"""Which tensor waits for which, so that devices send them in the planned order?

TensorFlow sends what is there, all at once. In the simulation a device sends to another one tensor
at a time, in the order in which they get ready. A gate lets a tensor wait until one some megabytes
earlier has arrived (`planning.gates`).

**No gate closes a cycle** with the edges of the graph and those of `order`. Give each op the moment
at which it begins in the simulation, what sends a tensor the moment at which its transfer begins,
and what receives it that at which the transfer ends. Along an edge of any kind moments never get
less: an op begins when all that it waits for has ended or arrived; a tensor is sent when its op has
ended; and by a gate a transfer begins not before an earlier one between the same devices has ended,
as they go one after the other. Between sending and receiving a tensor that is gated, moments do get
larger, as its transfer takes time. To what receives it there is no edge but from what sends it. So
no cycle leads through what receives, from which all gates come; and without gates there is none.

What the simulated step does not have is looked at besides: edges of another step of the job, and
ops that TensorFlow may compute as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from caramel.analyzers.fusions import waits_for_itself
from caramel.core.consequences import Sending
from caramel.core.decision import Edge
from caramel.core.facts import Fusions
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef, sent
from caramel.core.placement import SendGate
from caramel.planning.gates import gates_of
from caramel.planning.placement.from_graph import PlacedGraph
from caramel.planning.placement.place import Placed
from caramel.planning.placement.step_ops import StepOps

LEAST_BYTES = 64 * 1024
"""What is smaller is there before a gate would open, and nothing waits for it."""


def planned_gates(
    layout: PlacedGraph,
    placed: Placed,
    graph: OpGraph,
    ops: StepOps,
    sendings: Collection[Sending],
    edges: Sequence[Edge],
    fusions: Fusions,
    *,
    in_flight_bytes: int,
    least_bytes: int = LEAST_BYTES,
) -> tuple[SendGate, ...]:
    """The gates of a step.

    Args:
        layout: the problem, and the ops of its vertices.
        placed: the placement, and its simulated step, with one transfer at a time between two
            devices.
        graph: the single-device graph.
        ops: those whose tensors may wait, and be waited for.
        sendings: what the step sends.
        edges: that `order` adds.
        fusions: ops that TensorFlow may compute as one.
        in_flight_bytes: of what may be on its way from one device to another at a time; with 0
            there is exactly one order.
        least_bytes: of what is gated, at least 1.

    Returns:
        Nothing if an op would wait for itself: in another step, or as one with others.
    """
    may_be = {
        (each.tensor, each.target)
        for each in sendings
        if each.tensor.op in ops.steady and ops.beside.isdisjoint(graph.consumers[each.tensor.op])
    }
    of_pair: dict[tuple[int, int], list[tuple[TensorRef, float]]] = {}
    for number, target, _, _ in sorted(placed.schedule.transfers, key=lambda each: each[2]):
        tensor = layout.problem.tensors[number]
        if number < len(layout.tensors) and tensor.bytes >= least_bytes:
            name = layout.tensors[number]
            if (name, target) in may_be:
                pair = placed.placement[tensor.source], target
                of_pair.setdefault(pair, []).append((name, tensor.bytes))
    found: list[SendGate] = []
    for (_, target), own in of_pair.items():
        by_name = {str(tensor): tensor for tensor, _ in own}
        sizes = [(str(tensor), round(size)) for tensor, size in own]
        found += [
            SendGate(by_name[gate.group], by_name[gate.after], target)
            for gate in gates_of(sizes, in_flight_bytes=in_flight_bytes)
        ]
    sends, more = _with_sends(graph, layout.numbers_of(placed.placement), found)
    return () if waits_for_itself(sends, fusions, [*edges, *more]) else tuple(found)


def _with_sends(
    graph: OpGraph, number_of: Mapping[str, int], gates: Sequence[SendGate]
) -> tuple[OpGraph, list[Edge]]:
    """The graph with an op for each tensor that waits or is waited for on its way, and edges from
    there to those that wait for it."""
    ops, edges = dict(graph.ops), list[Edge]()
    for tensor, device in {(t, g.device): None for g in gates for t in (g.after, g.tensor)}:
        name = sent(tensor.op, tensor.index, device)
        ops[name] = Op(name, "NoOp", "", (), (tensor.op,))
        edges += [
            Edge(name, reader)
            for reader in graph.consumers[tensor.op]
            if tensor in graph[reader].inputs and number_of.get(reader) == device
        ]
    for gate in gates:
        names = [sent(t.op, t.index, gate.device) for t in (gate.after, gate.tensor)]
        edges.append(Edge(*names))
    return replace(graph, ops=ops), edges
