"""The traffic audit: what crosses between tasks, from the graph's edges and from the plan.

A tensor that several ops of one device read is sent there once, as TensorFlow does it. Sizes that
are known only at run time (rows of sparse gradients) are counted as transfers of open size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from caramel.devices import task_of
from caramel.errors import TrafficError
from caramel.graph import OpGraph, dtype_bytes
from caramel.names import TensorRef, is_added
from caramel.patterns import chunk_sizes, schedule
from caramel.plan import ALL_GATHER, Group, Plan

_SHARE_BYTES = 8
_ROW_COUNT_BYTES = 4


@dataclass
class Traffic:
    """Bytes, and transfers of open size, between pairs of tasks (source, target)."""

    bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    open_transfers: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, pair: tuple[str, str], size: int | None) -> None:
        """Count one transfer; `size` in bytes, None if open."""
        if size is None:
            self.open_transfers[pair] = self.open_transfers.get(pair, 0) + 1
        else:
            self.bytes[pair] = self.bytes.get(pair, 0) + size


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that is sent from one task to a device of another."""

    tensor: TensorRef
    consumer: str
    pair: tuple[str, str]
    bytes: int | None


def planned_traffic(plan: Plan) -> Traffic:
    """What one step sends between each pair of tasks, as the plan has it."""
    traffic = Traffic()
    tasks = [task_of(device) or device for device in plan.devices]

    def add(source: int, target: int, size: int | None) -> None:
        if tasks[source] != tasks[target]:
            traffic.add((tasks[source], tasks[target]), size)

    workers = range(plan.workers) if plan.workers > 1 else range(0)
    for group in plan.groups if plan.workers > 1 else ():
        for (source, target), size in _group_traffic(plan, group):
            add(source, target, size)
    if plan.examples is not None and plan.reduction == "mean":
        for source in workers:
            for target in workers:
                add(source, target, _SHARE_BYTES)
    return traffic


def _group_traffic(plan: Plan, group: Group) -> Iterable[tuple[tuple[int, int], int | None]]:
    """Transfers of one group's aggregation, summed up where their size is known."""
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        workers = range(plan.workers)
        pairs = [(a, b) for a in workers for b in workers if a != b]
        return [(pair, None) for pair in pairs for _ in ("values", "indices")]
    size = dtype_bytes(first.spec.dtype) or 1
    sent = list(_pattern_traffic(plan, group, plan.elements(group), size))
    if first.indices is not None:
        rows = (first.spec.shape or (0,))[0] or 0
        sent += _pattern_traffic(plan, group, rows, _ROW_COUNT_BYTES)
    return sent


def _pattern_traffic(
    plan: Plan, group: Group, elements: int, element_bytes: int
) -> Iterable[tuple[tuple[int, int], int]]:
    steps = schedule(group.pattern, plan.workers, depth=group.depth, shift=group.shift)
    sizes = chunk_sizes(elements, steps.chunks, element_bytes)
    for pair, count in steps.sent_elements(sizes).items():
        yield pair, count * element_bytes


def crossings(graph: OpGraph, ops: Iterable[str] | None = None) -> list[Crossing]:
    """The tensors that cross between tasks on the way to the given ops (default: all)."""
    tasks: dict[str, str] = {}
    found: dict[tuple[TensorRef, str], Crossing] = {}

    def task(device: str) -> str:
        if device not in tasks:
            tasks[device] = task_of(device) or device
        return tasks[device]

    for name in graph.ops if ops is None else ops:
        op = graph[name]
        target = task(op.device)
        for tensor in (*op.inputs, *(TensorRef(source, -1) for source in op.control_inputs)):
            source = task(graph[tensor.op].device)
            if source != target and (tensor, op.device) not in found:
                size = graph.spec(tensor).bytes if tensor.index >= 0 else 0
                found[tensor, op.device] = Crossing(tensor, name, (source, target), size)
    return list(found.values())


def audit(graph: OpGraph, plan: Plan, step: Iterable[str]) -> Traffic:
    """Compare what crosses in the graph with the plan; returns the traffic of one step.

    Args:
        step: the ops that a training step runs.

    Raises:
        TrafficError: an edge crosses that is not part of an aggregation, or the bytes between a
            pair of tasks are not what the plan says; names the edges.
    """
    for crossing in crossings(graph):
        if not (is_added(crossing.tensor.op) and is_added(crossing.consumer)):
            raise TrafficError(
                f"'{crossing.tensor}' crosses from {crossing.pair[0]} to {crossing.pair[1]}, where "
                f"'{crossing.consumer}' reads it; the plan has no such transfer"
            )
    crossing_in_step = crossings(graph, sorted(graph.ancestors(step)))
    found, planned = Traffic(), planned_traffic(plan)
    for crossing in crossing_in_step:
        found.add(crossing.pair, crossing.bytes)
    for what, got, wanted in (
        ("bytes", found.bytes, planned.bytes),
        ("transfers of open size", found.open_transfers, planned.open_transfers),
    ):
        for pair in sorted(set(got) | set(wanted)):
            if got.get(pair, 0) != wanted.get(pair, 0):
                raise TrafficError(_mismatch(what, pair, got, wanted, crossing_in_step))
    return found


def _mismatch(
    what: str,
    pair: tuple[str, str],
    got: Mapping[tuple[str, str], int],
    wanted: Mapping[tuple[str, str], int],
    crossings: list[Crossing],
) -> str:
    edges = [c for c in crossings if c.pair == pair]
    edges.sort(key=lambda crossing: (-(crossing.bytes or 0), crossing.tensor))
    listed = "; ".join(f"'{c.tensor}' -> '{c.consumer}' ({c.bytes} bytes)" for c in edges[:10])
    return (
        f"{got.get(pair, 0)} {what} cross from {pair[0]} to {pair[1]}, the plan says "
        f"{wanted.get(pair, 0)}; the edges are: {listed or 'none'}"
        + (f"; and {len(edges) - 10} more" if len(edges) > 10 else "")
    )
