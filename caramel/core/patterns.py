"""Aggregation patterns as data: who sends which chunk to whom, and who adds what in which order.

A tensor is split into chunks, and every worker starts with its own partial value of each chunk. The
graph builder, the cost model and the simulator all read this one description. Any number of workers
works with each pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from caramel.core.errors import PlanError

# Chunks begin at multiples of this many bytes where there is enough data: TensorFlow shares the
# buffer of a slice that begins aligned, and copies one that does not.
CHUNK_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Send:
    """The source's current value of a chunk travels to the target, to be added there.

    The target keeps it apart from its own.
    """

    source: int
    target: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A worker's value of a chunk becomes the sum of those that it has from the workers in `order`.

    They are added from left to right; its own number stands for its own value.
    """

    worker: int
    chunk: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """The finished value of a chunk is copied from the source to the target."""

    # A chunk is finished on one worker and copied from there, or added up by each in the same
    # order: so all workers end with the same bits.

    source: int
    target: int
    chunk: int


Step = Send | Reduce | Gather


@dataclass(frozen=True, slots=True)
class Schedule:
    """All steps of one aggregation over `workers` workers and `chunks` chunks.

    They are in an order in which they could be carried out.
    """

    pattern: str
    workers: int
    chunks: int
    steps: tuple[Step, ...]

    def finishing(self) -> frozenset[Reduce]:
        """The reductions whose sums are those over all workers."""
        last: dict[tuple[int, int], Reduce] = {}
        for step in self.steps:
            match step:
                case Reduce(worker, chunk):
                    last[worker, chunk] = step
                case Send(source, _, chunk):  # it was a part only
                    last.pop((source, chunk), None)
        return frozenset(last.values())

    def sent_elements(self, sizes: tuple[int, ...]) -> dict[tuple[int, int], int]:
        """Elements that travel between each pair (source, target), for chunks of these sizes."""
        total: dict[tuple[int, int], int] = {}
        for step in self.steps:
            if not isinstance(step, Reduce) and sizes[step.chunk]:
                pair = (step.source, step.target)
                total[pair] = total.get(pair, 0) + sizes[step.chunk]
        return total


def _shuffle(workers: int) -> Iterator[Step]:
    """Chunk c is sent by everyone to worker c, added there in worker order, and sent back.

    After Dean & Ghemawat (2008); with the next two, one of the patterns of the Caramel paper
    (section 2).
    """
    everyone = tuple(range(workers))
    for owner in everyone:
        yield from (Send(source, owner, owner) for source in everyone if source != owner)
    yield from (Reduce(owner, owner, everyone) for owner in everyone)
    for owner in everyone:
        yield from (Gather(owner, target, owner) for target in everyone if target != owner)


def _ring(workers: int) -> Iterator[Step]:
    """Chunk c starts at worker c + 1 and collects one value at each hop until worker c has all.

    The bucket algorithm (Barnett et al., 1994).
    """
    for hop in range(workers - 1):
        for chunk in range(workers):
            source = (chunk + 1 + hop) % workers
            target = (source + 1) % workers
            yield Send(source, target, chunk)
            yield Reduce(target, chunk, (source, target))
    for hop in range(workers - 1):
        for chunk in range(workers):
            source = (chunk + hop) % workers
            yield Gather(source, (source + 1) % workers, chunk)


def _halving_doubling(workers: int) -> Iterator[Step]:
    """Recursive vector halving with distance doubling, then the same way back.

    After Thakur & Gropp (2003).
    With P = 2^k <= workers < 2P, the last workers - P workers first send everything to a partner
    and get the result from it in the end (Thakur & Gropp 2003, section on non-powers of two).
    """
    power = 1 << (workers.bit_length() - 1)
    extras = range(power, workers)
    for extra in extras:
        for chunk in range(power):
            yield Send(extra, extra - power, chunk)
            yield Reduce(extra - power, chunk, (extra - power, extra))
    distances = [1 << bit for bit in range(power.bit_length() - 1)]
    for distance in distances:
        yield from _halve(power, distance)
    for distance in reversed(distances):
        for worker in range(power):
            for chunk in range(power):
                if chunk % (2 * distance) == worker % (2 * distance):
                    yield Gather(worker, worker ^ distance, chunk)
    for extra in extras:
        yield from (Gather(extra - power, extra, chunk) for chunk in range(power))


def _exchange(workers: int) -> Iterator[Step]:
    """The one chunk is sent by everyone to everyone, and added in worker order by each.

    Between two workers these are no more bytes than with the others, in one round in place of two.
    """
    everyone = tuple(range(workers))
    for source in everyone:
        yield from (Send(source, target, 0) for target in everyone if target != source)
    yield from (Reduce(worker, 0, everyone) for worker in everyone)


def _halve(power: int, distance: int) -> Iterator[Step]:
    """One round: partners at `distance` exchange the halves of what they hold and add them."""
    pairs = [
        (worker, chunk)
        for worker in range(power)
        for chunk in range(power)
        if chunk % (2 * distance) == worker % (2 * distance)
    ]
    yield from (Send(worker ^ distance, worker, chunk) for worker, chunk in pairs)
    for worker, chunk in pairs:
        partner = worker ^ distance
        # In the order of their numbers, so that both partners add alike.
        yield Reduce(worker, chunk, (min(worker, partner), max(worker, partner)))


