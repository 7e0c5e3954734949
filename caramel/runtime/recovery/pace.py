"""When is it time for another snapshot?

By default as often as costs `SHARE` of the time. What a snapshot costs is measured: the call, and
how much longer than usual the step behind it takes, in which updates have to leave the buffers that
snapshots share with variables, and nothing of the step before is left to be done beside it.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SHARE = 0.01
"""Of the time, that snapshots may cost."""

MOST_BYTES = 256 * 2**20
"""Of feeds that are kept to repeat steps."""

_FIRST_STEPS = 10  # between snapshots while their cost is unknown
_RECENT = 20


class Pace:
    """How often snapshots are taken.

    Args:
        every: after how many steps; None for what costs `SHARE` of the time.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._steps, self._since_s = 0, 0.0  # since the last snapshot
        self._usual_s: deque[float] = deque(maxlen=_RECENT)
        self._costs_s: deque[float] = deque(maxlen=_RECENT)
        self._call_s: float | None = None  # of a snapshot behind which there was no step yet
        self._taken = 0

    def stepped(self, took_s: float, steps: int = 1) -> None:
        """Steps have taken so long together, in seconds."""
        self._steps += steps
        self._since_s += took_s
        step_s = took_s / steps
        if self._call_s is not None:
            more_s = max(0.0, step_s - median(self._usual_s)) if self._usual_s else 0.0
            # The first one is prepared, which takes much longer.
            if self._taken > 1:
                self._costs_s.append(self._call_s + more_s)
            self._call_s = None
        else:
            self._usual_s.append(step_s)

    def taken(self, call_s: float) -> None:
        """A snapshot was taken, in so many seconds."""
        self._taken += 1
        self._steps, self._since_s, self._call_s = 0, 0.0, call_s

    def begin_again(self) -> None:
        """Steps are done by another session, whose first calls are prepared again."""
        self._taken, self._call_s = 0, None

    def is_due(self, kept_bytes: int) -> bool:
        """Whether a snapshot is to be taken before the next step.

        Args:
            kept_bytes: what is kept of the feeds of the steps since the last one.
        """
        if not self._steps:
            return False
        if kept_bytes > MOST_BYTES:
            return True
        if self._every is not None:
            return self._steps >= self._every
        if not self._costs_s:
            return self._steps >= _FIRST_STEPS
        return self._since_s * SHARE >= median(self._costs_s)
