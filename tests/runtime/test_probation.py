"""A plan whose first steps never end is given up, and the session goes on as if it had not been."""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np
import pytest

import caramel
from caramel.cluster.onednn_check import advice
from caramel.core.decision import Edge
from caramel.core.errors import StepTimeoutError
from caramel.runtime.control import probation
from caramel.runtime.execution.calls import DEFAULT
from tests.support import convolving, networks
from tests.support.deferring import deferred
from tests.support.networks import tf

pytestmark = [
    pytest.mark.onednn,
    pytest.mark.skipif(
        advice({}) is not None, reason="TensorFlow uses oneDNN by itself only there"
    ),
]


@pytest.fixture(autouse=True)
def unchecked(monkeypatch) -> None:
    """Plans that never end are let through, and given up soon."""
    monkeypatch.setattr("caramel.models.planned.check_fused", lambda *_: None)
    monkeypatch.setattr(probation, "LEAST_S", 4.0)
    monkeypatch.setattr(probation, "UNKNOWN_S", 4.0)


def stuck(model, plan=None):
    """A plan that lets the gradients of a filter and its bias wait for themselves."""
    context = model.context
    edge = Edge(convolving.gradient_of(context, "b1"), convolving.shape_of_filter(context, "w1"))
    return (plan or model.plan).deciding(edges=(edge,))


def feeds(job, steps: int):
    """Other examples for each step."""
    return [
        {
            name: np.roll(value, step, axis=0)[: len(value) - step]
            for name, value in job.feed.items()
        }
        for step in range(steps)
    ]


def expected(job, initial, fed):
    """What one device computes from these feeds."""
    with job.graph.as_default(), networks.tf1.Session(graph=job.graph) as session:
        variables = networks.start_from(initial, session)
        losses = [session.run([job.loss, job.train_op], feed)[0] for feed in fed]
        return losses, session.run(variables)


def assert_trained(job, session, initial, losses, fed) -> None:
    wanted, values = expected(job, initial, fed)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    replicas = [session.variables(worker) for worker in range(2)]
    assert networks.relative_error(replicas[0], values) < 1e-4
    for name, value in replicas[0].items():
        np.testing.assert_array_equal(replicas[1][name], value, err_msg=name)


def test_a_models_own_plan_is_given_up_in_the_first_step(caplog):
    job = convolving.job()
    plain = caramel.ARModel(job.context(), workers=2)
    model = caramel.ARModel(job.context(), workers=2, plan=stuck(plain))
    fed = feeds(job, 3)
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for feed in fed]
        assert session.metrics().steps == 3
        assert session.metrics().plan == "plain"
        assert_trained(job, session, initial, losses, fed)
    assert "plan 'own' is given up: its step did not end within" in caplog.text
    with model.session() as session:  # which does not try it again
        session.step(fed[0])
        assert session.metrics().plan == "plain"
    assert caplog.text.count("is given up") == 1


@pytest.mark.parametrize("choice", ["some", "every"])
def test_what_a_step_left_to_the_next_one_is_done_once(choice):
    job = convolving.job(optimizer="adam")
    plain = caramel.ARModel(job.context(), workers=2)
    model = caramel.ARModel(job.context(), workers=2, plan=stuck(plain, deferred(plain, choice)))
    fed = feeds(job, 3)
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(feed) for feed in fed]
        assert session.metrics().plan == "plain"
        assert_trained(job, session, initial, losses, fed)


def averaging() -> networks.Network:
    """The same job with a moving average of what comes out of the network, and a count of steps."""
    with tf.Graph().as_default() as graph:
        networks.tf1.set_random_seed(1)
        x, y, feed = networks.inputs(40, tf.float32)
        logits = convolving.lowered(x)
        loss = networks.cross_entropy(logits, y)
        average = networks.tf1.get_variable(
            "average", [networks.CLASSES], trainable=False, use_resource=True
        )
        step = networks.tf1.train.get_or_create_global_step()
        update = average.assign_sub(0.1 * (average - tf.reduce_mean(logits, 0)))
        with tf.control_dependencies([update]):
            train_op = networks.tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
    return networks.Network(graph, train_op, loss, feed)


@pytest.mark.parametrize("choice", [None, "every"])
def test_what_differs_between_workers_is_as_before_on_each(choice):
    job = averaging()
    model = caramel.ARModel(job.context(), workers=2)
    model.add_variant(stuck(model, choice and deferred(model, choice)), "stuck")
    fed = feeds(job, 3)
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(fed[0])]
        session.use("stuck")
        losses += [session.step(feed) for feed in fed[1:]]
        assert session.metrics().plan == "own"
        wanted, values = expected(job, initial, fed)
        np.testing.assert_allclose(losses, wanted, rtol=1e-4)
        assert networks.relative_error(session.variables(), values) < 1e-4
        averages = [session.variables(worker)["average"] for worker in range(2)]
        assert not np.allclose(*averages)


