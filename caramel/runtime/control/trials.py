"""Which of several plans is the fastest? Tried in turn, during the first steps of training.

The plans take turns of a few steps each, round after round, so that whatever disturbs the machine
for a while disturbs all of them. The first steps of a turn do not count: something is still being
prepared, and nothing is pending of a step before. Medians are compared. After each round, plans
that are far behind are not tried any more. Nothing here measures or runs anything: for given times
the decisions are always the same.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from caramel.core.errors import PlanError
from caramel.core.util.arguments import at_least, check_fields


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How plans are tried.

    Attributes:
        rounds: how many turns each plan has.
        steps: how many steps of a turn count.
        skipped: how many steps before these do not.
        margin: the plan that comes first is left for another only if that is faster by this part
            of its step time; what is less may be noise.
        give_up: after a round, a plan that takes longer than the fastest by this part of its step
            time is not tried any more.

    Raises:
        PlanError: a number is out of range.
    """

    rounds: int = 3
    steps: int = 5
    skipped: int = 2
    margin: float = 0.02
    give_up: float = 0.25

    def __post_init__(self) -> None:
        check_fields(
            self,
            PlanError,
            rounds=at_least(1),
            steps=at_least(1),
            skipped=at_least(0),
            margin=at_least(0),
            give_up=at_least(0),
        )
        if self.margin >= 1:
            raise PlanError(f"margin of trials is a part of the step time, below 1: {self.margin}")


@dataclass(frozen=True, slots=True)
class TriedPlan:
    """What is known of one plan.

    Attributes:
        name: its name.
        steps: how many of its steps counted so far.
        median_s: their median; None if none counted.
        given_up: whether it was so far behind that it is not tried any more.
    """

    name: str
    steps: int
    median_s: float | None
    given_up: bool


@dataclass(frozen=True, slots=True)
class TrialState:
    """How far the trials are.

    Attributes:
        is_over: whether a plan was chosen.
        round: which round it is, from 1.
        turn: the plan of the next step; the chosen one when the trials are over.
        plans: every plan, in the order of their turns.
    """

    is_over: bool
    round: int
    turn: str
    plans: tuple[TriedPlan, ...]

    @property
    def medians_told(self) -> str:
        """The medians in one line."""
        return ", ".join(
            f"'{plan.name}' " + ("untimed" if plan.median_s is None else f"{plan.median_s:.4f} s")
            for plan in self.plans
        )

    @property
    def gain_told(self) -> str:
        """How much faster steps are by the plan whose turn it is than by the slowest, if known."""
        medians = {plan.name: plan.median_s for plan in self.plans if plan.median_s}
        slowest = max(medians, key=lambda name: medians[name], default=self.turn)
        if self.turn not in medians or slowest == self.turn:
            return ""
        ratio = medians[slowest] / medians[self.turn]
        return f", whose steps are {ratio:.2f} times as fast as by '{slowest}'"


class Trials:
    """Decides which plan has the next step, and in the end which one is kept.

    Args:
        names: the plans, in the order of their turns. The first one stays unless another is faster.
        settings: how they are tried.

    Raises:
        PlanError: there are no plans, or two of the same name.
    """

    def __init__(self, names: Sequence[str], settings: TrialSettings | None = None) -> None:
        if not names or len(set(names)) < len(names):
            raise PlanError(f"trials need plans of different names, not {list(names)}")
        self._settings = settings or TrialSettings()
        self._times_s: dict[str, list[float]] = {name: [] for name in names}
        self._order = list(names)  # those that are still tried
        self._round, self._position, self._done = 1, 0, 0
        self._chosen = names[0] if len(names) == 1 else None
        self._lock = threading.Lock()  # another thread may ask for the state

    @property
    def settings(self) -> TrialSettings:
        """How the plans are tried."""
        return self._settings

    @property
    def is_over(self) -> bool:
        """Whether a plan was chosen."""
        return self._chosen is not None

    @property
    def turn(self) -> str:
        """The plan of the next step; the chosen one when the trials are over."""
        return self._chosen or self._order[self._position]

    def record(self, step_s: float, *, counts: bool = True) -> None:
        """A step of the plan whose turn it is took so long.

        Args:
            step_s: how long, in seconds.
            counts: False if something else than a usual step was done in that time.
        """
        if self.is_over:
            return
        with self._lock:
            self._done += 1
            if counts and self._done > self._settings.skipped:
                self._times_s[self.turn].append(step_s)
            if self._done == self._settings.skipped + self._settings.steps:
                self._done = 0
                self._end_turn()

    def leave_out(self, name: str) -> None:
        """Try a plan no more."""
        with self._lock:
            if self.is_over or name not in self._order:
                return
            position = self._order.index(name)
            self._order.remove(name)
            if position < self._position:
                self._position -= 1
            elif position == self._position:
                self._done = 0
                self._position -= 1
                self._end_turn()
            if len(self._order) == 1:
                self._chosen = self._order[0]

    def state(self) -> TrialState:
        """How far the trials are."""
        with self._lock:
            plans = tuple(
                TriedPlan(name, len(times), self._median_s(name), name not in self._order)
                for name, times in self._times_s.items()
            )
            return TrialState(self.is_over, self._round, self.turn, plans)

    def _end_turn(self) -> None:
        self._position += 1
        if self._position < len(self._order):
            return
        self._position = 0
        fastest = self._fastest()
        if fastest is not None:
            self._order = [name for name in self._order if not self._is_behind(name, fastest)]
        if self._round >= self._settings.rounds or len(self._order) == 1:
            self._chosen = self._choice(fastest)
        else:
            self._round += 1

    def _choice(self, fastest: str | None) -> str:
        """The first plan, unless another is faster by the margin or the first was never timed."""
        first = next(iter(self._times_s))
        if fastest is None:
            return first if first in self._order else self._order[0]
        if first not in self._order:
            return fastest
        own_s, best_s = self._median_s(first), self._median_s(fastest)
        if own_s is None or best_s is None:
            return fastest
        return fastest if best_s < own_s * (1 - self._settings.margin) else first

    def _fastest(self) -> str | None:
        """The plan of the least median, of equal ones the first; None if none was timed."""
        medians = {name: m for name in self._order if (m := self._median_s(name)) is not None}
        return min(medians, key=lambda name: medians[name]) if medians else None

    def _is_behind(self, name: str, fastest: str) -> bool:
        own_s, best_s = self._median_s(name), self._median_s(fastest)
        if own_s is None or best_s is None:
            return False
        return own_s > best_s * (1 + self._settings.give_up)

    def _median_s(self, name: str) -> float | None:
        times_s = self._times_s[name]
        return median(times_s) if times_s else None
