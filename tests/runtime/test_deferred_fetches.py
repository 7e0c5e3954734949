"""Whatever a step fetches is what it is without deferral."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.names import TensorRef
from caramel.core.variable_access import state_access
from caramel.runtime.steps.deferred_fetches import LateFetches
from tests.support.deferring import EVERY, SOME, deferred
from tests.support.networks import (
    CLASSES,
    FEATURES,
    WIDTH,
    Network,
    cross_entropy,
    inputs,
    perceptron,
    tf,
    tf1,
    wide,
)


def both(job, choice=EVERY, **options):
    """Models of a job without and with deferral."""
    context = job.context(**options)
    plain = caramel.ARModel(context, 2, planner="plain", pattern="shuffle")
    return plain, caramel.ARModel(context, 2, plan=deferred(plain, choice), check=True)


def monitored():
    """A job with values that are computed from gradients, from variables, and after the step."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        rate = tf1.placeholder(tf.float64, [], name="rate")
        loss = cross_entropy(perceptron(x), y)
        optimizer = tf1.train.MomentumOptimizer(rate, 0.9)
        pairs = optimizer.compute_gradients(loss)
        norm = tf.identity(tf.linalg.global_norm([g for g, _ in pairs]), name="norm")
        tf.multiply(norm, rate, name="scaled_norm")
        with tf.control_dependencies([loss]):
            tf.identity(norm, name="norm_after_loss")
        with tf.control_dependencies([tf.debugging.assert_all_finite(loss, "loss")]):
            tf.identity(norm, name="norm_after_check")
        train_op = optimizer.apply_gradients(pairs)
        w1 = next(v for v in tf1.trainable_variables() if v.op.name == "w1")
        with tf.control_dependencies([train_op]):
            tf.reduce_sum(w1.read_value(), name="after")
    return Network(graph, train_op, loss, {**feed, "rate:0": 0.1})


@pytest.mark.parametrize("choice", [EVERY, SOME], ids=["every", "some"])
@pytest.mark.parametrize(
    "fetched", ["norm:0", "scaled_norm:0", "norm_after_loss:0", "norm_after_check:0", "after:0"]
)
def test_a_fetch_is_that_of_plain_training(fetched, choice, tmp_path):
    job = monitored()
    plain, model = both(job, choice)
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for step in range(6):
            fetches = [job.loss, fetched] if step % 3 else [job.loss]
            assert session.step(job.feed, fetches) == expected.step(job.feed, fetches)
        values = session.variables()
        for name, value in expected.variables().items():
            np.testing.assert_array_equal(values[name], value)


