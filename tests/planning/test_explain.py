"""What bounds a step and what would help, worked out by hand or by searches of one's own."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.analyzers.workload import Update
from caramel.core.decision import Gate
from caramel.core.names import in_group
from caramel.core.time_facts import Link
from caramel.core.timeline import Span, Timeline
from caramel.planning.candidate import Outlook
from caramel.planning.options import Options
from caramel.planning.search.search import search
from caramel.planning.what_if.explain import _UNPLANNED, explain
from caramel.simulation.network_model import assumed_network
from tests.support.search_jobs import MB, layered, outlook_of, plain_of
from tests.support.simulations import PATTERNS, hosts

RATE = 4000.0  # bytes per second
QUICK = Options(budget_tasks=2_000)


def free_outlook(sizes, seconds):
    """Nothing but computation and wires takes time."""
    plain, workload = plain_of(sizes), layered(seconds)
    network = assumed_network(2, RATE, 0.0)
    return Outlook(plain, network, hosts(2, RATE), workload, workload)


def explained(outlook, plan=None, **options):
    return explain(plan or outlook.plain, outlook, **options)


def best_plan(outlook, *, budget_tasks=20_000, **options):
    found = search(outlook, [], options=Options(budget_tasks=budget_tasks), **options)
    found = found.best.candidate
    return outlook.plain.deciding(groups=found.groups, gates=found.gates, parts=found.parts)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", QUICK)


def texts(limits):
    return {each.sentence: each.seconds for each in limits}


# One layer: 1 s forward, 2 s backward, then 1 s on the wire in two rounds ------------------------


@pytest.fixture(name="one_layer")
def fixture_one_layer():
    return explained(free_outlook([4000], [1.0]))


def test_a_group_that_nobody_has_planned_says_so_and_no_other(monkeypatch):
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=200))
    outlook = free_outlook([4000, 4000], [1.0, 1.0])
    assert {g.reason for g in explained(outlook).groups} == {_UNPLANNED}
    first, other = outlook.plain.decision.groups
    for given in (
        (dataclasses.replace(first, deferred=True),),
        (dataclasses.replace(first, depth=2),),
    ):
        plan = outlook.plain.deciding(groups=(*given, other))
        reasons = {g.name: g.reason for g in explained(outlook, plan).groups}
        assert reasons == {first.name: "", other.name: _UNPLANNED}
    gated = outlook.plain.deciding(gates=(Gate(first.name, other.name),))
    reasons = {g.name: g.reason for g in explained(outlook, gated).groups}
    assert reasons == {first.name: "", other.name: _UNPLANNED}


def test_the_figures_of_the_step_are_those_of_the_paper(one_layer):
    assert one_layer.step_s == pytest.approx(4.0)
    assert one_layer.computation_s == pytest.approx(3.0)
    assert one_layer.wire_limit_s == pytest.approx(1.0)
    assert one_layer.rho == pytest.approx(1 / 3)
    assert one_layer.alpha == pytest.approx(0.0)
    assert one_layer.utilisation == pytest.approx(0.75)
    assert one_layer.limited_by == "computation"
    assert "would save 3.000 s; the step takes 1.33 times" in one_layer.why


def test_what_stands_still_is_told_with_its_time(one_layer):
    assert texts(one_layer.limits) == {
        "nothing is on the wire before the first gradient is complete": pytest.approx(3.0),
        "transfers go on after the backward pass": pytest.approx(1.0),
    }


def test_changes_have_the_step_that_they_would_bring(one_layer):
    found = {each.change: (each.step_s, each.speedup, each.note) for each in one_layer.what_if}
    examples = "times as many examples in a batch"
    assert found == {
        "twice the bandwidth": (pytest.approx(3.5), pytest.approx(4 / 3.5), ""),
        "ten times the bandwidth": (pytest.approx(3.1), pytest.approx(4 / 3.1), ""),
        "a device that computes twice as fast": (pytest.approx(2.5), pytest.approx(1.6), ""),
        f"2 {examples}": (pytest.approx(7.0), pytest.approx(2 * 4 / 7), ""),
        f"4 {examples}": (pytest.approx(13.0), pytest.approx(4 * 4 / 13), ""),
        f"8 {examples}": (pytest.approx(25.0), pytest.approx(8 * 4 / 25), ""),
        f"16 {examples}": (pytest.approx(49.0), pytest.approx(16 * 4 / 49), ""),
    }


def test_the_batch_that_hides_the_wire_is_found():
    """The last layer has 3 s on the wire and 2 s of backward pass behind it, with more examples
    4 s."""
    found = explained(free_outlook([4, 12_000], [1.0, 1.0]))
    (examples,) = [each for each in found.what_if if "examples" in each.change]
    assert examples.change == "2 times as many examples in a batch"
    assert examples.step_s == pytest.approx(12.0, abs=0.01)
    assert examples.note == "the wire is hidden entirely"


# What is in the way ------------------------------------------------------------------------------

SIZES, SECONDS = [MB, MB, 4 * MB, 8 * MB], [0.02] * 4
NAMES = frozenset(f"p{number}" for number in range(4))


def test_what_waits_for_all_gradients_costs_what_a_search_without_it_saves():
    updates = [Update(f"{name}/clipped", 0.0, NAMES, NAMES, frozenset([name])) for name in NAMES]
    bound = outlook_of(SIZES, SECONDS, rate=60 * MB, updates=sorted(updates, key=lambda u: u.name))
    free = outlook_of(SIZES, SECONDS, rate=60 * MB)

    def alone(names):
        return None if names == NAMES else "all or none"

    tied = search(bound, [], deferrable=alone, options=QUICK).best.step_s
    saved_s = tied - search(free, [], options=QUICK).best.step_s
    plan = best_plan(bound, deferrable=alone)
    limits = texts(explained(bound, plan, deferrable=alone).limits)
    (sentence,) = [each for each in limits if each.startswith("every update waits")]
    assert "as 'p0/clipped' does: global-norm clipping" in sentence
    assert limits[sentence] == pytest.approx(saved_s, rel=0.02)
    assert saved_s > 0.01


def test_gradients_that_cannot_be_deferred_are_named_with_the_reason():
    outlook = outlook_of(SIZES, SECONDS, rate=60 * MB)

    def never(names):
        return "it is counted"

    fixed_s = search(outlook, [], deferrable=never, options=QUICK).best.step_s
    saved_s = fixed_s - search(outlook, [], options=QUICK).best.step_s
    for plan in (outlook.plain, best_plan(outlook, deferrable=never)):
        limits = texts(explained(outlook, plan, deferrable=never).limits)
        (sentence,) = [each for each in limits if "cannot be deferred" in each]
        assert sentence == "'p0' (and 3 more) cannot be deferred: it is counted"
        # Whatever plan is explained: what planning brings is not counted.
        assert limits[sentence] == pytest.approx(saved_s, rel=0.02)


def test_what_planning_brings_is_not_taken_for_what_a_change_brings():
    outlook = outlook_of(SIZES, SECONDS, rate=60 * MB)
    planned_s = search(outlook, [], options=QUICK).best.step_s
    found = explained(outlook)
    assert found.step_s > 1.1 * planned_s
    for each in found.what_if:
        if "examples" not in each.change:
            assert each.speedup == pytest.approx(planned_s / each.step_s, rel=0.02)


def test_links_that_differ_all_get_faster():
    outlook = outlook_of(SIZES, SECONDS, rate=60 * MB)
    slow = dataclasses.replace(
        outlook.hardware,
        latency_s=dict.fromkeys(PATTERNS, 1e-4),
        links=assumed_links(2, 6 * MB),
    )
    found = explained(dataclasses.replace(outlook, hardware=slow))
    assert found.wire_limit_s == pytest.approx(sum(SIZES) / (6 * MB))
    (faster,) = [each for each in found.what_if if each.change == "ten times the bandwidth"]
    assert faster.step_s == pytest.approx(explained(outlook, best_plan(outlook)).step_s, rel=0.1)


def assumed_links(workers, bytes_per_s):
    pairs = [(s, t) for s in range(workers) for t in range(workers) if s != t]
    return tuple(Link(*pair, bytes_per_s, 1e-4) for pair in pairs)


# After training ----------------------------------------------------------------------------------


def test_groups_are_compared_with_the_median_of_the_traced_steps():
    def traced(begin_s, end_s):
        def name(worker):
            return in_group("group_0", worker, "chunks")

        return Timeline(
            (
                Span("compute", "worker_0/f0", 10.0, 11.0),
                Span("receive", name(0), 10.0 + begin_s, 10.0 + end_s),
                Span("send", name(1), 10.0 + begin_s + 0.25, 10.0 + end_s + 0.25, worker=1),
            )
        )

    steps = [traced(3.0, 4.0), traced(3.5, 5.0), traced(2.0, 9.0)]
    (group,) = explained(free_outlook([4000], [1.0]), measured=steps).groups
    assert (group.predicted_begin_s, group.predicted_end_s) == pytest.approx((3.0, 4.0))
    assert (group.measured_begin_s, group.measured_end_s) == pytest.approx((3.0, 5.25))
    assert group.late_s == pytest.approx(1.25)
