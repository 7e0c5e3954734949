"""Plans are improved by changes, one after the other, and by kicks where none helps any more."""

from __future__ import annotations

import random

import pytest

from caramel.planning.candidate import Candidate
from caramel.planning.options import Options
from caramel.planning.search.descent import _VAIN_KICKS, Budget, Improver, _Luck
from caramel.planning.search.grouping import Grouping
from caramel.planning.search.search import _start_s, search
from caramel.planning.search.starts import Family
from tests.support.search_jobs import MB, outlook_of


def improver_of(outlook, budget_tasks=10**9, **options):
    """What improves plans of a job, and the family of its plans."""
    options = Options(**options)
    grouping = Grouping(outlook, (), lambda parameters: None, options)
    budget = Budget(budget_tasks)
    improver = Improver(outlook, grouping, options, budget)
    return improver, Family(improver, grouping, outlook.least_s, options, budget)


def test_steps_are_simulated_with_few_tasks():
    outlook = outlook_of([MB // 20] * 200, [0.001] * 200)
    improver, family = improver_of(outlook)
    joined = family.best(_start_s)[0][1]
    assert len(joined.candidate.groups) < 20
    improver._known.clear()
    before = improver._budget.spent
    step_s = improver.score(joined.candidate).step_s
    detailed = outlook.predict(joined.candidate)
    assert improver._budget.spent - before < 0.5 * detailed.tasks
    assert step_s == pytest.approx(detailed.step_s, rel=1e-9)


def test_members_of_the_family_that_cannot_win_are_left_out():
    outlook = outlook_of([MB // 20] * 200, [0.001] * 200)
    (_, short), (_, long) = improver_of(outlook), improver_of(outlook)
    long._least_s = 0.0  # as if any of them could
    assert short.best(_start_s) == long.best(_start_s)
    assert short._budget.spent < 0.9 * long._budget.spent


def test_changes_of_a_kind_that_seldom_helps_are_made_to_some_groups_only():
    assert not _Luck(tried=23).is_bad
    assert _Luck(tried=24).is_bad
    assert _Luck(tried=1000, helped=19).is_bad
    assert not _Luck(tried=1000, helped=20).is_bad
    outlook = outlook_of([MB] * 12, [0.02] * 12, rate=60 * MB)
    spent = []
    for thoroughly in (False, True):
        improver, family = improver_of(outlook)
        start = family.best(_start_s)[0][1]
        before = improver._budget.spent
        for change in improver._neighbours.changes:
            improver._luck[change.__name__] = _Luck(tried=10**6)
        improver._one_pass(start, thoroughly)
        spent.append(improver._budget.spent - before)
    assert 0 < spent[0] < 0.5 * spent[1]


def irregular(seed, layers=24, workers=4):
    """A job of layers that differ, whose wire and computation take about as long."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 60) * MB // 10 for _ in range(layers)]
    seconds = [draw.randint(1, 30) / 1000 for _ in range(layers)]
    rate = 1.5 * sum(sizes) / (3 * sum(seconds))
    return outlook_of(sizes, seconds, rate=rate, workers=workers)


def descended(improver, family):
    """A plan that no single change makes better."""
    return improver.improved(family.best(_start_s)[0][1], thoroughly=True)


@pytest.mark.slow
def test_kicks_find_what_no_single_change_does():
    """In three of the first ten of such jobs; here are two of these, and one of the others."""
    gains = []
    for seed in (1, 2, 8):
        improver, family = improver_of(irregular(seed, layers=10), budget_tasks=150_000)
        best = descended(improver, family)
        kicked = improver.kicked(best)
        assert improver.score(kicked.candidate) == kicked
        gains.append(best.step_s / kicked.step_s - 1)
    assert min(gains) >= 0
    assert sum(gain > 1e-3 for gain in gains) >= 2


@pytest.mark.slow
def test_a_search_ends_with_kicks_of_the_best(monkeypatch):
    outlook, options = irregular(1), Options(budget_tasks=150_000)
    with_kicks = search(outlook, [], options=options).best.step_s
    monkeypatch.setattr(Improver, "kicked", lambda own, best, enough_s: best)
    assert with_kicks < search(outlook, [], options=options).best.step_s * 0.99


def test_kicks_end_where_they_bring_nothing():
    """All plans of so few gradients are soon known, and to look at them costs nothing."""
    improver, family = improver_of(outlook_of([MB, 2 * MB], [0.02] * 2, rate=60 * MB))
    kicks, kick = [], improver._kick
    improver._kick = lambda *given: kicks.append(given) or kick(*given)
    best = descended(improver, family)
    assert improver.kicked(best) == best
    assert len(kicks) == _VAIN_KICKS


def test_kicks_end_when_the_step_is_short_enough():
    improver, family = improver_of(irregular(0, layers=8))
    best = descended(improver, family)
    assert improver.kicked(best, enough_s=best.step_s) == best


def test_plans_without_gates_of_the_search_are_not_kicked():
    outlook = outlook_of([MB] * 4, [0.02] * 4, rate=60 * MB)
    improver, _ = improver_of(outlook)
    plain = improver.score(Candidate("plain", outlook.plain.decision.groups, ordered=False))
    assert improver.kicked(plain) is plain


def test_in_the_end_the_best_is_changed_in_every_way(monkeypatch):
    kinds, improved = [], Improver.improved

    def noted(own, start, *, thoroughly=False):
        kinds.append(thoroughly)
        return improved(own, start, thoroughly=thoroughly)

    monkeypatch.setattr(Improver, "improved", noted)
    outlook = outlook_of([MB, MB, 4 * MB], [0.02] * 3, rate=60 * MB)
    search(outlook, [], options=Options(budget_tasks=40_000))
    assert kinds == sorted(kinds)
    assert kinds[-1]