@dataclass(frozen=True, slots=True)
class _Pattern:
    steps: Callable[[int], Iterator[Step]]
    chunks: Callable[[int], int]


_PATTERNS: Mapping[str, _Pattern] = {
    "shuffle": _Pattern(_shuffle, lambda workers: workers),
    "ring": _Pattern(_ring, lambda workers: workers),
    "halving_doubling": _Pattern(
        _halving_doubling, lambda workers: 1 << (workers.bit_length() - 1)
    ),
    "exchange": _Pattern(_exchange, lambda _: 1),
}

PATTERNS = tuple(_PATTERNS)

SERVER = "server"
"""The pattern by which every worker sends to a parameter server, which adds up."""


@lru_cache(maxsize=64)
def frugal_patterns(workers: int) -> tuple[str, ...]:
    """The patterns that send the fewest bytes between so many workers, which are 2 (N - 1) / N of
    the data for each: all between two, all but `exchange` between more."""
    copies = {}
    for name in PATTERNS:
        plan = schedule(name, workers)
        copies[name] = sum(plan.sent_elements((1,) * plan.chunks).values()) / plan.chunks
    least = min(copies.values())
    return tuple(name for name in PATTERNS if copies[name] <= least)


@lru_cache(maxsize=256)
def schedule(pattern: str, workers: int, *, depth: int = 1, shift: int = 0) -> Schedule:
    """The steps of an aggregation.

    Args:
        pattern: one of `PATTERNS`.
        workers: number of workers, at least 1.
        depth: how many times the pattern is laid side by side, each over its own chunks, so that
            one part is on the wire while another is added (Caramel paper, section 4.4).
        shift: added to every worker's number (modulo `workers`), so that small tensors, which fill
            only the first chunks, do not all burden the same worker. The order of addition of
            `shuffle` does not depend on it.

    Raises:
        PlanError: unknown pattern, or a number below 1.
    """
    check_pattern(pattern)
    if workers < 1 or depth < 1:
        raise PlanError(f"{pattern} over {workers} workers with depth {depth}: both must be >= 1")
    chunks = _PATTERNS[pattern].chunks(workers)
    base = tuple(_PATTERNS[pattern].steps(workers)) if workers > 1 else ()
    if depth == 1 and shift == 0 and workers > 2:  # as it is; two workers' orders are sorted below
        return Schedule(pattern, workers, chunks, base)
    steps = tuple(
        _moved(step, workers, shift, part * chunks) for step in base for part in range(depth)
    )
    return Schedule(pattern, workers, chunks * depth, steps)


@lru_cache(maxsize=256)
def server_schedule(workers: int, server: int) -> Schedule:
    """Everyone sends the one chunk to a server, where it is added in worker order.

    The sum stays there. It is added in the order of `shuffle`, and so has the same bits.

    Args:
        workers: number of workers, at least 1.
        server: the server's place (`names.server_place`).
    """
    everyone = tuple(range(workers))
    sends = tuple(Send(worker, server, 0) for worker in everyone)
    return Schedule(SERVER, workers, 1, (*sends, Reduce(server, 0, everyone)))


def check_pattern(pattern: str, *others: str) -> None:
    """Raise a PlanError unless `pattern` is one of `PATTERNS`.

    Args:
        others: words that may stand in its place, such as "auto", and that who asks looks at.
    """
    if not isinstance(pattern, str) or pattern not in _PATTERNS:
        there_are = ", ".join((*PATTERNS, *others))
        raise PlanError(f"unknown pattern {pattern!r:.100}; there are {there_are}")


def _moved(step: Step, workers: int, shift: int, offset: int) -> Step:
    """A step with its workers' numbers shifted and its chunk's number raised by `offset`."""

    def move(worker: int) -> int:
        return (worker + shift) % workers

    match step:
        case Send(source, target, chunk):
            return Send(move(source), move(target), chunk + offset)
        case Gather(source, target, chunk):
            return Gather(move(source), move(target), chunk + offset)
        case Reduce(worker, chunk, order):
            moved = tuple(move(member) for member in order)
            # A sum over all workers keeps its order whatever the shift, and with it its bits.
            in_worker_order = len(order) == workers
            return Reduce(
                move(worker), chunk + offset, tuple(sorted(moved)) if in_worker_order else moved
            )


def aligned_elements(element_bytes: int) -> int:
    """After so many elements, and each multiple, memory is aligned as ops of TensorFlow want it."""
    return max(1, CHUNK_ALIGNMENT_BYTES // element_bytes)


def chunk_sizes(
    elements: int, chunks: int, element_bytes: int, *, smallest_bytes: int = CHUNK_ALIGNMENT_BYTES
) -> tuple[int, ...]:
    """Elements in each chunk: as even as possible, every chunk beginning aligned.

    Boundaries are multiples of `CHUNK_ALIGNMENT_BYTES`. A tensor that would give chunks of less
    than `smallest_bytes` fills only the first chunks, and the others are empty: nothing is sent
    for those.
    """
    unit = aligned_elements(element_bytes)
    # Rounded up.
    units = -(-elements // unit)
    filled = max(1, min(chunks, elements * element_bytes // smallest_bytes))
    bounds = [min(elements, unit * -(-units * chunk // filled)) for chunk in range(filled + 1)]
    sizes = (after - before for before, after in pairwise(bounds))
    return (*sizes, *[0] * (chunks - filled))
