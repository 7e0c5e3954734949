"""How much memory the tensors of a step need on one device, moment by moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

MOST_POINTS = 400
"""Of a curve; between them it keeps its highest values."""


class Held(NamedTuple):
    """Some memory that is there for some time."""

    begin_s: float
    end_s: float
    bytes: float


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The bytes of all tensors of a step on one device; variables do not count.

    Attributes:
        worker: the number of the device.
        times_s: moments, in order, by the clock of the timeline that it belongs to.
        bytes: how many there are from each of these moments on, until the next one.
    """

    worker: int
    times_s: tuple[float, ...]
    bytes: tuple[float, ...]

    @classmethod
    def of(cls, worker: int, held: Iterable[Held]) -> MemoryCurve:
        """The curve of what is held, at most `MOST_POINTS` of it.

        What ends at a moment makes room for what begins at it; but what begins and ends at the
        same moment counts.
        """
        changes: list[tuple[float, int, float]] = []
        for begin_s, end_s, size in held:
            if size:
                changes.append((begin_s, 1, size))
                changes.append((end_s, 0 if end_s > begin_s else 2, -size))
        now, points = 0.0, list[tuple[float, float]]()
        for time_s, _, size in sorted(changes):
            now += size
            points.append((time_s, now))
        kept = _thinned(points)
        return cls(worker, tuple(time_s for time_s, _ in kept), tuple(size for _, size in kept))

    @property
    def peak_bytes(self) -> float:
        """The most that there are at any moment."""
        return max(self.bytes, default=0.0)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The highest value of each of equal stretches of time, and the last one of all."""
    if not points:
        return []
    first_s, last_s = points[0][0], points[-1][0]
    apart_s = (last_s - first_s) / (MOST_POINTS - 2)
    found: dict[int, tuple[float, float]] = {}
    for time_s, size in points:
        place = int((time_s - first_s) / apart_s) if apart_s else 0
        begin_s, most = found.get(place, (time_s, 0.0))
        found[place] = begin_s, max(most, size)
    return [*found.values(), (last_s, points[-1][1])]
