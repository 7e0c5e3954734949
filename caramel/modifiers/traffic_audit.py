"""The traffic audit: what crosses between tasks, from the graph's edges and from the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from caramel.core.consequences import Sending
from caramel.core.decision import ALL_GATHER, FACTORS, Group
from caramel.core.devices import task_of
from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import TrafficError
from caramel.core.facts import SUM
from caramel.core.names import (
    SentName,
    TensorRef,
    all_inputs_read,
    inputs_read,
    is_added,
    is_done_once,
    is_gated,
    is_in_evaluation,
    is_pulled,
    pull_of,
    pushed_of,
    sent_of,
    server_place,
    worker_of,
)
from caramel.core.patterns import Gather, Reduce, chunk_sizes
from caramel.core.placement import Placement
from caramel.core.plan import Plan
from caramel.modifiers.crossings import Crossing, Wiring

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


def planned_traffic(plan: Plan) -> Traffic:
    """What one step sends between each pair of tasks, as the plan has it."""
    traffic = Traffic()
    if plan.placement is not None:
        return _sendings(plan.placement, plan.consequences.sendings)
    if not plan.is_distributed:
        return traffic
    tasks = {place: task_of(device) or device for place, device in plan.job.places.items()}
    sent: set[tuple[Hashable, str]] = set()
    for value, source, target, size in _planned_transfers(plan):
        # A tensor that several ops of one task read is sent there once, as TensorFlow does it.
        if tasks[source] != tasks[target] and (value, tasks[target]) not in sent:
            sent.add((value, tasks[target]))
            traffic.add((tasks[source], tasks[target]), size)
    return traffic


def _sendings(placement: Placement, sendings: Iterable[Sending]) -> Traffic:
    """What goes between the devices of one replica."""
    traffic, sent = Traffic(), set[tuple[TensorRef, str]]()
    tasks = [task_of(device) or device for device in placement.devices]
    for each in sendings:
        source, target = tasks[each.source], tasks[each.target]
        if source != target and (each.tensor, target) not in sent:
            sent.add((each.tensor, target))
            traffic.add((source, target), each.bytes)
    return traffic


# What is sent, from which place, to which, and its size in bytes.
_Transfer = tuple[Hashable, int, int, int | None]


def _planned_transfers(plan: Plan) -> Iterator[_Transfer]:
    """Every transfer between places; equal values are sent to a task only once."""
    workers = range(plan.workers)
    for group in plan.decision.groups:
        yield from _group_transfers(plan, group)
    yield from _pulls(plan)
    yield from _share_transfers(plan)
    told: list[tuple[str, ...]] = (
        [("examples",)] if plan.job.examples is not None and plan.counts_examples else []
    )
    for weight in plan.used_weights:
        leaves = {tensor for each in weight.divisors for tensor in (*each.sums, *each.means)}
        told += [(weight.name, str(tensor)) for tensor in sorted(leaves)]
    for weight in plan.balanced_weights:
        for source, target in product(workers, workers):
            yield ("share", weight.name, "float64", source), source, target, _SHARE_BYTES
    for value in told:
        for source, target in product(workers, workers):
            yield (value, source), source, target, _SHARE_BYTES


def _pulls(plan: Plan) -> Iterator[_Transfer]:
    """What workers read of variables that are on servers."""
    server_of, written = plan.decision.server_of, plan.consequences.serving.writers_of
    for name, pull in plan.decision.pull_of.items():
        if pull.ahead and name not in written:  # it is there for good
            continue
        size, source = plan.job.variable_of[name].spec.bytes, server_place(server_of[name])
        for worker in range(plan.workers):
            yield ("pull", name, worker), source, worker, size
    for remote in plan.consequences.serving.remote:
        source = server_place(server_of[remote.variable])
        for worker in range(plan.workers if remote.is_of_step else 0):
            yield ("asked", remote.op, worker), worker, source, None
            yield ("answer", remote.op, worker), source, worker, None


def _share_transfers(plan: Plan) -> Iterator[_Transfer]:
    """How much each worker's factors count, and whether that is not 1."""
    workers = range(plan.workers)
    dtypes: dict[str, set[str]] = {}  # of the shares by each weight
    for group in plan.factored:
        gradient = plan.gradient(group.members[0])
        weight = plan.weight(gradient)
        if weight != SUM:
            dtypes.setdefault(weight.name, set()).add(gradient.spec.dtype)
    for name, own in dtypes.items():
        for source, target in product(workers, workers):
            yield ("uneven", name, source), source, target, _FLAG_BYTES
            for dtype in sorted(own):
                yield ("share", name, dtype, source), source, target, dtype_bytes(dtype)


def _group_transfers(plan: Plan, group: Group) -> Iterator[_Transfer]:
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        # How many rows there are is known only at run time.
        for part, source, target in product(
            ("values", "indices"), range(plan.workers), plan.aggregated_at(group)
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
    steps = plan.schedule(group)
    sizes = chunk_sizes(
        elements, steps.chunks, element_bytes, smallest_bytes=group.smallest_chunk_bytes
    )
    # A chunk is another value after each addition, and is sent once more.
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


def _is_planned(crossing: Crossing) -> bool:
    """Whether an edge is of a kind that may cross at all."""
    source, consumer = crossing.source, crossing.consumer
    if _is_within_once(crossing):
        return True
    if crossing.tensor is not None:
        return is_added(source) and is_added(consumer)
    # Of control edges, only those that hold updates or transfers back may cross, and those of a
    # replica that is spread.
    leaving, arriving = sent_of(source), sent_of(consumer)
    if leaving is not None and arriving is not None:
        return _crosses_for(leaving, arriving)
    sender, receiver = worker_of(source), worker_of(consumer)
    if sender is None or receiver is None:
        return False
    push = pushed_of(source)
    opens_pull = is_pulled(source) and pull_of(consumer) is not None
    opens_push = push is not None and push.worker == receiver and is_gated(consumer)
    return (
        opens_pull
        or opens_push
        or (source == inputs_read(sender) and consumer == all_inputs_read(receiver))
    )


def _crosses_for(leaving: SentName, arriving: SentName) -> bool:
    """Whether a control edge tells another device that an op has run, or lets a tensor be sent when
    an earlier one has arrived."""
    if leaving.what == "sent":
        return leaving.output is None and leaving == arriving._replace(what="sent")
    return arriving.what == "sent" and leaving.device == arriving.device


def _is_within_once(crossing: Crossing) -> bool:
    """Whether an edge is within what is done once, which may be on several servers, or within
    evaluation, which is on these and worker 0."""
    ends = (crossing.source, crossing.consumer)
    if all(is_in_evaluation(name) for name in ends):
        return True
    return all(is_done_once(name) or (worker_of(name) or 0) < 0 for name in ends)


def audit(wiring: Wiring, plan: Plan, step: Iterable[str]) -> Traffic:
    """Compare what crosses in the graph with the plan; returns the traffic of one step.

    Args:
        step: the ops that a training step runs.

    Raises:
        TrafficError: an edge crosses that is not part of an aggregation, or the bytes between a
            pair of tasks are not what the plan says; names the edges.
    """
    for crossing in wiring.edges():
        if not _is_planned(crossing):
            raise TrafficError(
                f"{crossing} crosses from {crossing.pair[0]} to {crossing.pair[1]}; the plan has "
                "no such transfer"
            )
    crossing_in_step = wiring.crossings(wiring.ancestors(step))
    found, planned = Traffic(), planned_traffic(plan)
    for crossing in crossing_in_step:
        if _is_within_once(crossing):
            continue
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
