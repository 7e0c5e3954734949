"""In which rounds does an aggregation go over the links?

What a pattern (`caramel.patterns`) sends falls into rounds, each of which needs what the round
before brought. In a round the chunks that one worker has for another go together. Where all workers
are alike, so are their links, and it is enough to look at one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

import numpy as np

from caramel.patterns import Gather, Reduce, schedule

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


@lru_cache(maxsize=64)
def exchanges_of(pattern: str, workers: int, shift: int = 0) -> tuple[Exchange, ...]:
    """The rounds of a pattern; the arguments are those of `caramel.patterns.schedule`."""
    rounds: list[_Parts] = []
    level: dict[tuple[int, int], int] = {}  # rounds that a worker's value of a chunk has behind it
    arrived: dict[tuple[int, int, int], int] = {}

    def parts(number: int) -> _Parts:
        while len(rounds) <= number:
            rounds.append(_Parts())
        return rounds[number]

    for step in schedule(pattern, workers, shift=shift).steps:
        if isinstance(step, Reduce):
            own = (step.worker, step.chunk)
            others = [arrived[step.worker, w, step.chunk] for w in step.order if w != step.worker]
            level[own] = max(level.get(own, 0), *others)
            additions = parts(level[own] - 1).additions
            additions.setdefault((step.worker, step.order), []).append(step.chunk)
            continue
        number = level.get((step.source, step.chunk), 0)
        finished = isinstance(step, Gather)
        messages = parts(number).messages
        messages.setdefault((step.source, step.target, finished), []).append(step.chunk)
        if finished:
            level[step.target, step.chunk] = number + 1
        else:
            arrived[step.target, step.source, step.chunk] = number + 1
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

    Args:
        chunk_bytes: size of each chunk, as many as the pattern has.
    """
    counts = _counts(pattern, workers)
    if not len(counts.sent):
        return ()
    sizes = np.array(chunk_bytes)
    sent, chunks = counts.sent @ sizes / workers, counts.sent @ (sizes > 0) / workers
    added = counts.added @ sizes / workers * counts.most_added
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
    exchanges = exchanges_of(pattern, workers)
    shape = (len(exchanges), schedule(pattern, workers).chunks)
    sent, added = np.zeros(shape), np.zeros(shape)
    of_worker = np.zeros((3, len(exchanges), workers))  # sent, received, added
    for number, each in enumerate(exchanges):
        for message in each.messages:
            sent[number, list(message.chunks)] += 1
            of_worker[0, number, message.source] += len(message.chunks)
            of_worker[1, number, message.target] += len(message.chunks)
        for addition in each.additions:
            operands = len(addition.operands) - 1
            added[number, list(addition.chunks)] += operands
            of_worker[2, number, addition.worker] += operands * len(addition.chunks)
    mean = np.maximum(of_worker.mean(axis=2), 1e-9)
    most = np.maximum(of_worker.max(axis=2) / mean, 1.0)
    return _Counts(sent, added, most[:2].max(axis=0), most[2])


def sent_by(exchange: Exchange, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Each worker that sends in a round, and how much, for chunks of these sizes."""
    total: dict[int, int] = {}
    for message in exchange.messages:
        size = sum(sizes[chunk] for chunk in message.chunks)
        total[message.source] = total.get(message.source, 0) + size
    yield from total.items()
