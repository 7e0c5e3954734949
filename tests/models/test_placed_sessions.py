"""A session of a placed model does what that of other models does."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import caramel
from caramel.core.errors import CheckpointError, FeedError, WorkerLostError
from tests.support.networks import (
    FEATURES,
    built_network,
    network,
    parameter,
    run_on_one_device,
    start_from,
    tf,
    tf1,
)
from tests.support.placed import is_spread, placed
from tests.support.processes import worker_pid


def test_a_checkpoint_goes_to_every_other_way_of_training_and_back(tmp_path):
    job = built_network("adam")
    context, path, expected = job.context(), None, None
    models = [
        placed(job, 2, seed=1),
        None,  # plain TensorFlow
        placed(job, 3, seed=2),
        caramel.ARModel(context, 1),
        placed(job, 2, seed=3),
    ]
    for number, model in enumerate(models):
        target = str(tmp_path / str(number))
        if model is None:
            with job.graph.as_default(), tf1.Session(graph=job.graph) as alone:
                saver = tf1.train.Saver()
                saver.restore(alone, path)
                alone.run(job.train_op, job.feed)
                path = saver.save(alone, target)
            continue
        with model.session(trials=None) as session:
            if path is None:
                expected = run_on_one_device(job, session.variables(), steps=len(models))
            else:
                session.restore(path)
            session.step(job.feed)
            path = session.save(target)
            values = session.variables()
    for name, value in expected.values.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_steps_over_the_same_variables_and_fetches_that_write():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [8, FEATURES], name="x")
        ways, counts = {}, parameter("counts", [])
        first, second = parameter("first", [FEATURES, 4]), parameter("second", [4, FEATURES])
        encoded = tf.tanh(x @ first)
        for name, loss, trained in (
            ("encode", tf.reduce_mean((encoded @ second - x) ** 2), first),
            ("decode", tf.reduce_mean(tf.abs(encoded @ second - x)), second),
        ):
            optimizer = tf1.train.MomentumOptimizer(0.1, 0.9, name=name)
            ways[name] = optimizer.minimize(loss, var_list=[trained]), loss
        counted = counts.assign_add(2.0).op
        variables = {v.op.name: v for v in tf1.global_variables()}
    model = caramel.PlacedModel(
        caramel.Context(graph, steps=ways), 3, partitioner="hash", seed=1, check=True
    )
    assert all(step.plan.consequences.sendings for step in model.steps.values())
    fed = {"x:0": np.random.RandomState(0).randn(8, FEATURES)}
    with model.session(trials=None) as session, tf1.Session(graph=graph) as alone:
        with graph.as_default():
            start_from(session.variables(), alone)
        for name in ("encode", "decode", "decode", "encode"):
            train_op, loss = ways[name]
            own = session.step(
                fed, fetches=[loss, encoded, counted, caramel.per_worker(loss)], step=name
            )
            assert own[3] == (own[0],)  # of one replica
            wanted = alone.run([loss, encoded, counted, train_op], fed)
            assert own[0] == wanted[0]
            np.testing.assert_array_equal(own[1], wanted[1])
        assert session.run(ways["encode"][1], fed) == alone.run(ways["encode"][1], fed)
        with pytest.raises(FeedError, match="nothing is fed for 'x:0'"):
            session.run(ways["encode"][1])
        values, wanted = session.variables(), alone.run(variables)
    assert values["counts"] == wanted["counts"]
    for name, value in wanted.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_numbers_of_16_bits(dtype):
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(dtype, [8, FEATURES], name="x")
        h = tf.tanh(x @ parameter("w1", [FEATURES, 5], dtype))
        loss = tf.reduce_mean((h @ parameter("w2", [5, 1], dtype)) ** 2)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        variables = {v.op.name: v for v in tf1.global_variables()}
    model = caramel.PlacedModel(
        caramel.Context(graph, train_op=train_op, loss=loss), 2, partitioner="hash", check=True
    )
    assert is_spread(model)
    fed = {"x:0": np.random.RandomState(0).randn(8, FEATURES).astype(dtype.as_numpy_dtype)}
    with model.session(trials=None) as session, tf1.Session(graph=graph) as alone:
        with graph.as_default():
            start_from(session.variables(), alone)
        for _ in range(2):
            assert session.step(fed) == alone.run([loss, train_op], fed)[0]
        values, wanted = session.variables(), alone.run(variables)
    for name, value in wanted.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def _step_on(session, feed):
    for _ in range(1000):  # until the loss of a worker is known
        session.step(feed)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_a_killed_worker_is_named(tmp_path):
    job = network("momentum")
    with caramel.Cluster.local(2) as cluster:
        model = placed(job, cluster)
        assert is_spread(model)
        with model.session(trials=None) as session:
            session.step(job.feed)
            path = session.save(tmp_path / "before.ckpt")
            expected = session.variables()
            os.kill(worker_pid(cluster, 1), signal.SIGKILL)
            with pytest.raises(WorkerLostError, match=r"lost worker 1 .* restore the last check"):
                _step_on(session, job.feed)
            with pytest.raises(CheckpointError, match="worker 1 .* had these variables alone"):
                session.rescue(tmp_path / "rescued")
    with placed(job, 3, seed=1).session() as session:
        session.restore(path)
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, expected[name])