def test_a_plan_that_is_tried_is_left_out(caplog):
    job = convolving.job()
    model = caramel.ARModel(job.context(), workers=2)
    model.add_variant(stuck(model), "stuck")
    model.add_variant(deferred(model, "some"), "deferred")
    fed = feeds(job, 12)
    settings = caramel.TrialSettings(rounds=1, steps=1, skipped=2)
    with model.session(trials=settings) as session:
        initial = session.variables()
        losses = [session.step(feed) for feed in fed]
        tried = session.metrics().trials
        assert tried.is_over
        assert {plan.name: plan.given_up for plan in tried.plans}["stuck"]
        assert all(plan.steps for plan in tried.plans if plan.name != "stuck")
        assert_trained(job, session, initial, losses, fed)
    assert caplog.text.count("plan 'stuck' is given up") == 1


def test_a_plan_that_is_used_is_given_up_after_other_steps():
    job = convolving.job()
    model = caramel.ARModel(job.context(), workers=2)
    model.add_variant(stuck(model), "stuck")
    model.add_variant(deferred(model, "every"), "deferred")
    fed = feeds(job, 4)
    with model.session(trials=None) as session:
        initial = session.variables()
        session.use("deferred")
        losses = [session.step(feed) for feed in fed[:2]]
        session.use("stuck")
        losses += [session.step(feed) for feed in fed[2:]]
        assert session.metrics().plan == "own"  # which is plain
        assert_trained(job, session, initial, losses, fed)


@pytest.mark.parametrize("asked", [True, False])
def test_a_deferred_part_that_never_ends_is_done_again_with_its_step(monkeypatch, asked):
    """As if updates had been made and then something hung, whether a step asks for them or not."""
    job = convolving.job()
    model = caramel.ARModel(job.context(), workers=2)
    model.add_variant(deferred(model, "every"), "deferred")
    fed = feeds(job, 3)
    with model.session(trials=None) as session:
        initial = session.variables()
        session.use("deferred")
        pending = session._running.controllers.active.executor._pending
        compiled = pending._runner.compile

        def hanging(tensors, targets, fed, options):
            call = compiled(tensors, targets, fed, options)
            return partial(hang, call) if targets == pending._moved else call

        def hang(call):
            call()
            time.sleep(8)
            raise tf.errors.DeadlineExceededError(None, None, "as if it was cancelled")

        monkeypatch.setattr(pending._runner, "compile", hanging)
        losses = [session.step(fed[0])]
        if asked:
            session.variables()
        losses += [session.step(feed) for feed in fed[1:]]
        assert session.metrics().plan == "own"
        assert_trained(job, session, initial, losses, fed)


def test_a_plan_that_ends_is_not_watched_over_any_longer(monkeypatch, caplog):
    job = convolving.job()
    model = caramel.ARModel(job.context(), workers=2)
    model.add_variant(deferred(model, "some"), "deferred")
    caplog.set_level(logging.INFO)
    limits = []
    with model.session(trials=None) as session:
        call = session._running.runner.call

        def limited(function, what, options=DEFAULT):
            if options.limit_s is not None and what == "a training step":
                limits.append(options.limit_s)
            return call(function, what, options)

        monkeypatch.setattr(session._running.runner, "call", limited)
        session.step(job.feed)
        assert not limits  # the plain plan
        session.use("deferred")
        for _ in range(4):
            session.step(job.feed)
        assert len(limits) == 2  # until what it leaves to the next step has ended, too
    assert "given up" not in caplog.text


def test_variables_that_are_too_large_are_not_copied(monkeypatch):
    job = convolving.job()
    plain = caramel.ARModel(job.context(), workers=2)
    model = caramel.ARModel(job.context(), workers=2, plan=stuck(plain))
    monkeypatch.setattr(probation, "COPIED_SHARE", 0.0)
    late = pytest.raises(StepTimeoutError, match="did not end within 5 s")
    with model.session(step_timeout_s=5) as session, late:
        session.step(job.feed)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
@pytest.mark.parametrize("workers", [2, 3])
def test_plans_are_given_up_on_worker_processes_too(workers):
    job = convolving.job(optimizer="adam")
    fed = feeds(job, 4)
    with caramel.Cluster.local(workers) as cluster:
        model = caramel.ARModel(job.context(), workers=cluster)
        model.add_variant(stuck(model), "stuck")
        model.add_variant(stuck(model, deferred(model, "some")), "stuck, deferred")
        with model.session(trials=None) as session:
            initial = session.variables()
            losses = []
            for plan, feed in zip(("own", "stuck", "stuck, deferred", "own"), fed, strict=True):
                session.use(plan)
                losses.append(session.step(feed))
                assert session.metrics().plan == "own"
            assert_trained(job, session, initial, losses, fed)
