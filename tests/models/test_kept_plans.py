"""A plan that proved the fastest is kept for later runs of the same job on the same hosts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable
from caramel.core.util.disk_cache import drop_plan, keep_plan, kept_plan
from caramel.core.util.fingerprint import graph_hash, this_machine
from caramel.planning.compatibility import decides_alike
from caramel.runtime.control.trials import TrialSettings
from caramel.simulation.network_model import assumed_network
from tests.support.networks import (
    CLASSES,
    FEATURES,
    cross_entropy,
    deep,
    inputs,
    network,
    parameter,
    slow_facts,
    tf1,
    train_steps,
    wide,
)
from tests.support.placed import placed

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.fixture(name="cache", autouse=True)
def fixture_cache(tmp_path, monkeypatch):
    """Where plans are kept."""
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def slow_profile(context):
    """Ops that take long, and a network that takes longer, between two workers."""
    timing = TimingTable(dict.fromkeys(context.op_graph.ops, 0.001))
    own, link = graph_hash(context.graph_def), assumed_network(2, 1e5, 1e-4)
    return Profile("2.21.0", this_machine(), own, timing, None, (link,))


@pytest.fixture(name="kept")
def fixture_kept():
    """Makes models of one job and profile, of which a searched plan was kept in an earlier run."""
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    profile = slow_profile(context)

    def model():
        return caramel.ARModel(context, 2, pattern="shuffle", profile=profile)

    model()._step.plans.keep("own")
    return job, model


def test_a_plan_is_kept_and_found_again(cache):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    plan = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2)).plan
    assert kept_plan("key") is None
    keep_plan("key", plan)
    assert kept_plan("key") == plan
    drop_plan("key")
    assert kept_plan("key") is None
    drop_plan("key")
    keep_plan("key", plan)
    (cache / "plan-key.json").write_text("{")
    assert kept_plan("key") is None


def test_a_plan_that_was_kept_in_an_older_format_is_as_if_it_was_not(cache):
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    keep_plan("key", caramel.ARModel(job.context(), 2).plan)
    file = cache / "plan-key.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 1}))
    assert kept_plan("key") is None


def test_a_kept_plan_is_only_that_of_the_same_training_op():
    """Two jobs may share a graph, as generator and discriminator do."""
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
    profile = slow_profile(known)
    model = caramel.ARModel(known, 2, profile=profile)
    model._step.plans.keep("own")
    assert "earlier run" in caramel.ARModel(known, 2, profile=profile).decision.source
    other = caramel.ARModel(contexts[1], 2, profile=profile)
    assert "earlier run" not in other.decision.source
    elsewhere = caramel.ARModel(known, ["127.0.0.1:2222", "127.0.0.1:2223"], profile=profile)
    assert "earlier run" not in elsewhere.decision.source


def test_what_proved_the_fastest_earlier_has_to_prove_it_again_against_the_plain_plan(kept):
    job, make = kept
    model = make()
    assert "earlier run" in model.decision.source
    assert any(group.deferred for group in model.plan.decision.groups)
    short = TrialSettings(rounds=1, steps=1, skipped=1)
    with model.session(trials=short) as session:
        train_steps(session, job, 5)
        metrics = session.metrics()
    assert {plan.name for plan in metrics.trials.plans} == {"own", "plain"} == set(model.variants)
    assert metrics.trials.is_over
    is_own = metrics.plan == "own"
    assert ("earlier run" in make().decision.source) == is_own


@pytest.mark.parametrize("chosen", ["own", "plain"])
def test_a_kept_plan_that_is_not_the_fastest_any_more_is_forgotten(chosen, kept):
    _, make = kept
    model = make()
    assert model._step.plans.tried() == ["own", "plain"]
    model._step.plans.keep(chosen)
    assert ("earlier run" in make().decision.source) == (chosen == "own")
    assert model._step.plans.tried() == [chosen]


def test_a_plan_of_the_users_own_is_not_kept_for_other_runs(kept):
    _, make = kept
    model = make()
    model.add_variant(model.decision.plain, "mine")
    model._step.plans.keep("mine")
    later = make()
    assert "earlier run" in later.decision.source
    assert decides_alike(later.plan, model.plan)


def test_what_was_not_compared_has_not_proved_anything():
    """A single plan is over before it is tried: nothing is kept, and what is expected stays."""
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    model = caramel.ARModel(context, 2, analyzers=slow_facts(2), planner="paper", replan="auto")
    model._step.plans._cache_key = "key"
    with model.session(trials=TrialSettings()) as session:
        expected_s = session.metrics().expected_s
        train_steps(session, job, 3)
        assert session.metrics().expected_s == expected_s is not None
        assert [plan.name for plan in session.metrics().trials.plans] == ["own"]
    assert kept_plan("key") is None
    assert not model._step.plans._is_chosen


@pytest.mark.processes
def test_worker_processes_try_plans_and_the_next_model_begins_with_the_fastest(two_processes):
    """From a profile to a session, from there to the cache, and to the next model."""
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    options = {"pattern": "shuffle", "profile": slow_profile(context)}
    short = TrialSettings(rounds=1, steps=2, skipped=1)
    plain = caramel.ARModel(context, two_processes, pattern="shuffle", planner="plain")
    with plain.session() as session:
        train_steps(session, job, 20)
        expected = session.variables()
    model = caramel.ARModel(context, two_processes, **options)
    assert model.plan.consequences.deferral.moved
    with model.session(trials=short) as session:
        train_steps(session, job, 20)
        values, metrics = session.variables(), session.metrics()
    assert {"own", "plain"} <= {plan.name for plan in metrics.trials.plans}
    assert metrics.trials.is_over
    fastest = model.variants.plan(metrics.plan)
    later = caramel.ARModel(context, two_processes, **options)
    assert later.decision.source == "what proved the fastest in an earlier run"
    assert decides_alike(later.plan, fastest)
    is_plain = decides_alike(fastest, later.decision.plain)
    assert later._step.plans.tried() == (["own"] if is_plain else ["own", "plain"])
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize("chosen", ["own", "plain"])
def test_whether_a_placed_model_is_faster_in_order_is_kept(chosen):
    job = network("adam", model=deep, number=100, batch=100)
    profile = slow_profile(job.context())

    def model():
        return placed(job, 2, profile=profile, seed=1)

    first = model()
    plain, ordered = first.decision.plain, first.plan
    assert ordered.decision.edges
    assert ordered.placement.gates
    assert first._step.plans.tried() == ["own", "plain"]
    first._step.plans.keep(chosen)
    second = model()
    assert second.decision.is_kept
    assert decides_alike(second.plan, ordered if chosen == "own" else plain)
    assert second._step.plans.tried() == (["own", "plain"] if chosen == "own" else ["own"])