def averaged():
    """A job with momenta and moving averages, which only updates touch."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(wide(x), y)
        update = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.control_dependencies([update]):
            average = tf1.train.ExponentialMovingAverage(0.9)
            train_op = average.apply(tf1.trainable_variables())
    return Network(graph, train_op, loss, feed)


@pytest.mark.parametrize("kind", ["", "/Momentum", "/ExponentialMovingAverage"])
def test_a_fetched_variable_has_the_updates_of_all_steps_before(kind, tmp_path):
    job = averaged()
    plain, model = both(job)
    name = f"w1{kind}"
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        before = expected.variables()[name]
        for _ in range(5):
            expected.step(job.feed)
            after = expected.variables()[name]
            _, seen = session.step(job.feed, [job.loss, f"{name}:0"])
            # The read races with this step's own update, as on one device.
            assert any(np.array_equal(seen[0], value) for value in (before, after))
            before = after


@pytest.mark.parametrize("kind", ["", "/Momentum", "/ExponentialMovingAverage"])
def test_a_variable_that_deferred_ops_write_is_late(kind):
    job = averaged()
    _, model = both(job)
    context, plan = model.context, model.plan
    late = LateFetches(context.op_graph, plan, state_access(context.op_graph, context.job))
    variable = next(v for v in plan.job.variables if v.name == f"w1{kind}")
    assert late.is_late(variable.read, TensorRef(variable.read))


def test_weights_that_are_clipped_after_each_step_are_those_of_plain_training(tmp_path):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.3).minimize(loss)
        with tf.control_dependencies([train_op]):
            clips = [
                variable.assign(tf.clip_by_value(variable.read_value(), -0.2, 0.2))
                for variable in tf1.trainable_variables()
            ]
        tf.group(*clips, name="clip")
    job = Network(graph, train_op, loss, feed)
    plain, model = both(job)
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(6):
            fetches = [job.loss, "clip"]
            assert session.step(feed, fetches) == expected.step(feed, fetches)
        values = session.variables()
        for name, value in expected.variables().items():
            np.testing.assert_array_equal(values[name], value)
            assert abs(value).max() <= 0.2


def test_the_rows_of_a_deferred_sparse_gradient_can_be_fetched(tmp_path):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        ids = tf1.placeholder(tf.int32, [None], name="ids")
        y = tf1.placeholder(tf.int32, [None], name="y")
        table = tf1.get_variable("table", [50, CLASSES], tf.float64, use_resource=True)
        loss = cross_entropy(tf.nn.embedding_lookup(table, ids), y)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        ((gradient, _),) = pairs = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(pairs)
    random = np.random.default_rng(0)
    feed = {"ids:0": random.integers(0, 50, 64), "y:0": random.integers(0, CLASSES, 64)}
    job = Network(graph, train_op, loss, feed)
    plain, model = both(job)
    fetches = [job.loss, gradient.values.name, gradient.indices.name]
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            for own, wanted in zip(
                session.step(feed, fetches), expected.step(feed, fetches), strict=True
            ):
                np.testing.assert_array_equal(own, wanted)


def test_plans_that_cannot_serve_a_fetch_can_be_tried():
    job = monitored()
    plain, _ = both(job)
    plain.add_variant(deferred(plain, EVERY), "deferring")
    with plain.session() as session:
        session.try_plans()
        for _ in range(60):
            session.step(job.feed, [job.loss, "norm_after_check:0"])
        assert session.metrics().trials.is_over


def test_a_fed_array_may_be_changed_after_the_step(tmp_path):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        mask = tf1.placeholder(tf.float64, [FEATURES, WIDTH], name="mask")
        loss = cross_entropy(perceptron(x), y)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        pairs = [
            (g * mask if v.op.name == "w1" else g, v) for g, v in optimizer.compute_gradients(loss)
        ]
        train_op = optimizer.apply_gradients(pairs)
    plain, model = both(Network(graph, train_op, loss, feed), replicated_feeds=["mask"])
    fed = aligned((FEATURES, WIDTH))
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for step in range(4):
            fed[:] = step + 1.0
            expected.step({**feed, "mask:0": fed.copy()})
            session.step({**feed, "mask:0": fed})
            fed[:] = -100.0
        for worker in range(2):
            own = session.variables(worker)["w1"]
            np.testing.assert_array_equal(own, expected.variables()["w1"])


def aligned(shape):
    """An array of float64 that TensorFlow takes without a copy: at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * 8
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(np.float64).reshape(shape)


@pytest.mark.parametrize("defers", [False, True])
def test_an_op_that_only_the_loss_waits_for_runs_if_it_is_fetched(defers):
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        counter = tf1.get_variable(
            "counter", [], tf.int32, tf1.zeros_initializer(), trainable=False, use_resource=True
        )
        with tf.control_dependencies([counter.assign_add(1, read_value=False)]):
            counted = tf.no_op(name="counted")
        trained = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(trained)
        with tf.control_dependencies([counted]):
            loss = tf.identity(trained)
    plain, model = both(Network(graph, train_op, loss, feed))
    with (model if defers else plain).session() as session:
        for fetches, count in (([], 0), (["counted"], 1), ([loss], 2), ([train_op], 2)):
            session.step(feed, fetches)
            assert session.variables()["counter"] == count
