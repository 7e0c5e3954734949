"""The traffic audit: what crosses between tasks, from the graph's edges and from the plan.

A tensor that several ops of one task read is sent there once, as TensorFlow does it. Sizes that
are known only at run time (rows of sparse gradients, factors of batches of any size) are counted as
transfers of open size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from caramel.devices import task_of
from caramel.errors import TrafficError
from caramel.graph import OpGraph, dtype_bytes
from caramel.names import (
    TensorRef,
    all_inputs_read,
    control_string,
    inputs_read,
    is_added,
    worker_of,
)
from caramel.patterns import Gather, Reduce, chunk_sizes, schedule
from caramel.plan import ALL_GATHER, FACTORS, Group, Plan

_SHARE_BYTES = 8
_ROW_COUNT_BYTES = 4
_FLAG_BYTES = 1


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
    """A tensor that is sent from one task to another.

    `tensor` is None for a control edge, over which nothing but the fact that `source` has run
    travels.
    """

    source: str
    tensor: TensorRef | None
    consumer: str
    pair: tuple[str, str]
    bytes: int | None

    def __str__(self) -> str:
        what = control_string(self.source) if self.tensor is None else str(self.tensor)
        return f"'{what}' -> '{self.consumer}' ({self.bytes} bytes)"


def planned_traffic(plan: Plan) -> Traffic:
    """What one step sends between each pair of tasks, as the plan has it."""
    traffic = Traffic()
    if plan.workers == 1:
        return traffic
    tasks = [task_of(device) or device for device in plan.devices]
    sent: set[tuple[Hashable, str]] = set()
    for value, source, target, size in _planned_transfers(plan):
        if tasks[source] != tasks[target] and (value, tasks[target]) not in sent:
            sent.add((value, tasks[target]))
            traffic.add((tasks[source], tasks[target]), size)
    return traffic


# What is sent, from which worker, to which, and its size in bytes.
_Transfer = tuple[Hashable, int, int, int | None]


def _planned_transfers(plan: Plan) -> Iterator[_Transfer]:
    """Every transfer between workers; equal values are sent to a task only once."""
    workers = range(plan.workers)
    for group in plan.groups:
        yield from _group_transfers(plan, group)
    yield from _share_transfers(plan)
    if plan.examples is not None and plan.reduction == "mean":
        yield from (
            (("examples", source), source, target, _SHARE_BYTES)
            for source in workers
            for target in workers
        )


def _share_transfers(plan: Plan) -> Iterator[_Transfer]:
    """How much each worker's factors count, and whether that is not 1."""
    factored = [plan.gradient(group.members[0]).spec for group in plan.factored]
    if plan.reduction != "mean" or not factored:
        return
    workers = range(plan.workers)
    sizes = {spec.dtype: dtype_bytes(spec.dtype) for spec in factored}
    for source, target in product(workers, workers):
        yield ("uneven", source), source, target, _FLAG_BYTES
        for dtype, size in sizes.items():
            yield ("share", dtype, source), source, target, size


def _group_transfers(plan: Plan, group: Group) -> Iterator[_Transfer]:
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        for part, source, target in product(
            ("values", "indices"), range(plan.workers), range(plan.workers)
        ):
            yield (group.name, part, source), source, target, None
        return
    if group.pattern == FACTORS and first.factors is not None:
        for number, spec in enumerate(first.factors.specs):
            for source, target in product(range(plan.workers), range(plan.workers)):
                yield (group.name, number, source), source, target, spec.bytes
        return
    size = dtype_bytes(first.spec.dtype) or 1
    yield from _pattern_transfers(plan, group, "values", plan.elements(group), size)
    if first.indices is not None:
        rows = (first.spec.shape or (0,))[0] or 0
        yield from _pattern_transfers(plan, group, "rows", rows, _ROW_COUNT_BYTES)


