"""A job that was started without measured facts plans while it runs."""

from __future__ import annotations

import dataclasses
import html
import logging

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.cache import drop_plan, keep_plan, kept_plan
from caramel.errors import FeedError, FileError, PlanError
from caramel.facts import TimingTable
from caramel.fingerprint import Machine, graph_hash, this_machine
from caramel.live_planning import plan_from_traces
from caramel.network import assumed_network
from caramel.planning.fit import decides_alike
from caramel.planning.options import Options
from caramel.profile import Profile
from caramel.replanning import ReplanSettings, Watch
from caramel.timeline import Span, Timeline
from caramel.trials import TrialSettings
from tests.networks import (
    CLASSES,
    FEATURES,
    cross_entropy,
    inputs,
    network,
    parameter,
    slow_facts,
    tf1,
    train_steps,
    wide,
)

ADDRESSES = ["127.0.0.1:4001", "127.0.0.1:4002"]
AT_ONCE = ReplanSettings(first_after=2, traced=2, least_step_s=0.0, window=3)


# When to plan -----------------------------------------------------------------------------------


def test_a_job_without_facts_is_traced_after_its_first_steps_and_then_planned():
    watch = Watch(ReplanSettings(first_after=3, traced=2), begins=True, again=False)
    for _ in range(2):
        watch.record(0.1)
    assert not watch.wants_trace
    watch.record(9.0, counts=False)
    assert not watch.wants_trace
    watch.record(0.1)
    assert watch.wants_trace
    watch.record_trace()
    assert watch.wants_trace
    assert not watch.wants_plan
    watch.record_trace()
    assert not watch.wants_trace
    assert watch.wants_plan
    watch.expect(0.05)
    assert not watch.wants_plan


def test_short_steps_are_left_as_they_are():
    watch = Watch(ReplanSettings(first_after=2, least_step_s=0.02), begins=True, again=False)
    for _ in range(5):
        watch.record(0.01)
    assert not watch.wants_trace


def test_drift_is_told_once_and_planned_for_only_if_asked():
    for again in (False, True):
        watch = Watch(ReplanSettings(window=3, drift=1.5, lasting_s=0.5), begins=False, again=again)
        watch.expected_s = 0.1
        for _ in range(3):
            watch.record(0.14)
        assert watch.drift == pytest.approx(1.4)
        assert watch.take_news() is None
        for _ in range(3):  # for the median of three the second is the first one too long
            watch.record(0.2)
        assert watch.take_news() is None
        watch.record(0.2)
        assert watch.take_news() == pytest.approx(2.0)
        assert watch.take_news() is None
        assert watch.wants_trace == again


def test_steps_that_are_too_short_to_plan_for_drift_without_being_traced():
    settings = ReplanSettings(window=1, lasting_s=0.0, least_step_s=0.02)
    watch = Watch(settings, begins=False, again=True)
    watch.expect(0.005)
    watch.record(0.015)
    assert watch.plans_again
    assert not watch.wants_trace
    assert watch.take_news() == pytest.approx(3.0)


def test_a_disturbance_that_passes_is_no_drift():
    watch = Watch(ReplanSettings(window=1, lasting_s=1.0), begins=False, again=True)
    watch.expected_s = 0.1
    for _ in range(5):
        watch.record(0.9)
        watch.record(0.1)
    assert watch.take_news() is None


def test_where_nothing_is_expected_any_more_the_next_steps_tell():
    watch = Watch(ReplanSettings(window=3, drift=1.5, lasting_s=0.5), begins=False, again=True)
    watch.expect(None)
    for step_s in (0.1, 0.3, 0.2):
        watch.record(step_s)
    assert watch.expected_s == 0.2
    for _ in range(6):
        watch.record(0.5)
    assert watch.take_news() == pytest.approx(2.5)


def test_nothing_drifts_before_anything_is_expected():
    watch = Watch(ReplanSettings(window=1), begins=False, again=True)
    watch.record(100.0)
    assert watch.drift is None
    assert not watch.wants_trace


