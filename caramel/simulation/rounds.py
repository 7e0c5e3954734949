"""In which rounds does an aggregation go over the links?

What a pattern (`core.patterns`) sends falls into rounds, each of which needs what the round before
brought. In a round the chunks that one worker has for another go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from caramel.core.patterns import Gather, Reduce, Schedule, Step, schedule

MOST_ROUNDS = 64
"""One worker that stands for many is simulated in no more rounds: where a pattern has more, several
count as one that is as long."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker sends to another in one round.

    Attributes:
        source: the worker that sends.
        target: the one that receives.
        chunks: which chunks.
        finished: whether they replace the receiver's own; else they are kept apart and added.
    """

    source: int
    target: int
    chunks: tuple[int, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class Addition:
    """What a worker adds up at the end of a round.

    Attributes:
        worker: the worker.
        operands: the workers whose values are added; its own number stands for its own value.
        chunks: of which chunks.
    """

    worker: int
    operands: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round of all workers: its messages, and the additions that need them, in order."""

    messages: tuple[Message, ...]
    additions: tuple[Addition, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What a worker does in one round, on average over the workers.

    Attributes:
        bytes: that it sends, and as many that it receives.
        added: bytes of operands that the worker with most of them adds to others afterwards.
        chunks: how many it sends.
        busiest: how many times the average the busiest link of a worker carries.
        count: how many rounds of the pattern it stands for.
    """

    bytes: float
    added: float
    chunks: float
    busiest: float = 1.0
    count: int = 1


@dataclass(slots=True)
class _Parts:
    """Chunks by source, target and whether they are finished; and by worker and operands."""

    messages: dict[tuple[int, int, bool], list[int]] = field(default_factory=dict)
    additions: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)


def _by_round(plan: Schedule) -> Iterator[tuple[int, Step]]:
    """The steps, each with the number of its round."""
    chunks = plan.chunks
    level = [0] * (plan.workers * chunks)  # rounds that a worker's value of a chunk has behind it
    arrived: dict[tuple[int, int, int], int] = {}
    for step in plan.steps:
        if isinstance(step, Reduce):
            worker, chunk = step.worker, step.chunk
            # A sum is there one round after the last of its operands was sent.
            others = [arrived.pop((worker, w, chunk)) for w in step.order if w != worker]
            own = worker * chunks + chunk
            level[own] = max(level[own], *others)
            yield level[own] - 1, step
            continue
        number = level[step.source * chunks + step.chunk]
        if isinstance(step, Gather):
            level[step.target * chunks + step.chunk] = number + 1
        else:
            arrived[step.target, step.source, step.chunk] = number + 1
        yield number, step


@lru_cache(maxsize=64)
def exchanges_of(pattern: str, workers: int, shift: int = 0) -> tuple[Exchange, ...]:
    """The rounds of a pattern; the arguments are those of `core.patterns.schedule`."""
    rounds: list[_Parts] = []
    for number, step in _by_round(schedule(pattern, workers, shift=shift)):
        while len(rounds) <= number:
            rounds.append(_Parts())
        parts = rounds[number]
        if isinstance(step, Reduce):
            parts.additions.setdefault((step.worker, step.order), []).append(step.chunk)
        else:
            key = (step.source, step.target, isinstance(step, Gather))
            parts.messages.setdefault(key, []).append(step.chunk)
    return tuple(
        Exchange(
            tuple(Message(s, t, tuple(own), f) for (s, t, f), own in each.messages.items()),
            tuple(Addition(w, order, tuple(own)) for (w, order), own in each.additions.items()),
        )
        for each in rounds
    )


@lru_cache(maxsize=4096)
def rounds_of(pattern: str, workers: int, chunk_bytes: tuple[float, ...]) -> tuple[Round, ...]:
    """The rounds of an aggregation, or of one of its parts, at most `MOST_ROUNDS`.

    Where all workers are alike, so are their links, and it is enough to look at one of them.

    Args:
        chunk_bytes: size of each chunk, as many as the pattern has.
    """
    counts = _counts(pattern, workers)
    if not len(counts.sent):
        return ()
    sizes = np.array(chunk_bytes)
    sent, chunks = counts.sent @ sizes / workers, counts.sent @ (sizes > 0) / workers
    added = counts.added @ sizes / workers * counts.most_added
    # Rounded up.
    together = -(-len(sent) // MOST_ROUNDS)
    numbers = range(len(sent))
    found = []
    for _, several in groupby(numbers, key=lambda number: number // together):
        own = list(several)
        total = float(sent[own].sum())
        worth = float((sent[own] * counts.busiest[own]).sum())
        busiest = worth / total if total else 1.0
        own_added, own_chunks = float(added[own].sum()), float(chunks[own].sum())
        found.append(Round(total, own_added, own_chunks, busiest, len(own)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Counts:
    """How often chunks are sent and added in each round, over all workers.

    Attributes:
        sent: by round and chunk.
        added: likewise.
        busiest: by round, how many times the average the busiest link carries if all chunks are
            alike.
        most_added: likewise of additions.
    """

    sent: np.ndarray
    added: np.ndarray
    busiest: np.ndarray
    most_added: np.ndarray


@lru_cache(maxsize=64)
def _counts(pattern: str, workers: int) -> _Counts:
    plan = schedule(pattern, workers)
    moved: list[tuple[int, int, int, int]] = []  # round, chunk, source, target
    added: list[tuple[int, int, int, int]] = []  # round, chunk, worker, how many operands
    for number, step in _by_round(plan):
        if isinstance(step, Reduce):
            added.append((number, step.chunk, step.worker, len(step.order) - 1))
        else:
            moved.append((number, step.chunk, step.source, step.target))
    rounds = max((number for number, *_ in moved), default=-1) + 1
    sends, sums = (np.array(each, int).reshape(-1, 4).T for each in (moved, added))
    of_chunk, of_worker = (rounds, plan.chunks), (rounds, workers)
    return _Counts(
        sent=_added_up(of_chunk, sends[0], sends[1]),
        added=_added_up(of_chunk, sums[0], sums[1], sums[3]),
        # A link is as slow as the worse one of its ends.
        busiest=np.maximum(
            _most(_added_up(of_worker, sends[0], sends[2])),
            _most(_added_up(of_worker, sends[0], sends[3])),
        ),
        most_added=_most(_added_up(of_worker, sums[0], sums[2], sums[3])),
    )


def _added_up(
    shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray, values: Any = 1
) -> np.ndarray:
    """A matrix of the sums of values with the same row and column."""
    matrix = np.zeros(shape)
    np.add.at(matrix, (rows, columns), values)
    return matrix


def _most(of_worker: np.ndarray) -> np.ndarray:
    """In each round, how many times the average the worker has that has most."""
    mean = of_worker.mean(axis=1)
    return np.where(mean > 0, of_worker.max(axis=1) / np.maximum(mean, 1e-9), 1.0)


def sent_by(exchange: Exchange, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Each worker that sends in a round, and how much, for chunks of these sizes."""
    total: dict[int, int] = {}
    for message in exchange.messages:
        size = sum(sizes[chunk] for chunk in message.chunks)
        total[message.source] = total.get(message.source, 0) + size
    yield from total.items()
