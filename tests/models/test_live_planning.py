"""A job that was started without measured facts plans while it runs."""

from __future__ import annotations

import dataclasses
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import FeedError, PlanError
from caramel.core.payback import Payback
from caramel.core.util.fingerprint import Machine, this_machine
from caramel.models.plan_choice import plan_from_traces
from caramel.runtime.control.drift import DriftMonitor, ReplanSettings
from caramel.runtime.control.phases import Settled, Tracing
from caramel.runtime.control.trials import TrialSettings
from tests.support.networks import (
    CLASSES,
    network,
    parameter,
    slow_facts,
    train_steps,
    wide,
)

pytestmark = pytest.mark.usefixtures("quick_plans")

ADDRESSES = ["127.0.0.1:4001", "127.0.0.1:4002"]
AT_ONCE = ReplanSettings(first_after=2, traced=2, least_step_s=0.0, window=3, payback=0.0)
BEGINS = {"begins": True, "again": False}
AGAIN = {"begins": False, "again": True}


# When to plan -----------------------------------------------------------------------------------


def test_a_job_without_facts_is_planned_after_its_first_steps():
    monitor = DriftMonitor(ReplanSettings(first_after=3), **BEGINS)
    for _ in range(2):
        monitor.record(0.1)
    assert not monitor.wants_plan
    monitor.record(9.0, counts=False)
    assert not monitor.wants_plan
    monitor.record(0.1)
    assert monitor.wants_plan
    monitor.expect(0.05)
    assert not monitor.wants_plan


def test_short_steps_are_left_as_they_are():
    monitor = DriftMonitor(ReplanSettings(first_after=2, least_step_s=0.02), **BEGINS)
    for _ in range(5):
        monitor.record(0.01)
    assert not monitor.wants_plan


def test_drift_is_told_once_and_planned_for_only_if_asked():
    for again in (False, True):
        settings = ReplanSettings(window=3, drift=1.5, lasting_s=0.5)
        monitor = DriftMonitor(settings, begins=False, again=again, expected_s=0.1)
        for _ in range(3):
            monitor.record(0.14)
        assert monitor.drift == pytest.approx(1.4)
        assert monitor.take_news() is None
        for _ in range(3):  # for the median of three the second is the first one too long
            monitor.record(0.2)
        assert monitor.take_news() is None
        monitor.record(0.2)
        assert monitor.take_news() == pytest.approx(2.0)
        assert monitor.take_news() is None
        assert monitor.wants_plan == again


def test_steps_that_are_too_short_to_plan_for_drift_without_being_traced():
    settings = ReplanSettings(window=1, lasting_s=0.0, least_step_s=0.02)
    monitor = DriftMonitor(settings, **AGAIN)
    monitor.expect(0.005)
    monitor.record(0.015)
    assert monitor.plans_again
    assert not monitor.wants_plan
    assert monitor.take_news() == pytest.approx(3.0)


def test_a_disturbance_that_passes_is_no_drift():
    monitor = DriftMonitor(ReplanSettings(window=1, lasting_s=1.0), **AGAIN)
    monitor.expected_s = 0.1
    for _ in range(5):
        monitor.record(0.9)
        monitor.record(0.1)
    assert monitor.take_news() is None


def test_where_nothing_is_expected_any_more_the_next_steps_tell():
    monitor = DriftMonitor(ReplanSettings(window=3, drift=1.5, lasting_s=0.5), **AGAIN)
    monitor.expect(None)
    for step_s in (0.1, 0.3, 0.2):
        monitor.record(step_s)
    assert monitor.expected_s == 0.2
    for _ in range(6):
        monitor.record(0.5)
    assert monitor.take_news() == pytest.approx(2.5)


def test_nothing_drifts_before_anything_is_expected():
    monitor = DriftMonitor(ReplanSettings(window=1), **AGAIN)
    monitor.record(100.0)
    assert monitor.drift is None
    assert not monitor.wants_plan