@pytest.mark.processes
def test_worker_processes_try_plans_and_the_next_model_begins_with_the_fastest(
    tmp_path, monkeypatch
):
    """From a profile to a session, from there to the cache, and to the next model."""
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    timing = TimingTable(dict.fromkeys(context.op_graph.ops, 0.001))
    own, link = graph_hash(context.graph_def), (assumed_network(2, 1e5, 1e-4),)
    profile = Profile("2.21.0", this_machine(), own, timing, None, link)
    options = {"pattern": "shuffle", "profile": profile}
    short = TrialSettings(rounds=1, steps=2, skipped=1)
    with caramel.Cluster.local(2) as cluster:
        plain = caramel.ARModel(context, cluster, pattern="shuffle", planner="plain")
        with plain.session() as session:
            train_steps(session, job, 20)
            expected = session.variables()
        model = caramel.ARModel(context, cluster, **options)
        assert model.plan.deferral.moved
        with model.session(trials=short) as session:
            train_steps(session, job, 20)
            values, metrics = session.variables(), session.metrics()
        assert {"own", "plain"} <= {plan.name for plan in metrics.trials.plans}
        assert metrics.trials.is_over
        fastest = model.variants[metrics.plan].plan
        later = caramel.ARModel(context, cluster, **options)
        assert later.decision.source == "what proved the fastest in an earlier run"
        assert decides_alike(later.plan, fastest)
        is_plain = decides_alike(fastest, later.decision.plain)
        assert later._plans.tried() == (["own"] if is_plain else ["own", "plain"])
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.processes
def test_worker_processes_are_measured_while_they_train(caplog, monkeypatch):
    monkeypatch.setattr("caramel.model_plans.WORTH_PLANNING", 10.0)  # whatever is predicted
    job = network("momentum", model=large, dtype=tf.float32)
    context = job.context()
    short = TrialSettings(rounds=1, steps=2, skipped=1)
    with caramel.Cluster.local(2) as cluster:
        plain = caramel.ARModel(context, cluster, pattern="shuffle", planner="plain")
        with plain.session() as session:
            train_steps(session, job, 30)
            expected = session.variables()
        model = caramel.ARModel(context, cluster, pattern="shuffle")
        with (
            caplog.at_level(logging.INFO, "caramel"),
            model.session(trials=short, replanning=AT_ONCE) as session,
        ):
            train_steps(session, job, 30)
            values, metrics = session.variables(), session.metrics()
    assert "planning from 2 traced steps" in caplog.text
    assert model.decision.outlook.hardware.cores == max(1, this_machine().cores // 2)
    assert model.decision.outlook.hardware.bytes_per_s > 1e7
    assert metrics.trials.is_over
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_planning_again_is_refused_where_it_cannot_be():
    context = network("gradient_descent").context()
    plan = caramel.ARModel(context, 2).plan
    with pytest.raises(PlanError, match="cannot plan again where a plan is given: leave it out"):
        caramel.ARModel(context, 2, plan=plan, replan="auto")
    with pytest.raises(PlanError, match="cannot plan again where nothing is planned"):
        caramel.ARModel(context, 2, planner="plain", replan="auto")
    with pytest.raises(PlanError, match="replan must be 'never' or 'auto', not True"):
        caramel.ARModel(context, 2, replan=True)
    with pytest.raises(PlanError, match="planner must be one of 'search', 'paper', 'plain'"):
        caramel.ARModel(context, 2, planner="greedy")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"trials": 3}, "trials must be a caramel.TrialSettings, or 'auto' or None, not 3"),
        ({"trials": True}, "or 'auto' or None, not True"),
        (
            {"replanning": "auto"},
            "replanning must be a caramel.ReplanSettings, or None, not 'auto'",
        ),
        ({"stalls": False}, "stalls must be a caramel.StallSettings, or None, not False"),
        (
            {"step_timeout_s": None},
            "step_timeout_s must be a number of seconds, more than 0, not N",
        ),
        ({"step_timeout_s": float("inf")}, "step_timeout_s must be a number of seconds"),
        ({"start_timeout_s": 0}, "start_timeout_s must be a number of seconds, more than 0, not 0"),
    ],
)
def test_settings_of_a_session_that_cannot_be_are_refused(wrong, told):
    model = caramel.ARModel(network("gradient_descent").context(), 1)
    with pytest.raises(PlanError, match=told):
        model.session(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"first_after": 0}, {"traced": 0}, {"drift": 1.0}, {"lasting_s": -1.0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(PlanError):
        ReplanSettings(**wrong)


def large(x):
    """Three dense layers, of which two have gradients of 1 MB: enough to see how they travel."""
    features = x.shape[1]
    hidden = tf.tanh(x @ parameter("w1", [features, 512], x.dtype))
    hidden = tf.tanh(hidden @ parameter("w2", [512, 512], x.dtype))
    return tf.tanh(hidden @ parameter("w3", [512, 512], x.dtype)) @ parameter(
        "w4", [512, CLASSES], x.dtype
    )


# Sessions ---------------------------------------------------------------------------------------


def test_a_session_without_facts_traces_plans_tries_and_computes_the_same(caplog, monkeypatch):
    monkeypatch.setattr("caramel.model_plans.WORTH_PLANNING", 10.0)
    job = network("momentum", model=large, dtype=tf.float32)
    context = job.context()
    plain = caramel.ARModel(context, 2, pattern="shuffle", planner="plain")
    groups = [dataclasses.replace(group, deferred=True) for group in plain.plan.groups]
    other = dataclasses.replace(plain.plan, groups=tuple(groups))

    def planned(*given):
        """Whatever is predicted from the traces, something else than the plain plan is tried."""
        decision = plan_from_traces(*given[:-1], 3)
        assert decision.outlook.hardware.cores == 3
        return dataclasses.replace(decision, plan=other)

    monkeypatch.setattr("caramel.model_plans.plan_from_traces", planned)
    with plain.session() as session:
        train_steps(session, job, 30)
        expected = session.variables()
    model = caramel.ARModel(context, 2, pattern="shuffle")
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(replanning=AT_ONCE) as session,
    ):
        train_steps(session, job, 30)
        values = session.variables()
        metrics = session.metrics()
    assert any("planning from 2 traced steps" in message for message in caplog.messages)
    assert not any("without a new plan" in message for message in caplog.messages)
    assert metrics.steps == 30
    assert {"own", "searched"} <= {plan.name for plan in metrics.trials.plans}
    assert model.explain().step_s > 0
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_small_transfers_tell_nothing_and_the_job_goes_on(caplog):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2)
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(replanning=AT_ONCE) as session,
    ):
        train_steps(session, job, 6)
    assert any("no transfer of more than 64 KiB" in message for message in caplog.messages)
    assert list(model.variants) == ["own"]


