"""In which rounds does an aggregation go over a link?

Where all workers are alike, so are their links, and it is enough to look at one of them. What a
pattern (`caramel.patterns`) sends is then a list of rounds, each of which needs what the round
before brought.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from caramel.patterns import Gather, Reduce, schedule


@dataclass(frozen=True, slots=True)
class Round:
    """What a worker does in one round, on average over the workers.

    Attributes:
        bytes: that it sends, and as many that it receives.
        added: bytes of operands that it adds to others afterwards.
    """

    bytes: float
    added: float


@lru_cache(maxsize=4096)
def rounds_of(
    pattern: str, workers: int, depth: int, chunk_bytes: tuple[float, ...]
) -> tuple[Round, ...]:
    """The rounds of one of the `depth` parts of an aggregation.

    Args:
        chunk_bytes: size of each chunk of that part, as many as the pattern has.
    """
    steps = schedule(pattern, workers).steps
    sent: list[float] = []
    added: list[float] = []
    level: dict[tuple[int, int], int] = {}  # of what a worker has of a chunk
    arrived: dict[tuple[int, int, int], int] = {}
    sizes = chunk_bytes[: schedule(pattern, workers).chunks]

    def at(values: list[float], number: int, more: float) -> None:
        values.extend([0.0] * (number + 1 - len(values)))
        values[number] += more

    for step in steps:
        if isinstance(step, Reduce):
            own = [level.get((step.worker, step.chunk), 0)]
            own += [arrived[step.worker, w, step.chunk] for w in step.order if w != step.worker]
            level[step.worker, step.chunk] = max(own)
            at(added, max(own) - 1, sizes[step.chunk] * (len(step.order) - 1))
            continue
        number = level.get((step.source, step.chunk), 0)
        at(sent, number, sizes[step.chunk])
        arrived[step.target, step.source, step.chunk] = number + 1
        if isinstance(step, Gather):
            level[step.target, step.chunk] = number + 1
    added += [0.0] * (len(sent) - len(added))
    return tuple(Round(b / workers, a / workers) for b, a in zip(sent, added, strict=True))
