"""By how much do the clocks of several workers differ?

Like the Network Time Protocol: a clock is read over the network, between two looks at one's own.
Half way between them is when it was read, give or take half of the round trip; of several tries
the one with the least round trip says most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TRIES = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """What a clock showed, and when it was asked and had answered by the asker's clock."""

    asked_s: float
    shown_s: float
    answered_s: float

    @property
    def round_trip_s(self) -> float:
        """How long the answer took; the offset is uncertain by half of it."""
        return self.answered_s - self.asked_s

    @property
    def offset_s(self) -> float:
        """By how much the clock is ahead of the asker's."""
        return self.shown_s - (self.asked_s + self.answered_s) / 2


def clock_offsets_s(
    ask: Callable[[int], float],
    clocks: int,
    *,
    tries: int = TRIES,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """By how much each clock is ahead of the first one, in seconds.

    Args:
        ask: reads the clock of this number, in seconds.
        clocks: how many there are.
        tries: how often each is read, at least once.
        now: the asker's clock; it need not show the time of day.
    """
    best: dict[int, Reading] = {}
    for _ in range(tries):
        for clock in range(clocks):  # in turn: what disturbs for a while disturbs none all the time
            reading = _read(ask, clock, now)
            if clock not in best or reading.round_trip_s < best[clock].round_trip_s:
                best[clock] = reading
    return tuple(best[clock].offset_s - best[0].offset_s for clock in range(clocks))


def _read(ask: Callable[[int], float], clock: int, now: Callable[[], float]) -> Reading:
    asked_s = now()
    shown_s = ask(clock)
    return Reading(asked_s, shown_s, now())