def test_without_trials_nothing_is_planned_while_the_job_runs(caplog):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2)
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(trials=None, replanning=AT_ONCE) as session,
    ):
        train_steps(session, job, 8)
        assert session.metrics().trials is None
    assert not caplog.messages
    assert list(model.variants) == ["own"]


@pytest.fixture(name="quickly")
def fixture_quickly(monkeypatch):
    """Variations are searched with a small budget."""
    monkeypatch.setattr("caramel.simulation.explain.QUICK", Options(budget_tasks=2_000))


def test_a_plan_that_the_user_chose_is_not_replaced(monkeypatch):
    monkeypatch.setattr("caramel.model_plans.WORTH_PLANNING", 10.0)
    job = network("gradient_descent", model=large, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle")
    model.add_variant(model.plan, "mine")
    with model.session(replanning=AT_ONCE) as session:
        session.use("mine")
        train_steps(session, job, 20)
        assert session.metrics().plan == "mine"
        assert session.metrics().trials is None
    assert list(model.variants) == ["own", "mine"]


def test_a_kept_plan_is_only_that_of_the_same_training_op(tmp_path, monkeypatch):
    """Two jobs may share a graph, as generator and discriminator do."""
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    with tf.Graph().as_default() as graph:
        x, y, _ = inputs(40)
        hidden = tf.tanh(x @ parameter("shared", [FEATURES, 700]))
        jobs = []
        for name in ("first", "second"):
            loss = cross_entropy(hidden @ parameter(name, [700, CLASSES]), y)
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            jobs.append((optimizer.minimize(loss), loss))
    contexts = [caramel.Context(graph, train_op=op, loss=loss) for op, loss in jobs]
    known = contexts[0]
    timing = TimingTable(dict.fromkeys(known.op_graph.ops, 0.001))
    networks_known = (assumed_network(2, 1e5, 1e-4),)
    own = graph_hash(known.graph_def)
    profile = Profile("2.21.0", this_machine(), own, timing, None, networks_known)
    model = caramel.ARModel(known, 2, profile=profile)
    model._plans._keep("own")
    assert "earlier run" in caramel.ARModel(known, 2, profile=profile).decision.source
    other = caramel.ARModel(contexts[1], 2, profile=profile)
    assert "earlier run" not in other.decision.source
    elsewhere = caramel.ARModel(known, ["127.0.0.1:2222", "127.0.0.1:2223"], profile=profile)
    assert "earlier run" not in elsewhere.decision.source


@pytest.fixture(name="kept")
def fixture_kept(tmp_path, monkeypatch):
    """Makes models of one job and profile, of which a searched plan was kept in an earlier run."""
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    timing = TimingTable(dict.fromkeys(context.op_graph.ops, 0.001))
    own, link = graph_hash(context.graph_def), (assumed_network(2, 1e5, 1e-4),)
    profile = Profile("2.21.0", this_machine(), own, timing, None, link)

    def model():
        return caramel.ARModel(context, 2, pattern="shuffle", profile=profile)

    model()._plans._keep("own")
    return job, model


def test_what_proved_the_fastest_earlier_has_to_prove_it_again_against_the_plain_plan(kept):
    job, make = kept
    model = make()
    assert "earlier run" in model.decision.source
    assert any(group.deferred for group in model.plan.groups)
    short = TrialSettings(rounds=1, steps=1, skipped=1)
    with model.session(trials=short) as session:
        train_steps(session, job, 5)
        metrics = session.metrics()
    assert {plan.name for plan in metrics.trials.plans} == {"own", "plain"} == set(model.variants)
    assert metrics.trials.is_over
    is_own = metrics.plan == "own"
    assert ("earlier run" in make().decision.source) == is_own


def test_a_plan_of_the_users_own_is_not_kept_for_other_runs(kept):
    _, make = kept
    model = make()
    model.add_variant(model.decision.plain, "mine")
    model._plans._keep("mine")
    later = make()
    assert "earlier run" in later.decision.source
    assert decides_alike(later.plan, model.plan)


def test_what_was_not_compared_has_not_proved_anything(tmp_path, monkeypatch):
    """A single plan is over before it is tried: nothing is kept, and what is expected stays."""
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    model = caramel.ARModel(context, 2, analyzers=slow_facts(2), planner="paper", replan="auto")
    model._plans._cache_key = "key"
    with model.session(trials=TrialSettings()) as session:
        expected_s = session.metrics().expected_s
        train_steps(session, job, 3)
        assert session.metrics().expected_s == expected_s is not None
        assert [plan.name for plan in session.metrics().trials.plans] == ["own"]
    assert kept_plan("key") is None
    assert not model._plans._is_chosen


@pytest.mark.parametrize("chosen", ["own", "plain"])
def test_a_kept_plan_that_is_not_the_fastest_any_more_is_forgotten(chosen, kept):
    _, make = kept
    model = make()
    assert model._plans.tried() == ["own", "plain"]
    model._plans._keep(chosen)
    assert ("earlier run" in make().decision.source) == (chosen == "own")
    assert model._plans.tried() == [chosen]


def test_a_plan_can_be_explained(quickly):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2))
    explanation = model.explain()
    assert explanation.step_s <= explanation.plain_step_s
    assert explanation.limited_by == "wire"
    assert [group.name for group in explanation.groups] == [g.name for g in model.plan.groups]
    assert any(each.change == "twice the bandwidth" for each in explanation.what_if)


