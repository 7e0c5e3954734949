"""Makes a plan better by changes of single groups: first by descent, then by kicks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from caramel.core.decision import Group
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.options import Options
from caramel.planning.search.grouping import Grouping
from caramel.planning.search.neighbours import Neighbours
from caramel.simulation.conditions import Conditions
from caramel.simulation.simulate import simulate_groups

IN_FLIGHT = (4_000_000, 1_000_000, 8_000_000, 2_000_000, 25_000_000, 0)
"""Bytes that are tried beside the usual ones, in this order."""


T = TypeVar("T")

WORTH = 1e-4
"""Of the step, that a change must save to be made."""

# Times what a link holds on its way (rate times latency): with so many bytes of groups in flight
# `shuffle` fills nine tenths of it.
_FILLING = 9
_MANY = 24  # changes of one kind, of which some should have helped:
_HELPFUL = 0.02  # as a share of them; else
_SELDOM = 4  # only each so many-th group is changed that way
_KICKS = (2, 3)  # changes at a time
_KICKED = 1.05  # times the step that a kick may make it
_TRIES = 40  # to find changes for a kick
_VAIN_KICKS = 100  # one after the other, after which no more are tried


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate and how long its step is predicted to take."""

    candidate: Candidate
    step_s: float

    def is_faster_than(self, other: Scored) -> bool:
        """Whether it is worth a change."""
        return self.step_s < other.step_s * (1 - WORTH)


@dataclass(slots=True)
class Budget:
    """How many tasks may be simulated, and how many were."""

    tasks: int
    spent: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be tried."""
        return self.spent >= self.tasks


@dataclass(slots=True)
class _Luck:
    """How often changes of one kind were tried, and how many of them helped."""

    tried: int = 0
    helped: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether few of many have helped."""
        return self.tried >= _MANY and self.helped < _HELPFUL * self.tried


