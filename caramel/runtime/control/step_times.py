"""How many steps were done, and how long the last ones took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

_RECENT_STEPS = 50


def _recent() -> deque[float]:
    return deque(maxlen=_RECENT_STEPS)


@dataclass(slots=True)
class StepTimes:
    """The steps of one controller.

    Attributes:
        steps: how many were done, also those whose time counts nowhere.
        first_s: how long the first one took that was timed, in seconds; None before.
        recent_s: how long the last ones took, in seconds, the latest last.
        usual_s: likewise, of usual ones only (`StepResult.is_usual`).
        paused_s: for how long steps had to wait for plans to be found and made, in all, in seconds.
    """

    steps: int = 0
    first_s: float | None = None
    recent_s: deque[float] = field(default_factory=_recent)
    usual_s: deque[float] = field(default_factory=_recent)
    paused_s: float = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While steps wait for plans."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.paused_s += time.perf_counter() - begin_s

    def record(self, step_s: float, *, is_usual: bool) -> None:
        """A step took so long, in seconds."""
        if self.first_s is None:
            self.first_s = step_s
        self.recent_s.append(step_s)
        if is_usual:
            self.usual_s.append(step_s)

    @property
    def recent_median_s(self) -> float | None:
        """The median of the last steps; None before there were any."""
        return median(self.recent_s) if self.recent_s else None