def test_an_explanation_shows_itself(quickly, tmp_path, capsys, monkeypatch):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    explanation = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2)).explain()
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(explanation)
    monkeypatch.delenv("FORCE_COLOR")
    assert "Limited by the wire." in text
    assert "\x1b" not in text
    assert all(group.name in text for group in explanation.groups)
    explanation.show()
    assert capsys.readouterr().out.startswith("GradientDescent on 2 workers: 4 parameters")
    explanation.save_page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    frame = explanation._repr_html_()
    assert frame.startswith("<iframe ")
    assert page in html.unescape(frame)
    assert page.lower().startswith("<!doctype html>")
    with pytest.raises(FileError, match=f"cannot write {tmp_path}"):
        explanation.save_page(tmp_path)
    assert type(explanation).from_json(explanation.to_json()) == explanation


def test_nothing_is_explained_without_facts():
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    with pytest.raises(PlanError, match="caramel profile"):
        caramel.ARModel(job.context(), 2).explain()
    with pytest.raises(PlanError, match="one worker aggregates nothing"):
        caramel.ARModel(job.context(), 1).explain()


def test_a_plan_that_was_given_can_be_explained(quickly):
    context = network("gradient_descent", model=wide, dtype=tf.float32).context()
    first = caramel.ARModel(context, 2, analyzers=slow_facts(2))
    model = caramel.ARModel(context, 2, analyzers=slow_facts(2), plan=first.plan)
    assert model.plan == first.plan
    assert (model.decision.source, model.decision.found) == ("given", None)
    explanation = model.explain()
    assert explanation.step_s == first.explain().step_s
    assert explanation.planner == "none, the plan was given"
    assert model._plans.planning(TrialSettings()) is None  # it stays


