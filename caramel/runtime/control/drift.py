"""When does a running job measure itself and plan again?

A job that was started without measured facts does some steps without a plan, and has the next few
traced; from these it plans. One that has a plan compares its steps with what was expected, and if
they drift away it can do the same again. Nothing here measures or runs anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

from caramel.core.errors import PlanError
from caramel.core.util.arguments import at_least, check_fields, more_than

Replan = Literal["never", "auto"]


@dataclass(frozen=True, slots=True)
class ReplanSettings:
    """When a job plans while it runs.

    Attributes:
        first_after: steps that a job does before it measures itself for the first time.
        traced: steps that are then traced.
        least_step_s: a job of shorter steps is left as it is.
        drift: how many times longer than expected steps may be.
        window: how many steps are looked at for that; their median counts.
        lasting_s: steps must have been too long for this time; what passes sooner is a disturbance,
            for which planning again would not pay.
        payback: plans are searched, and those that were found are tried, after so many times the
            steps that it takes to gain back for how long training pauses; 0 for at once.

    Raises:
        PlanError: a number is out of range.
    """

    first_after: int = 10
    traced: int = 3
    least_step_s: float = 0.02
    drift: float = 1.3
    window: int = 20
    lasting_s: float = 30.0
    payback: float = 1.0

    def __post_init__(self) -> None:
        check_fields(
            self,
            PlanError,
            first_after=at_least(1),
            traced=at_least(1),
            least_step_s=at_least(0),
            drift=more_than(1),
            window=at_least(1),
            lasting_s=at_least(0),
            payback=at_least(0),
        )


class DriftMonitor:
    """Watches the times of steps, and says when to measure them and plan.

    Args:
        settings: see there.
        begins: whether the job has no measured facts and is to measure itself.
        again: whether to plan again when steps drift.
        expected_s: how long a step should take, in seconds; None if nothing is known.

    Attributes:
        expected_s: likewise, by what is known now.
    """

    def __init__(
        self,
        settings: ReplanSettings,
        *,
        begins: bool,
        again: bool,
        expected_s: float | None = None,
    ) -> None:
        self._settings, self._again = settings, again
        self._recent_s: deque[float] = deque(maxlen=max(settings.window, settings.first_after))
        self._begins = begins
        self._wants_plan = False
        self._is_new = False  # whether a drift was found that nobody has been told of
        self._drifted = False
        self._drifting_s = 0.0  # for how long steps have been too long by now
        self._learns = False  # what to expect, from the next steps
        self.expected_s = expected_s

    @property
    def plans_again(self) -> bool:
        """Whether steps that drift are a reason to plan again, if they are long enough."""
        return self._again

    @property
    def wants_plan(self) -> bool:
        """Whether steps are to be traced, and plans to be made from that; until `expect`."""
        return self._wants_plan

    @property
    def usual_s(self) -> float | None:
        """The median of the steps since something else was expected; None before there were any."""
        return median(self._recent_s) if self._recent_s else None

    @property
    def drift(self) -> float | None:
        """The usual step over the expected one; None if one of them is not known."""
        window, expected_s = self._settings.window, self.expected_s
        recent_s = list(self._recent_s)[-window:]  # another thread may go on meanwhile
        if expected_s is None or len(recent_s) < window:
            return None
        return median(recent_s) / expected_s

    def record(self, step_s: float, *, counts: bool = True) -> None:
        """An ordinary step took so long.

        Args:
            step_s: how long, in seconds.
            counts: False if something else than a usual step was done in that time.
        """
        if not counts:
            return
        self._recent_s.append(step_s)
        if self._begins and len(self._recent_s) >= self._settings.first_after:
            self._begins = False
            self._wants_plan = self._is_long_enough
        if self._learns and len(self._recent_s) >= self._settings.window:
            self.expected_s, self._learns = self.usual_s, False
        drift = self.drift
        is_too_long = drift is not None and drift > self._settings.drift
        self._drifting_s = self._drifting_s + step_s if is_too_long else 0.0
        if is_too_long and self._drifting_s >= self._settings.lasting_s and not self._drifted:
            self._drifted = self._is_new = True
            self._wants_plan = self._again and self._is_long_enough

    @property
    def _is_long_enough(self) -> bool:
        return median(self._recent_s) >= self._settings.least_step_s

    def take_news(self) -> float | None:
        """The drift, once after it has become too large."""
        news, self._is_new = self._is_new, False
        return self.drift if news else None

    def expect(self, step_s: float | None) -> None:
        """Steps are expected to take so long from now on; what was before does not count.

        Args:
            step_s: in seconds; None if it is not known: then as long as the next steps take.
        """
        self.expected_s, self._learns = step_s, step_s is None
        self._recent_s.clear()
        self._drifting_s = 0.0
        self._wants_plan = self._drifted = self._is_new = False