class Improver:
    """Predicts and changes candidates with the same parts of gradients.

    Args:
        outlook: for predictions.
        grouping: what may be joined and deferred.
        options: which optimizations may be used.
        budget: what may be simulated.

    Attributes:
        usual_bytes: those in flight that are tried first.
    """

    def __init__(
        self, outlook: Outlook, grouping: Grouping, options: Options, budget: Budget
    ) -> None:
        self.usual_bytes = options.gated_bytes(outlook.calibration)
        self._outlook, self._options, self._budget = outlook, options, budget
        self._grouping = grouping
        self._neighbours = Neighbours(grouping, options, outlook.network.costs)
        self._conditions = {
            ordered: Conditions(grouping.sizes, outlook.workload(ordered), outlook.hardware)
            for ordered in (False, True)
        }
        self._wide = self._wide_limits()
        self._known: dict[tuple[object, ...], float] = {}
        self._luck: dict[str, _Luck] = {}

    def score(self, candidate: Candidate) -> Scored:
        """Predict a candidate."""
        key = (candidate.groups, candidate.gates, candidate.ordered)
        if key not in self._known:
            prediction = simulate_groups(
                candidate.groups,
                candidate.gates,
                self._conditions[candidate.ordered],
                detailed=False,
            )
            self._budget.spent += prediction.tasks
            self._known[key] = prediction.step_s
        return Scored(candidate, self._known[key])

    def _scored(self, groups: Sequence[Group], in_flight_bytes: int | None) -> Scored:
        assert in_flight_bytes is not None
        return self.score(self._grouping.candidate("improved", groups, in_flight_bytes))

    @property
    def limits(self) -> tuple[int, ...]:
        """Bytes in flight that may be tried."""
        usual = self.usual_bytes
        if self._options.in_flight_bytes is not None:
            return (usual,)
        return (usual, *(limit for limit in IN_FLIGHT if limit != usual), *self._wide)

    def _wide_limits(self) -> tuple[int, ...]:
        """Further limits where links are so long and fast that the usual ones do not fill them."""
        hardware = self._outlook.hardware
        latency_s = max([*hardware.latency_s.values(), *(k.latency_s for k in hardware.links)])
        filling = int(_FILLING * hardware.bytes_per_s * latency_s)
        is_given = self._options.in_flight_bytes is not None
        if is_given or filling <= max(self.usual_bytes, *IN_FLIGHT):
            return ()
        return tuple(sorted({min(filling, self._grouping.all_bytes), self._grouping.all_bytes}))

    # Descent

    def improved(self, start: Scored, *, thoroughly: bool = False) -> Scored:
        """A candidate changed step by step, as long as it gets faster and the budget lasts.

        One group at a time is put on the other side, joined with the next one, split, sent earlier,
        cut into another number of parts, or aggregated by another pattern.

        Args:
            thoroughly: change each group in every way, also in those that seldom help.
        """
        if start.candidate.in_flight_bytes is None:  # gates that were given, or none
            groups, limits = start.candidate.groups, (self.usual_bytes, *self._wide)
            gated = (self._scored(groups, limit) for limit in limits)
            as_fast = next((each for each in gated if each.step_s <= start.step_s), None)
            if as_fast is None:
                return start
            start = as_fast
        best = start
        while not self._budget.is_over:
            before = best
            best = self._one_pass(best, thoroughly)
            if not best.is_faster_than(before):
                break
        if best is start:
            return start
        return Scored(dataclasses.replace(best.candidate, name="improved"), best.step_s)

    def _one_pass(self, best: Scored, thoroughly: bool) -> Scored:
        """Every change of every group once, each kept if it helps; some only of some groups."""
        number = 0
        while number < len(best.candidate.groups) and not self._budget.is_over:
            best = self._changed(best, number, thoroughly or number % _SELDOM == 0)
            number += 1
        for value in self.limits:
            tried = self._scored(best.candidate.groups, value)
            if tried.is_faster_than(best):
                best = tried
        return best

    def _changed(self, best: Scored, number: int, in_every_way: bool) -> Scored:
        """One group changed in every way, also in those that seldom help if asked for."""
        for change in self._neighbours.changes:
            groups = best.candidate.groups
            if number >= len(groups):
                break
            luck = self._luck.setdefault(change.__name__, _Luck())
            # Changes of a kind that has seldom helped are made to some of the groups only.
            if luck.is_bad and not in_every_way:
                continue
            for changed in change(list(groups), number):
                tried = self._scored(changed, best.candidate.in_flight_bytes)
                luck.tried += 1
                if tried.is_faster_than(best):
                    luck.helped += 1
                    best = tried
                    break
        return best

    # Kicks

    def kicked(self, best: Scored, enough_s: float = 0.0) -> Scored:
        """A candidate changed at random places, as long as that helps and the budget lasts.

        For what no single change brings: two or three random changes at a time, which may make the
        step longer, and descent among the groups beside them; kept if the step is shorter than
        before (iterated local search).

        Args:
            enough_s: a step that need not get shorter.
        """
        if best.candidate.in_flight_bytes is None or not best.candidate.groups:
            return best
        # The same numbers in every search.
        chance, vain = random.Random(0), 0
        while vain < _VAIN_KICKS and best.step_s > enough_s and not self._budget.is_over:
            vain += 1
            groups, places = self._kick(best.candidate.groups, chance)
            tried = self._scored(groups, best.candidate.in_flight_bytes)
            if tried.step_s > _KICKED * best.step_s:
                continue
            # After every other kick also by changes that seldom help.
            tried = self._settled(tried, places, vain % 2 == 0)
            if tried.is_faster_than(best):
                best, vain = tried, 0
        return best

    def _kick(self, groups: Sequence[Group], chance: random.Random) -> tuple[list[Group], set[int]]:
        """A few random changes, and where they were made."""
        changed, places, kicks = list(groups), set(), _any_of(_KICKS, chance)
        for _ in range(_TRIES):
            if not kicks:
                break
            change = _any_of(self._neighbours.changes, chance)
            number = _any_of(range(len(changed)), chance)
            if found := list(change(changed, number)):
                changed = _any_of(found, chance)
                places.add(number)
                kicks -= 1
        return changed, places

    def _settled(self, best: Scored, places: set[int], in_every_way: bool) -> Scored:
        """Descent among the groups at some places and beside them, also by what seldom helps if
        asked for."""
        near = sorted({place + beside for place in places for beside in (-1, 0, 1)} - {-1})
        while not self._budget.is_over:
            before = best
            for number in near:
                best = self._changed(best, number, in_every_way=in_every_way)
            if best is before:
                break
        return best

    # Questions

    def other_sides(self, candidate: Candidate) -> dict[str, float]:
        """The step with each group on the other side; those whose side is fixed are left out."""
        if candidate.in_flight_bytes is None or not self._options.scheduling:
            return {}
        steps_s = {}
        for number, group in enumerate(candidate.groups):
            if self._budget.is_over:
                break
            for groups in self._neighbours.other_side(list(candidate.groups), number):
                changed = self._grouping.candidate("changed", groups, candidate.in_flight_bytes)
                steps_s[group.name] = self.score(changed).step_s
        return steps_s


def _any_of(values: Sequence[T], chance: random.Random) -> T:
    """One of them; `random` alone is promised to give the same numbers in every Python."""
    return values[int(chance.random() * len(values))]