def test_traced_steps_are_compared_with_the_plan_that_did_them(quickly):
    context = network("gradient_descent", model=wide, dtype=tf.float32).context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    model.add_variant(model.decision.plain, "plain")

    def traced(plan):
        return Timeline((Span("send", "group_0", 0.0, 1.0),), plan=plan)

    own, plain = (model.explain([traced(name)]) for name in ("own", "plain"))
    assert own.step_s == model.explain().step_s < plain.step_s == plain.plain_step_s
    with pytest.raises(PlanError, match="by different plans, 'own', 'plain'"):
        model.explain([traced("plain"), traced("own")])
    with pytest.raises(PlanError, match="by a plan 'mine', which this model does not have"):
        model.explain([traced("mine")])


def test_where_planning_does_not_pay_what_runs_is_explained(monkeypatch, quickly):
    monkeypatch.setattr("caramel.model_plans.WORTH_PLANNING", 0.0)
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    other = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2)).decision
    assert any(group.deferred for group in other.plan.groups)
    monkeypatch.setattr("caramel.model_plans.plan_from_traces", lambda *_: other)
    model = caramel.ARModel(context, 2, pattern="shuffle")
    with model.session(replanning=AT_ONCE) as session:
        train_steps(session, job, 6)
        metrics = session.metrics()
    assert metrics.plan == "own"
    assert min(metrics.recent_step_s) <= metrics.expected_s <= max(metrics.recent_step_s)
    assert list(model.variants) == ["own"]
    groups = {group.name for group in model.explain().groups}
    assert groups == {group.name for group in model.plan.groups}
    assert not any(group.deferred for group in model.explain().groups)


def test_where_plans_need_too_much_memory_what_runs_is_explained(monkeypatch, caplog, quickly):
    monkeypatch.setattr("caramel.model_plans.WORTH_PLANNING", 10.0)
    monkeypatch.setattr("caramel.distributed_graph.total_bytes", lambda: 0)
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    other = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2)).decision
    monkeypatch.setattr("caramel.model_plans.plan_from_traces", lambda *_: other)
    model = caramel.ARModel(context, 2, pattern="shuffle")
    size = model.graph_size
    with model.session(replanning=AT_ONCE) as session:
        train_steps(session, job, 16)
        metrics = session.metrics()
    assert "not tried: 'searched'" in caplog.text
    assert (metrics.plan, metrics.trials, model.graph_size) == ("own", None, size)
    assert min(metrics.recent_step_s) <= metrics.expected_s <= max(metrics.recent_step_s)
    assert not any(group.deferred for group in model.explain().groups)


