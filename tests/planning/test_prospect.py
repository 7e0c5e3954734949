"""What a search can bring at most is told before it is made."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.planning import prospect
from caramel.planning.candidate import Candidate
from caramel.planning.options import Options
from caramel.planning.prospect import prospect_of
from caramel.planning.search.search import search
from tests.support.search_jobs import MB, outlook_of

PLAIN = Options(factors=False)


def plain_s(outlook):
    plain = Candidate("plain", outlook.plain.decision.groups, ordered=False)
    return outlook.predict(plain).step_s


@pytest.mark.parametrize("rate", [20 * MB, 100 * MB, 10_000 * MB])
def test_no_search_saves_more(rate):
    outlook = outlook_of([MB, MB, 4 * MB, 8 * MB], [0.02] * 4, rate=rate)
    found = search(outlook, [])
    most_s = prospect_of(outlook, PLAIN).saved_s
    gain_s = found.plain.step_s - found.best.step_s
    if rate < 10_000 * MB:
        assert most_s == pytest.approx(plain_s(outlook) - outlook.least_s)
        assert gain_s <= most_s * (1 + 1e-9)
    else:  # not worth it
        assert most_s == 0.0
        assert gain_s < 0.02 * found.plain.step_s


def test_with_factors_only_computation_bounds_a_step(monkeypatch):
    outlook = outlook_of([8 * MB, 8 * MB], [0.02] * 2, rate=20 * MB)
    monkeypatch.setattr(prospect, "worthwhile_factors", lambda _: ["p0"])
    assert outlook.least_s > outlook.free.computation_s
    most_s = prospect_of(outlook, Options()).saved_s
    assert most_s == pytest.approx(plain_s(outlook) - outlook.free.computation_s)


def test_a_search_takes_no_longer_than_its_budget(monkeypatch):
    """By a clock on which each prediction takes a second."""
    outlook = outlook_of([MB] * 4, [0.02] * 4)
    tasks = outlook.predict(Candidate("plain", outlook.plain.decision.groups)).tasks
    ticks = iter(range(100))
    monkeypatch.setattr(prospect.time, "perf_counter", lambda: next(ticks))
    few = dataclasses.replace(PLAIN, budget_tasks=50 * tasks)
    assert prospect_of(outlook, few).pause_s == pytest.approx(2 * 50)
    assert prospect_of(outlook, PLAIN).pause_s == pytest.approx(2 * 2500)