def _pattern_transfers(
    plan: Plan, group: Group, part: str, elements: int, element_bytes: int
) -> Iterator[_Transfer]:
    steps = schedule(group.pattern, plan.workers, depth=group.depth, shift=group.shift)
    sizes = chunk_sizes(
        elements, steps.chunks, element_bytes, smallest_bytes=group.smallest_chunk_bytes
    )
    version: Counter[tuple[int, int]] = Counter()  # of each worker's value of each chunk
    for step in steps.steps:
        if isinstance(step, Reduce):
            version[step.worker, step.chunk] += 1
            continue
        if sizes[step.chunk]:
            key = (step.source, step.chunk)
            value = (group.name, part, *key, version[key])
            yield value, step.source, step.target, sizes[step.chunk] * element_bytes
        if isinstance(step, Gather):
            version[step.target, step.chunk] += 1


def crossings(graph: OpGraph, ops: Iterable[str] | None = None) -> list[Crossing]:
    """The tensors that cross between tasks on the way to the given ops (default: all)."""
    return _crossings(graph, _crossing_edges(graph, graph.ops if ops is None else ops))


# What crosses (a tensor, or the op at the begin of a control edge), to which op, from and to where.
_Edge = tuple[TensorRef | str, str, tuple[str, str]]


def _crossing_edges(graph: OpGraph, ops: Iterable[str]) -> Iterator[_Edge]:
    """The edges to the given ops that lead from one task to another."""
    tasks = {device: task_of(device) or device for device in {op.device for op in graph}}
    on = {op.name: tasks[op.device] for op in graph}
    for name in ops:
        op, target = graph[name], on[name]
        for tensor in op.inputs:
            if on[tensor.op] != target:
                yield tensor, name, (on[tensor.op], target)
        for source in op.control_inputs:
            if on[source] != target:
                yield source, name, (on[source], target)


def _crossings(graph: OpGraph, edges: Iterable[_Edge]) -> list[Crossing]:
    """What crosses over some edges: a tensor is sent to a task once, for all that read it there."""
    found: dict[tuple[TensorRef | str, str], Crossing] = {}
    for what, consumer, pair in edges:
        if not isinstance(what, TensorRef):
            found.setdefault((what, consumer), Crossing(what, None, consumer, pair, 0))
        elif (what, pair[1]) not in found:
            size = graph.spec(what).bytes
            found[what, pair[1]] = Crossing(what.op, what, consumer, pair, size)
    return list(found.values())


def _is_planned(crossing: Crossing) -> bool:
    """Whether an edge is of a kind that may cross at all."""
    source, consumer = crossing.source, crossing.consumer
    if crossing.tensor is not None:
        return is_added(source) and is_added(consumer)
    sender, receiver = worker_of(source), worker_of(consumer)
    if sender is None or receiver is None:
        return False
    return source == inputs_read(sender) and consumer == all_inputs_read(receiver)


def audit(graph: OpGraph, plan: Plan, step: Iterable[str]) -> Traffic:
    """Compare what crosses in the graph with the plan; returns the traffic of one step.

    Args:
        step: the ops that a training step runs.

    Raises:
        TrafficError: an edge crosses that is not part of an aggregation, or the bytes between a
            pair of tasks are not what the plan says; names the edges.
    """
    edges = list(_crossing_edges(graph, graph.ops))
    for crossing in _crossings(graph, edges):
        if not _is_planned(crossing):
            raise TrafficError(
                f"{crossing} crosses from {crossing.pair[0]} to {crossing.pair[1]}; the plan has "
                "no such transfer"
            )
    of_step = graph.ancestors(step)
    crossing_in_step = _crossings(graph, [edge for edge in edges if edge[1] in of_step])
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
    edges.sort(key=lambda crossing: (-(crossing.bytes or 0), crossing.source, crossing.consumer))
    listed = "; ".join(str(crossing) for crossing in edges[:10])
    return (
        f"{got.get(pair, 0)} {what} cross from {pair[0]} to {pair[1]}, the plan says "
        f"{wanted.get(pair, 0)}; the edges are: {listed or 'none'}"
        + (f"; and {len(edges) - 10} more" if len(edges) > 10 else "")
    )