def test_whatever_runs_competes_with_the_plain_plan_when_the_job_plans_again(monkeypatch):
    """A plan that was fast may have become slower than the plain one."""
    context = network("adam", model=wide, dtype=tf.float32).context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    decision, kept = model.decision, []
    monkeypatch.setattr("caramel.model_plans.plan_from_traces", lambda *_: decision)
    monkeypatch.setattr("caramel.model_plans.keep_plan", lambda *what: kept.append(what))
    dropped = []
    monkeypatch.setattr("caramel.model_plans.drop_plan", dropped.append)
    model._plans._cache_key = "of the profile"
    names, expected_s = model._plans._plan_live("own", [], [])
    assert "plain" in names
    assert "own" not in names
    assert expected_s == decision.found.best.step_s
    variants = list(model.variants)
    monkeypatch.setattr(
        "caramel.model_plans.WORTH_PLANNING", 0.0
    )  # no plan is predicted to be better
    assert model._plans._plan_live("own", [], []) == (["plain"], decision.found.plain.step_s)
    assert model._plans._plan_live("plain", [], []) == ([], decision.found.plain.step_s)
    assert list(model.variants) == variants
    model._plans._keep("plain")
    assert kept == []  # under the old facts it would be found by the next run
    assert dropped == ["of the profile"]


@pytest.mark.parametrize(
    ("steps", "told"), [(0, "0"), (-1, "-1"), (2.5, "2.5"), ({"x:0": np.zeros(9)}, "a dict")]
)
def test_a_number_of_traced_steps_that_cannot_be_is_refused(steps, told):
    job = network("gradient_descent")
    with (
        caramel.ARModel(job.context(), 1).session() as session,
        pytest.raises(FeedError, match=f"a number of steps, at least 1, not {told};"),
    ):
        session.trace(steps, job.feed)


@pytest.mark.parametrize(
    ("workers", "cores"),
    [
        (2, None),  # threads of this process
        (caramel.Cluster.of(ADDRESSES, task=0), 6),
        (caramel.Cluster.of(ADDRESSES), None),
        (caramel.Cluster("local", caramel.Cluster.of(ADDRESSES).tasks), 3),
    ],
)
def test_a_process_that_is_a_worker_or_has_started_them_knows_their_cores(
    workers, cores, monkeypatch
):
    """What transfers cost processors counts, then."""
    six = Machine("a processor", 6, "CPU")
    monkeypatch.setattr("caramel.builder.this_machine", lambda: six)
    model = caramel.ARModel(network("momentum", model=large).context(), workers)
    given = []

    def plan(*facts):
        given.append(facts)
        return model.decision

    monkeypatch.setattr("caramel.model_plans.plan_from_traces", plan)
    model._plans._plan_live("own", [], [])
    assert given[0][-1] == cores


def test_what_goes_wrong_in_planning_costs_no_step(caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("caramel.model_plans.plan_from_traces", fail)
    job = network("gradient_descent", model=large, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2)
    with (
        caplog.at_level(logging.WARNING, "caramel"),
        model.session(replanning=AT_ONCE) as session,
    ):
        train_steps(session, job, 6)
        assert session.metrics().steps == 6
        session.variables()
    assert [m for m in caplog.messages if "planning has failed" in m]


def test_the_planner_of_the_paper_can_plan_again_while_the_job_runs(caplog):
    job = network("gradient_descent", model=large, dtype=tf.float32)
    slow = caramel.ARModel(
        job.context(), 2, analyzers=slow_facts(2), planner="paper", replan="auto"
    )
    drifting = dataclasses.replace(AT_ONCE, window=2, drift=1.0001, lasting_s=0.0)
    with (
        caplog.at_level(logging.WARNING, "caramel"),
        slow.session(replanning=drifting) as session,
    ):
        session._stepper._watch.expected_s = 1e-9
        train_steps(session, job, 8)
    (told,) = [m for m in caplog.messages if "times as long as expected (0.0000 s)" in m]
    assert told.endswith("planning again from fresh measurements")
    assert "plain" in slow.variants  # a new plan of the paper's rules, too, if it is another one


# Kept plans -------------------------------------------------------------------------------------


def test_a_plan_is_kept_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    plan = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2)).plan
    assert kept_plan("key") is None
    keep_plan("key", plan)
    assert kept_plan("key") == plan
    drop_plan("key")
    assert kept_plan("key") is None
    drop_plan("key")
    keep_plan("key", plan)
    (tmp_path / "cache" / "plan-key.json").write_text("{")
    assert kept_plan("key") is None
