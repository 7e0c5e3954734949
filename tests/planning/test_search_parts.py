"""The search splits gradients where that makes the step shorter."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.time_facts import TimingTable
from caramel.planning.candidate import Candidate
from caramel.planning.options import Options
from caramel.planning.search.search import search
from caramel.planning.search.split import split_gradients
from caramel.simulation.hardware import hardware_of
from tests.support.search_jobs import MB, outlook_of

DOMINATED = ([MB, MB, 2 * MB, 24 * MB, MB], [0.1, 0.08, 0.06, 0.01, 0.01])


@pytest.fixture(name="dominated", scope="module")
def fixture_dominated():
    """What is known of a job with one large gradient, and what a search finds."""
    outlook = outlook_of(*DOMINATED, rate=37 * MB)
    return outlook, search(outlook, [], options=Options(budget_tasks=100_000))


def test_a_gradient_that_dominates_is_split_and_some_of_its_parts_are_deferred(dominated):
    outlook, found = dominated
    best = found.best.candidate
    names = {part.name for part in best.parts if part.parameter == "p3"}
    parts = [group for group in best.groups if not names.isdisjoint(group.members)]
    assert 0 < sum(group.deferred for group in parts) < len(parts) == len(names)
    assert "p3" in best.deferred
    whole = min(each.step_s for each in found.others if not each.candidate.parts)
    assert found.best.step_s < 0.95 * whole < found.plain.step_s
    assert found.best.step_s == outlook.predict(best).step_s


def test_a_plan_with_parts_that_is_given_is_a_start_like_others(dominated):
    outlook, best = dominated[0], dominated[1].best
    given = dataclasses.replace(best.candidate, name="given", in_flight_bytes=None)
    found = search(outlook, [given], options=Options(budget_tasks=1))
    assert found.best.step_s <= best.step_s * 1.005


@pytest.mark.slow
def test_few_alike_layers_are_not_split_into_more_parts_than_help():
    outlook = outlook_of([4 * MB] * 6, [0.01] * 6, rate=129 * MB)
    with_messages = hardware_of(outlook.network, TimingTable({}))
    outlook = dataclasses.replace(outlook, hardware=with_messages)
    found = search(outlook, [], options=Options(budget_tasks=200_000))
    assert 0 < len(found.best.candidate.parts) <= 4 * 6


@pytest.mark.parametrize(
    "sizes",
    [[MB] * 8, [4000, 4000, 24000]],
    ids=["none dominates", "latency is all that counts"],
)
def test_gradients_are_not_split_where_that_brings_nothing(sizes):
    outlook = outlook_of(sizes, [0.02] * len(sizes), rate=30 * MB)
    found = search(outlook, [])
    assert not any(each.candidate.parts for each in (found.best, *found.others))


@pytest.mark.parametrize("option", ["scheduling", "batching"])
def test_gradients_are_not_split_if_that_is_off(option):
    outlook = outlook_of(*DOMINATED, rate=37 * MB)
    found = search(outlook, [], options=Options(**{option: False}))
    assert not any(each.candidate.parts for each in (found.best, *found.others))


def test_a_gradient_that_must_not_be_deferred_is_not_deferred_in_part():
    outlook = outlook_of(*DOMINATED, rate=37 * MB)

    def refusal(parameters):
        return "no" if "p3" in parameters else None

    found = search(outlook, [], deferrable=refusal, options=Options(budget_tasks=50_000))
    assert "p3" not in found.best.candidate.deferred


def test_an_update_waits_until_all_parts_have_arrived_and_are_joined():
    outlook = outlook_of([8 * MB], [0.1], rate=80 * MB)
    plain = split_gradients(outlook.plain, 4 * MB)
    first, second = plain.decision.groups
    for groups, deferred in (
        ((first, second), 0),
        ((dataclasses.replace(first, deferred=True), second), 1),
        (tuple(dataclasses.replace(g, deferred=True) for g in plain.decision.groups), 2),
    ):
        candidate = Candidate("tried", groups, parts=plain.decision.parts)
        prediction = outlook.predict(candidate)
        hardware = outlook.hardware
        joined_s = hardware.copy_s_per_byte * 8 * MB
        times = prediction.groups
        before = [times[g.name].end_s for g in groups if g.deferred]
        after = [times[g.name].end_s for g in groups if not g.deferred]
        forward_s = max(before) + joined_s if before else 0.0
        assert deferred == len(before)
        ready_s = forward_s + 0.3
        in_step_s = max(after, default=ready_s) + (joined_s if not before else 0.0)
        assert prediction.step_s == pytest.approx(max(ready_s, in_step_s))
        assert all(times[g.name].begin_s >= ready_s - 1e-9 for g in groups if not g.deferred)