@pytest.mark.processes
def test_worker_processes_are_measured_while_they_train(two_processes, caplog, monkeypatch):
    monkeypatch.setattr("caramel.models.plan_choice.WORTH_PLANNING", 10.0)  # whatever is predicted
    job = network("momentum", model=large, dtype=tf.float32)
    context = job.context()
    short = TrialSettings(rounds=1, steps=2, skipped=1)
    plain = caramel.ARModel(context, two_processes, pattern="shuffle", planner="plain")
    with plain.session() as session:
        train_steps(session, job, 30)
        expected = session.variables()
    model = caramel.ARModel(context, two_processes, pattern="shuffle")
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
        ({"trials": 3}, "trials must be a caramel.TrialSettings or 'auto', or None, not 3"),
        ({"trials": True}, "or 'auto', or None, not True"),
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
    monkeypatch.setattr("caramel.models.plan_choice.WORTH_PLANNING", 10.0)
    job = network("momentum", model=large, dtype=tf.float32)
    context = job.context()
    plain = caramel.ARModel(context, 2, pattern="shuffle", planner="plain")
    groups = [dataclasses.replace(group, deferred=True) for group in plain.plan.decision.groups]
    other = plain.plan.deciding(groups=tuple(groups))

    def planned(*given):
        """Whatever is predicted from the traces, something else than the plain plan is tried."""
        decision = plan_from_traces(*given[:-1], 3)
        assert decision.outlook.hardware.cores == 3
        return dataclasses.replace(decision, plan=other)

    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", planned)
    with plain.session() as session:
        train_steps(session, job, 30)
        expected = session.variables()
    # Planning pays after six steps and trying plans after eight, whatever the machine takes.
    prospect = "caramel.models.plan_choice.PlanChoice.prospect"
    monkeypatch.setattr(prospect, lambda *_: Payback(3, 0.5))
    monkeypatch.setattr("caramel.runtime.control.controller.payback_of", lambda *_: Payback(4, 0.5))
    model = caramel.ARModel(context, 2, pattern="shuffle")
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(replanning=dataclasses.replace(AT_ONCE, payback=1.0)) as session,
    ):
        train_steps(session, job, 6)
        assert "planning from 2 traced steps" not in caplog.messages
        assert session.metrics().spent.planning_s > 0
        train_steps(session, job, 2, first=6)
        assert "planning from 2 traced steps" in caplog.messages
        assert session.metrics().trials is None
        train_steps(session, job, 1, first=8)
        assert not session.metrics().trials.is_over
        train_steps(session, job, 21, first=9)
        values = session.variables()
        metrics = session.metrics()
    assert any("planning from 2 traced steps" in message for message in caplog.messages)
    assert not any("without a new plan" in message for message in caplog.messages)
    assert metrics.steps == 30
    assert {"own", "searched"} <= {plan.name for plan in metrics.trials.plans}
    assert model.explain().step_s > 0
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_a_job_that_no_plan_can_make_faster_is_not_planned(monkeypatch):
    """Nothing is searched where what bounds every step leaves nothing to gain."""
    job = network("gradient_descent", model=large, dtype=tf.float32)
    monkeypatch.setattr("caramel.planning.prospect.worthwhile_factors", lambda _: [])
    monkeypatch.setattr("caramel.planning.candidate.Outlook.least_s", 1e9)
    asked = []
    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", lambda *_: asked.append(1))
    at_once = dataclasses.replace(AT_ONCE, payback=1.0)
    told = []
    monkeypatch.setattr("caramel.runtime.control.controller.tell", told.append)
    with caramel.ARModel(job.context(), 2).session(replanning=at_once) as session:
        train_steps(session, job, 8)
        spent = session.metrics().spent
    assert asked == []
    assert told[-1] == "nothing to plan: no plan can make these steps shorter"
    assert min(spent.building_s, spent.opening_s, spent.first_step_s, spent.planning_s) > 0


