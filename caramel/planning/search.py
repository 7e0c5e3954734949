"""Which plan is predicted to be the fastest? A search by simulation.

It starts from the plain plan, the plan of the Caramel paper, and a family of its own
(`caramel.planning.family`), and improves the best of them (`caramel.planning.improve`). Where one
gradient dominates, all that is tried with it split, too, into as many parts as the family likes
best. For a share of the budget, the next best of the family, with other bytes in flight, are
improved as well: what is reached one change at a time depends on where one starts. It gets further
from few large groups, which can be split, than from many small ones, and a pass over them takes
less; so where to start, each group counts as if it made the step longer. Not with every job: starts
that are the fastest as they are come last. What is left of the budget is for kicks of the best.

The budget counts simulated tasks, not time, so that the same facts give the same plan everywhere.
Steps are simulated with as few tasks as they take the same time with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from caramel.plan import Part
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.family import Family
from caramel.planning.grouping import Grouping
from caramel.planning.improve import Budget, Improver, Scored
from caramel.planning.options import DEFAULT, Options
from caramel.planning.split import worthwhile_parts

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
    budget = Budget(options.budget_tasks)
    tools: dict[tuple[Part, ...], tuple[Improver, Family]] = {}

    def tool(parts: tuple[Part, ...] = ()) -> tuple[Improver, Family]:
        if parts not in tools:
            grouping = Grouping(outlook, parts, deferrable, options)
            improver = Improver(outlook, grouping, options, budget)
            family = Family(improver, grouping, outlook.least_s, options, budget)
            tools[parts] = improver, family
        return tools[parts]

    def improver(each: Candidate) -> Improver:
        return tool(each.parts)[0]

    def is_good() -> bool:
        """Whether too little is left to be gained to go on."""
        return min(each.step_s for each in found) <= enough_s

    def may_descend() -> bool:
        return budget.spent < _DESCENTS * budget.tasks and not is_good()

    def improve_rest(starts: Iterable[Scored]) -> None:
        for each in starts:
            if each not in done and may_descend():
                found.append(improver(each.candidate).improved(each))
                done.append(each)

    enough_s = (1 + _SIMPLER) * outlook.least_s
    unplanned = Candidate("plain", outlook.plain.groups, ordered=False)
    plain, *given = (improver(each).score(each) for each in (unplanned, *starts))
    family = tool()[1].best(_start_s)
    shape, start = family[0]
    first = min([plain, *given, start], key=_start_s)
    found, done = [improver(first.candidate).improved(first)], [first]
    others = [each for _, each in family]
    cuts = worthwhile_parts(outlook.plain, outlook.network.threshold_bytes)
    may_split = options.scheduling and options.batching and not budget.is_over
    if cuts and may_split and not is_good():
        in_parts = [each for parts in cuts for _, each in tool(parts)[1].best(_start_s, shape)]
        best = min(in_parts, key=_start_s)
        found.append(improver(best.candidate).improved(best))
        done.append(best)
        others += [each for each in in_parts if each.candidate.parts == best.candidate.parts]
    improve_rest(sorted(others, key=_start_s))
    if may_descend():
        improve_rest([each for _, each in tool()[1].best(_step_s)])
    best = min(found, key=lambda s: s.step_s * (1 + _SIMPLER * bool(s.candidate.parts)))
    if not is_good():
        best = improver(best.candidate).improved(best, thoroughly=True)
        best = improver(best.candidate).kicked(best, enough_s)
        found.append(best)
    for simpler in (*given, plain):
        if simpler.step_s <= (1 + _SIMPLER) * best.step_s and simpler.candidate != best.candidate:
            best = simpler
    found = sorted(found, key=_step_s)[:_FURTHER]
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
    budget = Budget(options.budget_tasks // 10)
    grouping = Grouping(outlook, candidate.parts, deferrable, options)
    return Improver(outlook, grouping, options, budget).other_sides(candidate)


def _in_detail(each: Scored, outlook: Outlook) -> Scored:
    """The same, predicted as whoever looks at the plan will: it differs by rounding."""
    return Scored(each.candidate, outlook.predict(each.candidate).step_s)


def _step_s(each: Scored) -> float:
    return each.step_s


def _start_s(each: Scored) -> float:
    """By which starts are compared at first: a step, longer by a little for each joined group."""
    groups = len(each.candidate.groups) - len(each.candidate.parts)
    return each.step_s * (1 + _PER_GROUP * groups)
