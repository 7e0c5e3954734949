"""A session tries the best few of the plans that a search has found, and keeps the fastest."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.decision import Gate
from caramel.core.errors import PlanError, TrafficError
from caramel.models.variants import Variants
from caramel.native.session import GraphSession
from caramel.planning.candidate import Candidate
from caramel.planning.compatibility import decides_alike
from caramel.planning.search.search import Found, Scored
from caramel.planning.worth_a_trial import FURTHER, worth_a_trial
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.execution import distributed_graph
from caramel.runtime.execution.calls import Channel
from tests.support.networks import network, slow_facts, train_steps, wide

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.mark.onednn
def test_plans_of_a_search_are_tried_with_the_plain_one_and_compute_the_same():
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    with caramel.ARModel(context, 2, pattern="shuffle", planner="plain").session() as session:
        train_steps(session, job, 30)
        expected = session.variables()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    assert model.decision.found.best.step_s < model.decision.found.plain.step_s
    assert model.plan.consequences.deferral.moved
    reasons = {group.deferred: group.reason for group in model.plan.decision.groups}
    assert "; in its step it would" in reasons[True]
    assert "; deferred it would" in reasons[False]
    with model.session() as session:
        assert list(model.variants)[:2] == ["own", "plain"]
        train_steps(session, job, 30)
        values = session.variables()
        tried = {plan.name for plan in session.metrics().trials.plans}
    assert {"own", "plain"} <= tried
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_plans_are_made_when_they_are_tried_and_placed_at_once(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "caramel")
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    (nodes, size), placed = model.graph_size, []
    place = GraphSession.place
    monkeypatch.setattr(GraphSession, "place", lambda session: placed.append(place(session)))
    with model.session() as session:
        train_steps(session, job, 7)
        assert model.graph_size == (nodes, size)
        train_steps(session, job, 1)
        assert session.metrics().plan == "plain"
        more, larger = model.graph_size
        assert (more > 1.5 * nodes, larger > 1.5 * size) == (True, True)
        train_steps(session, job, 14)
    assert len(model.variants) > 2
    assert model.graph_size == (more, larger)
    assert len(placed) == 2
    assert caplog.text.count("making the plans that are tried") == 1
    assert len(model.graph.get_operations()) == more


def test_placing_plans_may_take_longer_than_a_step(monkeypatch):
    deadlines_s, call = {}, Channel.call

    def spy(self, function, *, what, timeout_s, **options):
        deadlines_s.setdefault(what, timeout_s)
        return call(self, function, what=what, timeout_s=timeout_s, **options)

    monkeypatch.setattr(Channel, "call", spy)
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    with model.session(step_timeout_s=50.0) as session:
        train_steps(session, job, 8)
    assert deadlines_s["a training step"] == 50.0
    assert 120.0 < deadlines_s["placing the graph"] < 180.0  # some kilobytes


@pytest.mark.parametrize("fails", [{"plain"}, {"plain", *FURTHER}])
def test_a_plan_that_cannot_be_made_is_left_out_of_the_trials(fails, caplog, monkeypatch):
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    make = Variants.ensure

    def fail(variants, name):
        if name in fails:
            raise TrafficError(f"'{name}' would send too much")
        return make(variants, name)

    monkeypatch.setattr(Variants, "ensure", fail)
    with model.session() as session:
        train_steps(session, job, 10)
        trials, plan = session.metrics().trials, session.metrics().plan
    assert "plan 'plain' cannot be made, and is not tried" in caplog.text
    if len(fails) == 1:
        assert "plain" not in {each.name for each in trials.plans}
    else:
        assert (trials, plan) == (None, "own")


@pytest.mark.parametrize(("plans", "room"), [(1, 1.9), (2, 2.0)])
def test_plans_for_which_there_is_not_enough_memory_are_not_tried(plans, room, caplog, monkeypatch):
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    nodes, _ = model.graph_size
    needed_bytes = 4 * 12_000 * nodes  # a quarter of it is for graphs
    monkeypatch.setattr(distributed_graph, "total_bytes", lambda: room * needed_bytes)
    with model.session() as session:
        train_steps(session, job, 10)
        metrics = session.metrics()
    (told,) = [message for message in caplog.messages if message.startswith("not tried: ")]
    assert f"'{FURTHER[0]}'" in told
    assert ("'plain'" in told) == (plans == 1)
    if plans == 1:
        assert (metrics.trials, metrics.plan, model.graph_size[0]) == (None, "own", nodes)
    else:
        assert [each.name for each in metrics.trials.plans] == ["own", "plain"]


def test_a_plan_that_is_looked_up_is_not_made():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    size, (_, name, *_) = model.graph_size, model._step.plans.tried()
    assert name in model.variants
    assert decides_alike(model.variants.plan(name), model.decision.plain)
    with pytest.raises(PlanError, match=r"'plain' is known, .* variants.ensure\('plain'\)"):
        model.variants[name]
    assert model.graph_size == size
    assert model.variants.ensure(name) is model.variants[name]
    assert model.graph_size > size
    with pytest.raises(KeyError):
        model.variants["none"]


def test_what_is_made_already_is_tried_whatever_memory_it_takes(monkeypatch):
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    assert model.variants.ensure(model._step.plans.tried()[1]).name == "plain"
    monkeypatch.setattr(distributed_graph, "total_bytes", lambda: 0)
    with model.session() as session:
        train_steps(session, job, 10)
        assert [each.name for each in session.metrics().trials.plans] == ["own", "plain"]


def test_the_next_session_begins_with_the_plan_that_was_chosen():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    with model.session() as session:
        train_steps(session, job, 2)
        session._running.controllers.active.job.plans.keep("plain")  # as at the end of trials
    variants = list(model.variants)
    with model.session() as session:
        train_steps(session, job, 2)
        metrics = session.metrics()
    assert metrics.plan == "plain" != variants[0]
    assert metrics.trials is None
    assert list(model.variants) == variants


def test_the_end_of_trials_decides_for_the_next_session():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    settings = TrialSettings()
    steps = settings.rounds * (settings.steps + settings.skipped) * (2 + len(FURTHER)) + 1
    with model.session() as session:
        train_steps(session, job, steps)
        metrics = session.metrics()
    assert metrics.trials.is_over
    with model.session() as session:
        assert session.metrics().plan == metrics.plan
        assert session.metrics().trials is None


def test_what_the_user_added_is_left_to_the_user():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    model.variants.undeferred()  # for a fetch in an earlier session
    (_, plain, *_) = model._step.plans.tried()
    assert decides_alike(model.variants.plan(plain), model.decision.plain)
    other = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    other.add_variant(other.plan, "mine")
    assert other._step.plans.tried() == ["own"]


def test_with_settings_of_their_own_users_try_what_they_added_beside_what_was_found():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    groups = [
        dataclasses.replace(group, deferred=True) for group in model.decision.plain.decision.groups
    ]
    model.add_variant(model.decision.plain.deciding(groups=tuple(groups)), "mine")
    short = TrialSettings(rounds=1, steps=1, skipped=1)
    for _ in range(2):  # as often as they ask for it
        with model.session(trials=short) as session:
            train_steps(session, job, 2 * len(model.variants) + 1)
            trials = session.metrics().trials
        assert trials.is_over
        assert {"own", "mine", "plain"} <= {plan.name for plan in trials.plans}
        assert {plan.steps for plan in trials.plans} <= {0, 1}


def test_a_plan_that_does_what_the_plain_one_does_is_not_tried_against_it():
    context = network("adam", model=wide, dtype=tf.float32).context()
    decision = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2)).decision
    groups = [dataclasses.replace(g, reason="because") for g in decision.plain.decision.groups]
    alike = decision.plain.deciding(groups=tuple(groups))
    assert worth_a_trial(dataclasses.replace(decision, plan=alike)) == {}
    gated = alike.deciding(gates=(Gate("group_1", "group_0"),))
    assert "plain" in worth_a_trial(dataclasses.replace(decision, plan=gated))


@pytest.mark.parametrize(
    ("paper_s", "tried"),
    [(1.14, ["paper", "one", "two"]), (1.16, ["one", "two", "family"])],
)
def test_the_best_few_are_tried_and_the_papers_plan_before_others_if_it_may_be_as_fast(
    paper_s, tried
):
    """It is of another kind than the searched ones, and so are the errors of its prediction."""
    context = network("adam", model=wide, dtype=tf.float32).context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    plain = model.decision.plain
    first, *rest = plain.decision.groups
    plans = {
        name: plain.deciding(groups=(dataclasses.replace(first, depth=depth), *rest))
        for depth, name in enumerate(("best", "one", "two", "family", "paper", "slow"), start=2)
    }
    seconds = {"one": 1.01, "two": 1.02, "family": 1.04, "plain": 1.05}
    seconds |= {"paper": paper_s, "slow": 1.2}

    def scored(name, step_s):
        return Scored(Candidate(name, (), (), ordered=False), step_s)

    decision = dataclasses.replace(
        model.decision,
        plan=plans["best"],
        found=Found(
            scored("best", 1.0),
            scored("plain", 1.05),
            tuple(scored(name, step_s) for name, step_s in seconds.items()),
            tasks=1,
        ),
        alternatives=tuple((name, plans.get(name, plain)) for name in seconds),
    )
    assert worth_a_trial(decision) == {
        "plain": plain,
        **dict(zip(FURTHER, (plans[name] for name in tried), strict=True)),
    }


def test_the_next_session_tries_what_the_last_one_did_not_try_to_the_end():
    job = network("adam", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", analyzers=slow_facts(2))
    for _ in range(2):
        with model.session() as session:
            train_steps(session, job, 3)
            trials = session.metrics().trials
            assert not trials.is_over
            assert {plan.name for plan in trials.plans} == set(model.variants)