def test_with_parameter_servers_a_search_waits_until_what_it_may_bring_pays_for_it(monkeypatch):
    told = []
    monkeypatch.setattr("caramel.runtime.control.controller.tell", told.append)
    monkeypatch.setattr("caramel.planning.serving.prospect._TIMES", 1e9)  # it takes years
    monkeypatch.setattr("caramel.planning.prospect.WORTH_PLANNING", 1.0)  # whatever is measured
    job = network("gradient_descent", model=large, dtype=tf.float32)
    waiting = dataclasses.replace(AT_ONCE, payback=1.0)
    with caramel.PSModel(job.context(), 2, 1).session(replanning=waiting) as session:
        train_steps(session, job, 6)
        assert session.metrics().trials is None
    assert re.match(r"a plan may save at most .* pauses training .* so it is done after", told[-1])


def test_small_transfers_tell_nothing_and_the_job_goes_on(caplog):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2)
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(replanning=AT_ONCE) as session,
    ):
        train_steps(session, job, 6)
    assert any("no transfer of more than 65.5 kB" in message for message in caplog.messages)
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


def test_a_plan_that_the_user_chose_is_not_replaced(monkeypatch):
    monkeypatch.setattr("caramel.models.plan_choice.WORTH_PLANNING", 10.0)
    job = network("gradient_descent", model=large, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle")
    model.add_variant(model.plan, "mine")
    with model.session(replanning=AT_ONCE) as session:
        session.use("mine")
        train_steps(session, job, 20)
        assert session.metrics().plan == "mine"
        assert session.metrics().trials is None
    assert list(model.variants) == ["own", "mine"]


def test_whatever_runs_competes_with_the_plain_plan_when_the_job_plans_again(monkeypatch):
    """A plan that was fast may have become slower than the plain one."""
    context = network("adam", model=wide, dtype=tf.float32).context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    decision, kept = model.decision, []
    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", lambda *_: decision)
    monkeypatch.setattr("caramel.models.plan_choice.keep_plan", lambda *what: kept.append(what))
    dropped = []
    monkeypatch.setattr("caramel.models.plan_choice.drop_plan", dropped.append)
    model._step.plans._cache_key = "of the profile"
    names, expected_s = model._step.plans.replan("own", [], [])
    assert "plain" in names
    assert "own" not in names
    assert expected_s == decision.found.best.step_s
    variants = list(model.variants)
    monkeypatch.setattr(
        "caramel.models.plan_choice.WORTH_PLANNING", 0.0
    )  # no plan is predicted to be better
    assert model._step.plans.replan("own", [], []) == (["plain"], decision.found.plain.step_s)
    assert model._step.plans.replan("plain", [], []) == ([], decision.found.plain.step_s)
    assert list(model.variants) == variants
    model._step.plans.keep("plain")
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
    monkeypatch.setattr("caramel.models.facts.this_machine", lambda: six)
    model = caramel.ARModel(network("momentum", model=large).context(), workers)
    given = []

    def plan(*facts):
        given.append(facts)
        return model.decision

    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", plan)
    model._step.plans.replan("own", [], [])
    assert given[0][-1] == cores


def test_what_goes_wrong_in_planning_costs_no_step(caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", fail)
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


def test_plans_are_made_from_steps_that_were_traced_in_a_row(caplog):
    """Those that were traced before other trials were asked for tell of another time."""
    job = network("gradient_descent", model=large, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2)
    model.add_variant(model.plan, "other")
    short = TrialSettings(rounds=1, steps=1, skipped=0)
    with (
        caplog.at_level(logging.INFO, "caramel"),
        model.session(replanning=AT_ONCE) as session,
    ):
        controller = session._running.controllers.active
        while not (isinstance(controller._phase, Tracing) and controller._phase.traces):
            session.step(job.feed)
        session.try_plans(short, plans=["own", "other"])
        while not isinstance(controller._phase, Settled):
            session.step(job.feed)
        controller._drift._wants_plan = True  # as if steps had drifted
        train_steps(session, job, AT_ONCE.traced)
    assert [m for m in caplog.messages if "planning from" in m] == ["planning from 2 traced steps"]


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
        session._running.controllers.active._drift.expected_s = 1e-9
        train_steps(session, job, 8)
    (told,) = [m for m in caplog.messages if "times as long as expected (0.0000 s)" in m]
    assert told.endswith("planning again from fresh measurements")
    assert "plain" in slow.variants  # a new plan of the paper's rules, too, if it is another one
