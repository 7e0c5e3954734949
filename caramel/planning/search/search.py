"""Which plan is predicted to be the fastest? A search by simulation.

It starts from the plain plan, the plan of the Caramel paper, and a family of its own (`starts`),
and improves the best of them (`descent`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from caramel.core.decision import Part
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.options import DEFAULT, Options
from caramel.planning.search.descent import Budget, Improver, Scored
from caramel.planning.search.grouping import Grouping
from caramel.planning.search.split import worthwhile_parts
from caramel.planning.search.starts import Family

_FURTHER = 3  # improved plans that are told of
_DESCENTS = 0.5  # of the budget
_PER_GROUP = 5e-4  # of the step that a start must save for each group that it has more
_SIMPLER = 5e-3  # of the step that a plan must save over one that changes less


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
    unplanned = Candidate("plain", outlook.plain.decision.groups, ordered=False)
    run = _Search(outlook, deferrable, options)
    plain, *given = (run.improver(each).score(each) for each in (unplanned, *starts))
    start = run.from_family([plain, *given])
    run.from_finer_starts()
    run.kick_the_best()
    best, found = run.best, sorted(run.found, key=_step_s)[:_FURTHER]
    best = _simplest([best, *given, plain])
    further = [e for e in dict.fromkeys((*found, start, *given)) if e not in (best, plain)]
    best, plain, *further = (_in_detail(each, outlook) for each in (best, plain, *further))
    return Found(best, plain, tuple(sorted(further, key=_step_s)), run.budget.spent)


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
    budget = Budget(options.budget_tasks // 10)
    grouping = Grouping(outlook, candidate.parts, deferrable, options)
    return Improver(outlook, grouping, options, budget).other_sides(candidate)


class _Search:
    """A search under way.

    Attributes:
        budget: of all that is simulated: tasks, not time, so that the same facts give the same plan
            everywhere.
        found: what improvements have led to.
    """

    def __init__(
        self,
        outlook: Outlook,
        deferrable: Callable[[frozenset[str]], str | None],
        options: Options,
    ) -> None:
        self._outlook, self._deferrable, self._options = outlook, deferrable, options
        self._enough_s = (1 + _SIMPLER) * outlook.least_s
        self._tools: dict[tuple[Part, ...], tuple[Improver, Family]] = {}
        self._done: list[Scored] = []
        self.budget = Budget(options.budget_tasks)
        self.found: list[Scored] = []

    def _tools_for(self, parts: tuple[Part, ...]) -> tuple[Improver, Family]:
        if parts not in self._tools:
            outlook, options = self._outlook, self._options
            grouping = Grouping(outlook, parts, self._deferrable, options)
            improver = Improver(outlook, grouping, options, self.budget)
            family = Family(improver, grouping, outlook.least_s, options, self.budget)
            self._tools[parts] = improver, family
        return self._tools[parts]

    def improver(self, candidate: Candidate) -> Improver:
        """What predicts and improves a candidate."""
        return self._tools_for(candidate.parts)[0]

    def _family(self, parts: tuple[Part, ...] = ()) -> Family:
        return self._tools_for(parts)[1]

    @property
    def best(self) -> Scored:
        """The best so far; one with parts of gradients has to be better than others by a little."""
        return min(self.found, key=lambda s: s.step_s * (1 + _SIMPLER * bool(s.candidate.parts)))

    @property
    def _is_good(self) -> bool:
        """Whether too little is left to be gained to go on."""
        return min(each.step_s for each in self.found) <= self._enough_s

    @property
    def _may_descend(self) -> bool:
        return self.budget.spent < _DESCENTS * self.budget.tasks and not self._is_good

    def from_family(self, given: Sequence[Scored]) -> Scored:
        """Improve the best of the family, or of what was given, without parts of gradients and
        with them, and what comes next; returns the best member of the family."""
        family = self._family().best(_start_s)
        shape, start = family[0]
        self._improve(min([*given, start], key=_start_s))
        others = [each for _, each in family]
        # Where one gradient dominates, all is tried with it split, too, into as many parts as the
        # family likes best.
        cuts = worthwhile_parts(self._outlook.plain, self._outlook.network.threshold_bytes)
        may_split = self._options.scheduling and self._options.batching
        if cuts and may_split and not self.budget.is_over and not self._is_good:
            in_parts = [s for parts in cuts for _, s in self._family(parts).best(_start_s, shape)]
            first = min(in_parts, key=_start_s)
            self._improve(first)
            others += [each for each in in_parts if each.candidate.parts == first.candidate.parts]
        # What is reached one change at a time depends on where one starts.
        self._improve_rest(sorted(others, key=_start_s))
        return start

    def from_finer_starts(self) -> None:
        """Improve members of the family that are the fastest as they are.

        Few large groups are not the better start for every job.
        """
        if self._may_descend:
            self._improve_rest([each for _, each in self._family().best(_step_s)])

    def kick_the_best(self) -> None:
        """Improve the best further, with all that is left of the budget."""
        if not self._is_good:
            best = self.improver(self.best.candidate).improved(self.best, thoroughly=True)
            self.found.append(self.improver(best.candidate).kicked(best, self._enough_s))

    def _improve(self, start: Scored) -> None:
        self.found.append(self.improver(start.candidate).improved(start))
        self._done.append(start)

    def _improve_rest(self, starts: Iterable[Scored]) -> None:
        for each in starts:
            if each not in self._done and self._may_descend:
                self._improve(each)


def _simplest(plans: Sequence[Scored]) -> Scored:
    """The last plan that is nearly as fast as the first; each changes less than those before it."""
    enough_s = (1 + _SIMPLER) * plans[0].step_s
    return [each for each in plans if each.step_s <= enough_s][-1]


def _in_detail(each: Scored, outlook: Outlook) -> Scored:
    """The same, predicted as whoever looks at the plan will: it differs by rounding."""
    return Scored(each.candidate, outlook.predict(each.candidate).step_s)


def _step_s(each: Scored) -> float:
    return each.step_s


def _start_s(each: Scored) -> float:
    """By which starts are compared at first: a step, longer by a little for each joined group.

    A search gets further from few large groups, which can be split, than from many small ones, and
    a pass over them takes less.
    """
    groups = len(each.candidate.groups) - len(each.candidate.parts)
    return each.step_s * (1 + _PER_GROUP * groups)
