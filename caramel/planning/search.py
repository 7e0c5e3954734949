"""Which plan is predicted to be the fastest? A search by simulation.

It starts from the plain plan, the plan of the Caramel paper, and a family of its own: the gradients
that are ready first are deferred, just enough of them to fill the forward pass; all are joined up
to some size; and some bytes may be in flight at a time. The best of them is improved step by step:
one group at a time is put on the other side, joined with the next one, split, sent earlier, cut
into another number of parts, or aggregated by another pattern, as long as that makes the predicted
step shorter. Where one gradient dominates, all that is tried with it split, too, into as many parts
as the family likes best. As far as the budget lasts, the next best of the family, with other bytes
in flight, are improved as well: what is reached one change at a time depends on where one starts.
It gets further from few large groups, which can be split, than from many small ones, and a pass
over them takes less; so where to start, each group counts as if it made the step longer. Not with
every job: if the budget lasts, starts that are the fastest as they are come last.

It does not try everything. Steps are simulated with as few tasks as they take the same time with.
Members of the family that could not win if they took the least time possible are left out. Changes
of a kind that has seldom helped are only made to some of the groups, and to all of them in the end,
if the budget lasts.

The budget counts simulated tasks, not time, so that the same facts give the same plan everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from caramel.plan import Part
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.gates import IN_FLIGHT_BYTES
from caramel.planning.grouping import Grouping, Shape
from caramel.planning.neighbours import Neighbours
from caramel.planning.options import DEFAULT, Options
from caramel.planning.split import worthwhile_parts
from caramel.simulation.simulate import Prediction, simulate_groups

DEFERRED_SHARES = tuple(n / 10 for n in range(8))
NEAR_SHARES = tuple(n / 50 for n in range(-4, 5))
GROUP_BYTES = (0, 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
IN_FLIGHT = (IN_FLIGHT_BYTES, 4_000_000, 1_000_000, 8_000_000, 2_000_000, 25_000_000, 0)
"""In this order, as far as the budget lasts."""

_STARTS = 3  # limits of what is in flight
_FURTHER = 3  # improved plans that are told of
_WORTH = 1e-4  # of the step that a change must save to be made
_PER_GROUP = 5e-4  # of the step that a start must save for each group that it has more
_MANY = 24  # changes of one kind, of which some should have helped:
_HELPFUL = 0.02  # as a share of them; else
_SELDOM = 4  # only each so many-th group is changed that way
_SIMPLER = 5e-3  # of the step that a plan must save over one that changes less


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate and how long its step is predicted to take."""

    candidate: Candidate
    step_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found.

    Attributes:
        best: the candidate that is predicted to be the fastest.
        plain: the plain plan.
        others: further ones, of which each is the best of its kind, the fastest first.
        tasks: how many were simulated.
    """

    best: Scored
    plain: Scored
    others: tuple[Scored, ...]
    tasks: int


def search(
    outlook: Outlook,
    starts: Iterable[Candidate],
    *,
    deferrable: Callable[[frozenset[str]], str | None] = lambda parameters: None,
    options: Options = DEFAULT,
) -> Found:
    """The best plan that is found within the budget.

    Args:
        outlook: for predictions.
        starts: where to begin besides the plain plan and the family.
        deferrable: why the gradients of these parameters cannot be deferred together, or None.
        options: which optimizations may be used, which pattern, and how much may be simulated; then
            the best so far is taken.
    """
    budget = _Budget(options.budget_tasks)
    searchers: dict[tuple[Part, ...], _Searcher] = {}

    def searcher(parts: tuple[Part, ...] = ()) -> _Searcher:
        if parts not in searchers:
            grouping = Grouping(outlook, parts, deferrable, options)
            searchers[parts] = _Searcher(outlook, grouping, options, budget)
        return searchers[parts]

    def improved(start: Scored, *, thoroughly: bool = False) -> Scored:
        return searcher(start.candidate.parts).improved(start, thoroughly=thoroughly)

    def improve_rest(starts: Iterable[Scored]) -> None:
        for each in starts:
            if each not in done and not budget.is_over and not _is_good(found, outlook):
                found.append(improved(each))
                done.append(each)

    plain = searcher().score(Candidate("plain", outlook.plain.groups, ordered=False))
    given = [searcher(each.parts).score(each) for each in starts]
    family = searcher().family()
    shape, start = family[0]
    first = min([plain, *given, start], key=_start_s)
    found, done = [improved(first)], [first]
    others = [each for _, each in family]
    cuts = worthwhile_parts(outlook.plain, outlook.network.threshold_bytes)
    may_split = options.scheduling and options.batching and not budget.is_over
    if cuts and may_split and not _is_good(found, outlook):
        in_parts = [each for parts in cuts for _, each in searcher(parts).family(shape)]
        best = min(in_parts, key=_start_s)
        found.append(improved(best))
        done.append(best)
        others += [each for each in in_parts if each.candidate.parts == best.candidate.parts]
    improve_rest(sorted(others, key=_start_s))
    if not budget.is_over and not _is_good(found, outlook):
        finer = searcher().family(value=_step_s)
        improve_rest([each for _, each in finer])
    for each in sorted(found, key=_step_s)[:_FURTHER]:
        if not budget.is_over and not _is_good(found, outlook):
            found.append(improved(each, thoroughly=True))
    best = min(found, key=lambda s: s.step_s * (1 + _SIMPLER * bool(s.candidate.parts)))
    for simpler in (*given, plain):
        if simpler.step_s <= (1 + _SIMPLER) * best.step_s and simpler.candidate != best.candidate:
            best = simpler
    found = sorted(found, key=lambda each: each.step_s)[:_FURTHER]
    further = [e for e in dict.fromkeys((*found, start, *given)) if e not in (best, plain)]
    best, plain, *further = (_in_detail(each, outlook) for each in (best, plain, *further))
    return Found(best, plain, tuple(sorted(further, key=_step_s)), budget.spent)


def other_sides(
    candidate: Candidate,
    outlook: Outlook,
    *,
    deferrable: Callable[[frozenset[str]], str | None] = lambda parameters: None,
    options: Options = DEFAULT,
) -> dict[str, float]:
    """What the step would be, by the name of each group, if it was not deferred, or was.

    Groups that cannot be on the other side are left out, and all if the candidate was not searched.

    Args:
        candidate: what a search has found.
        outlook, deferrable: as of that search.
        options: likewise; of the budget a tenth is spent, and groups that it is not enough for are
            left out.
    """
    budget = _Budget(options.budget_tasks // 10)
    grouping = Grouping(outlook, candidate.parts, deferrable, options)
    return _Searcher(outlook, grouping, options, budget).other_sides(candidate)


def _in_detail(each: Scored, outlook: Outlook) -> Scored:
    """The same, predicted as whoever looks at the plan will: it differs by rounding."""
    return Scored(each.candidate, outlook.predict(each.candidate).step_s)


def _step_s(each: Scored) -> float:
    return each.step_s


def _start_s(each: Scored) -> float:
    """By which starts are compared at first: a step, longer by a little for each joined group."""
    groups = len(each.candidate.groups) - len(each.candidate.parts)
    return each.step_s * (1 + _PER_GROUP * groups)


def _is_good(found: Iterable[Scored], outlook: Outlook) -> bool:
    """Whether too little is left to be gained to go on."""
    return min(each.step_s for each in found) <= (1 + _SIMPLER) * outlook.least_s


@dataclass(slots=True)
class _Budget:
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


class _Searcher:
    """Searches among plans with the same parts of gradients."""

    def __init__(
        self, outlook: Outlook, grouping: Grouping, options: Options, budget: _Budget
    ) -> None:
        self._outlook, self._options, self._budget = outlook, options, budget
        self._least_s = outlook.least_s
        self._grouping = grouping
        self._neighbours = Neighbours(grouping, options, outlook.network.costs)
        self._known: dict[tuple[object, ...], float] = {}
        self._luck: dict[str, _Luck] = {}

    # Scores

    def score(self, candidate: Candidate) -> Scored:
        """Predict a candidate."""
        key = (candidate.groups, candidate.gates, candidate.ordered)
        if key not in self._known:
            prediction = self._predict(candidate)
            self._known[key] = prediction.step_s
        return Scored(candidate, self._known[key])

    def _predict(self, candidate: Candidate) -> Prediction:
        prediction = simulate_groups(
            candidate.groups,
            candidate.gates,
            self._grouping.sizes,
            self._outlook.workload(candidate.ordered),
            self._outlook.hardware,
            detailed=False,
        )
        self._budget.spent += prediction.tasks
        return prediction

    @property
    def _is_over(self) -> bool:
        return self._budget.is_over

    # The family

    def family(
        self, start: Shape | None = None, *, value: Callable[[Scored], float] = _start_s
    ) -> list[tuple[Shape, Scored]]:
        """The best of the family for several limits of what is in flight, the fastest first.

        Args:
            start: what was the best with other parts; the sizes of groups are those.
            value: by what members of the family are compared; the least is the best.
        """
        options = self._options
        sizes = (2_000_000, 1_000_000) if options.batching else (0, 0)
        first = start or Shape(0.0, *sizes, options.gated_bytes)
        if not options.scheduling:
            return [self._fitted(self._best_of([first], value), value, sized=start is None)]
        by_limit: list[tuple[Shape, Scored]] = []
        for limit in self._limits:
            shapes = [
                dataclasses.replace(first, in_flight_bytes=limit, deferred_share=share)
                for share in DEFERRED_SHARES
            ]
            if not (by_limit and self._is_over):
                by_limit.append(self._best_of(shapes, value))
        by_limit.sort(key=lambda each: value(each[1]))
        fitted = [self._fitted(each, value, sized=start is None) for each in by_limit[:_STARTS]]
        return sorted(fitted, key=lambda each: value(each[1]))

    def _fitted(
        self, found: tuple[Shape, Scored], value: Callable[[Scored], float], *, sized: bool
    ) -> tuple[Shape, Scored]:
        """A member of the family with the best sizes of groups, if asked for, and share."""
        if self._options.batching and sized:
            shape = found[0]
            tried = [dataclasses.replace(shape, in_step_bytes=size) for size in GROUP_BYTES]
            shape, _ = found = self._best_of(tried, value, found)
            tried = [dataclasses.replace(shape, deferred_bytes=size) for size in GROUP_BYTES]
            found = self._best_of(tried, value, found)
        if self._options.scheduling:
            shape = found[0]
            shares = [shape.deferred_share + near for near in NEAR_SHARES]
            tried = [dataclasses.replace(shape, deferred_share=share) for share in shares]
            found = self._best_of(tried, value, found)
        return found

    def _best_of(
        self,
        shapes: Iterable[Shape],
        value: Callable[[Scored], float],
        best: tuple[Shape, Scored] | None = None,
    ) -> tuple[Shape, Scored]:
        """The best of some members of the family, and of the best so far."""
        for shape in shapes:
            if best is not None and self._is_over:
                break
            candidate = self._grouping.shaped(shape)
            if best is not None:
                least = Scored(candidate, self._least_s)
                if value(least) >= value(best[1]) * (1 - _WORTH):
                    continue
            tried = self.score(candidate)
            if best is None or value(tried) < value(best[1]) * (1 - _WORTH):
                best = shape, tried
        assert best is not None
        return best

    @property
    def _limits(self) -> tuple[int, ...]:
        """Bytes in flight that may be tried."""
        given = self._options.in_flight_bytes
        return IN_FLIGHT if given is None else (given,)

    # Improvement

    def improved(self, start: Scored, *, thoroughly: bool = False) -> Scored:
        """A candidate changed step by step, as long as it gets faster and the budget lasts.

        Args:
            thoroughly: change each group in every way, also in those that seldom help.
        """
        if start.candidate.in_flight_bytes is None:  # gates that were given, or none
            in_flight = self._options.gated_bytes
            groups = start.candidate.groups
            gated = self.score(self._grouping.candidate("improved", groups, in_flight))
            if gated.step_s > start.step_s:
                return start
            start = gated
        best = start
        while not self._is_over:
            before_s = best.step_s
            best = self._one_pass(best, thoroughly)
            if best.step_s > before_s * (1 - _WORTH):
                break
        if best is start:
            return start
        return Scored(dataclasses.replace(best.candidate, name="improved"), best.step_s)

    def _one_pass(self, best: Scored, thoroughly: bool) -> Scored:
        """Every change of every group once, each kept if it helps; some only of some groups."""
        in_flight = best.candidate.in_flight_bytes
        assert in_flight is not None
        number = 0
        while number < len(best.candidate.groups) and not self._is_over:
            for change in self._neighbours.changes:
                groups = list(best.candidate.groups)
                if number >= len(groups):
                    break
                luck = self._luck.setdefault(change.__name__, _Luck())
                if luck.is_bad and number % _SELDOM and not thoroughly:
                    continue
                for changed in change(groups, number):
                    tried = self.score(self._grouping.candidate("improved", changed, in_flight))
                    luck.tried += 1
                    if tried.step_s < best.step_s * (1 - _WORTH):
                        luck.helped += 1
                        best = tried
                        break
            number += 1
        for value in self._limits:
            tried = self.score(self._grouping.candidate("improved", best.candidate.groups, value))
            if tried.step_s < best.step_s * (1 - _WORTH):
                best = tried
        return best

    def other_sides(self, candidate: Candidate) -> dict[str, float]:
        """The step with each group on the other side; those whose side is fixed are left out."""
        if candidate.in_flight_bytes is None or not self._options.scheduling:
            return {}
        steps_s = {}
        for number, group in enumerate(candidate.groups):
            if self._is_over:
                break
            for groups in self._neighbours.other_side(list(candidate.groups), number):
                changed = self._grouping.candidate("changed", groups, candidate.in_flight_bytes)
                steps_s[group.name] = self.score(changed).step_s
        return steps_s
