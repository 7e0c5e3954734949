"""Sessions that begin with the variables that another one has on parameter servers."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import ClusterError, PlanError, SessionError, WorkerLostError
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Network,
    cross_entropy,
    inputs,
    network,
    optimized,
    parameter,
    relative_error,
    run_on_one_device,
    wide,
)
from tests.support.processes import worker_pid
from tests.support.serving import served

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def job():
    return network("adam", model=wide)


@pytest.fixture(scope="module")
def model(job):
    return served(job, 2, 2)


def model_of(job: Network, cluster: caramel.Cluster, **options) -> caramel.PSModel:
    return caramel.PSModel(job.context(), cluster, **{"ordering": "tic", "check": True, **options})


def averaging() -> Network:
    """What each worker averages is its own."""
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(12)
        w = parameter("w", [FEATURES, CLASSES])
        average = tf1.get_variable(
            "average", initializer=np.zeros(FEATURES), trainable=False, use_resource=True
        )
        loss = cross_entropy(x @ w, y)
        update, raw = optimized(loss, OPTIMIZERS["momentum"])
        train_op = tf.group(update, average.assign(0.5 * average + 0.5 * tf.reduce_mean(x, 0)))
    return Network(graph, train_op, loss, feed, raw)


def assert_equal(values, others):
    assert values.keys() == others.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


# Training goes on -----------------------------------------------------------------------------


def test_fewer_workers_go_on_with_what_more_have_trained(job):
    cluster = caramel.Cluster.embedded(3, parameter_servers=2)
    with model_of(job, cluster).session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(2)]
        rest = model_of(job, cluster.without(cluster.workers[:1]))
        with rest.session(trials=None, variables=session) as following:
            assert_equal(following.variables(), session.variables())
            losses += [following.step(job.feed) for _ in range(2)]
            values = following.variables()
            # Each has its own from then on.
            assert session.step(job.feed) == pytest.approx(losses[2], rel=1e-12)
    expected = run_on_one_device(job, initial, steps=4)
    assert relative_error(values, expected.values) < 1e-12
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)


def test_what_workers_keep_for_themselves_begins_with_their_mean():
    job = averaging()
    cluster = caramel.Cluster.embedded(3, parameter_servers=1)
    with model_of(job, cluster).session(trials=None) as session:
        session.step(job.feed)
        own = [session.variables(worker)["average"] for worker in range(3)]
        assert not np.array_equal(own[1], own[2])
        rest = model_of(job, cluster.without([cluster.workers[0]]))
        with rest.session(trials=None, variables=session) as following:
            mean = (own[1] + own[2]) / 2
            for worker in range(2):
                got = following.variables(worker)["average"]
                np.testing.assert_allclose(got, mean, rtol=1e-12)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 2])
def test_a_lost_worker_loses_nothing(job, victim):
    with caramel.Cluster.local(3, parameter_servers=2) as cluster:
        session = model_of(job, cluster).session(trials=None)
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(2)]
        os.kill(worker_pid(cluster, victim), signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="variables are still on the servers") as caught:
            session.step(job.feed)
        assert caught.value.lost == (cluster.tasks[victim],)
        rest = cluster.without(caught.value.lost)
        with model_of(job, rest).session(trials=None, variables=session) as following:
            session.close()
            losses += [following.step(job.feed) for _ in range(2)]
            values = following.variables()
    expected = run_on_one_device(job, initial, steps=4)
    assert relative_error(values, expected.values) < 1e-12
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_what_a_lost_server_had_is_gone(job):
    with caramel.Cluster.local(1, parameter_servers=2) as cluster:
        session = model_of(job, cluster).session(trials=None)
        session.step(job.feed)
        os.kill(worker_pid(cluster, 2), signal.SIGKILL)
        with pytest.raises(WorkerLostError, match=r"server 1 .*the variables that it held are go"):
            session.step(job.feed)
        with pytest.raises(ClusterError, match="has lost /job:ps/task:1, and what was there"):
            model_of(job, cluster).session(variables=session)
        session.close()


# Agents ---------------------------------------------------------------------------------------


def test_agents_read_what_others_train(job, model):
    agents = served(job, 2, 2, mode="inference", ordering="tic")
    with model.session(trials=None) as session:
        with agents.session(trials=None, variables=session) as agent:
            for _ in range(3):
                assert agent.step(job.feed) == session.step(job.feed)
        values = session.variables()
        agent = agents.session(trials=None, variables=session)
        assert_equal(agent.variables(), values)
        session.step(job.feed)
    with pytest.raises(SessionError, match="on whose variables this one works was closed"):
        agent.step(job.feed)
    agent.close()


# What cannot be -------------------------------------------------------------------------------


def test_variables_of_other_kinds_of_sessions_are_refused(job, model):
    with pytest.raises(PlanError, match="variables must be a caramel.Session, or None, not"):
        model.session(variables="session")
    message = "only where both have parameter servers"
    with (
        caramel.ARModel(job.context(), 2).session() as session,
        pytest.raises(PlanError, match=message),
    ):
        model.session(variables=session)
    with pytest.raises(SessionError, match="the session is closed"):
        served(job, 2, 2).session(variables=model_closed(model))


def model_closed(model):
    session = model.session(trials=None)
    session.close()
    return session


def test_variables_of_another_job_or_other_servers_are_refused(job, model):
    with model.session(trials=None) as session:
        with pytest.raises(
            PlanError, match=r"variable 'w1' is float64 of shape \[6, 5\] on .* the same job"
        ):
            served(network("momentum"), 2, 2).session(variables=session)
        with pytest.raises(
            PlanError, match=r"the parameter servers are 127.0.0.1:\d+, .* here and"
        ):
            served(job, 3, 2).session(variables=session)


def test_tasks_that_are_left_out_must_be_there():
    cluster = caramel.Cluster.embedded(2, parameter_servers=1)
    with pytest.raises(ClusterError, match="no worker is left without worker 0 .*, worker 1"):
        cluster.without(cluster.workers)
    with pytest.raises(ClusterError, match="is no task of"):
        cluster.without(caramel.Cluster.embedded(3).workers[2:])
