"""Random ops draw differently on every worker, and a run can be repeated."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from tests.support.networks import (
    OPTIMIZERS,
    Network,
    assert_replicas_equal,
    control_flow_version,
    cross_entropy,
    inputs,
    network,
    optimized,
    perceptron,
    replicas_of,
    run_distributed,
    tf,
    tf1,
)


def drawing(draw, *, seed: int | None = 7) -> Network:
    """A job with a tensor 'drawn' that is drawn in the step and reaches the loss."""
    with tf.Graph().as_default() as graph:
        if seed is not None:
            tf1.set_random_seed(seed)
        x, y, feed = inputs(40)
        drawn = tf.identity(draw(), name="drawn")
        loss = cross_entropy(perceptron(x) * (1 + 0.1 * drawn), y)
        train_op, raw = optimized(loss, OPTIMIZERS["adam"])
    return Network(graph, train_op, loss, feed, raw)


def plain():
    return tf.random.uniform([3], dtype=tf.float64)


def dropped():
    return tf.reduce_sum(tf.nn.dropout(tf.ones([3, 64], tf.float64), rate=0.5), 1)


def with_its_own_seed():
    return tf.random.normal([3], seed=5, dtype=tf.float64)


def in_a_branch():
    step = tf1.train.get_or_create_global_step()
    return tf.cond(step >= 0, plain, lambda: tf.zeros([3], tf.float64))


def in_a_loop():
    zeros = tf.zeros([3], tf.float64)
    return tf.while_loop(lambda i, _: i < 2, lambda i, s: (i + 1, s + plain()), [0, zeros])[1]


def in_a_function():
    return tf.function(plain)()


def in_a_nested_function():
    return tf.function(lambda: tf.function(plain)() + 1)()


DRAWS = (
    (plain, "v1"),
    (dropped, "v1"),
    (with_its_own_seed, "v2"),
    (in_a_branch, "v1"),
    (in_a_branch, "v2"),
    (in_a_loop, "v1"),
    (in_a_loop, "v2"),
    (in_a_function, "v1"),
    (in_a_nested_function, "v2"),
)


def draws(job: Network, workers: int = 3, steps: int = 3):
    """For each step what every worker drew; the replicas must stay equal but for seeds."""
    model = caramel.ARModel(job.context(), workers=workers, check=True)
    with model.session() as session:
        found = [session.step(job.feed, "drawn:0") for _ in range(steps)]
        values = replicas_of(session)
    for name in values[0].keys() - model.plan.job.seeds:
        value = values[0][name]
        for other in values[1:]:
            np.testing.assert_array_equal(value, other[name])
    return np.array(found)


@pytest.mark.parametrize(("draw", "version"), DRAWS)
def test_workers_draw_differently_and_a_run_can_be_repeated(draw, version):
    with control_flow_version(version):
        job = drawing(draw)
    first, second = (draws(job) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    flat = first.reshape(-1, 3)
    assert len(np.unique(flat, axis=0)) == len(flat)  # between workers and between steps


@pytest.mark.parametrize("draw", [plain, in_a_function, in_a_loop])
def test_without_a_seed_workers_draw_differently_too(draw):
    flat = draws(drawing(draw, seed=None)).reshape(-1, 3)
    assert len(np.unique(flat, axis=0)) == len(flat)


def test_worker_0_draws_what_one_device_draws():
    job = drawing(plain)
    with tf1.Session(graph=job.graph) as session:
        with job.graph.as_default():
            session.run(tf1.global_variables_initializer())
        expected = [
            session.run([job.graph.get_tensor_by_name("drawn:0"), job.train_op], job.feed)[0]
            for _ in range(3)
        ]
    np.testing.assert_array_equal(draws(job)[:, 0], expected)


def test_dropout_trains():
    job = network(model=lambda x: tf.nn.dropout(perceptron(x), rate=0.3))
    runs = [run_distributed(job, 3) for _ in range(2)]
    assert_replicas_equal(runs[0])
    assert runs[0].losses == runs[1].losses


# Seeds that are variables ------------------------------------------------------------------------


def from_a_seed(state):
    """As a Keras layer draws."""
    seed = state * 1
    with tf.control_dependencies([seed]):
        counted = state.assign(tf.add(state, [0, 1]))
    with tf.control_dependencies([counted]):
        return tf.random.stateless_normal([3], tf.cast(seed % 1000003, tf.int32), dtype=tf.float64)


def drawing_from_a_seed(dtype):
    def draw():
        return from_a_seed(
            tf1.get_variable(
                "state", initializer=tf.constant([5, 0], dtype), trainable=False, use_resource=True
            )
        )

    return drawing(draw)


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
def test_a_seed_that_is_a_variable_differs_between_workers(dtype):
    job = drawing_from_a_seed(dtype)
    model = caramel.ARModel(job.context(), 3)
    assert model.plan.job.seeds == {"state"}
    alone, together = draws(job, workers=1), draws(job)
    assert len(np.unique(together)) == 27
    np.testing.assert_array_equal(together[:, 0], alone.reshape(3, 3))
    with model.session() as session:
        session.step(job.feed)
        np.testing.assert_array_equal(session.variables()["state"], [5, 1])  # worker 0's


def test_a_variable_that_does_more_than_seed_stays_equal():
    def draw():
        state = tf1.get_variable(
            "state", initializer=tf.constant([5, 0]), trainable=False, use_resource=True
        )
        return from_a_seed(state) * tf.cast(state[0], tf.float64)

    job = drawing(draw)
    assert not caramel.ARModel(job.context(), 2).plan.job.seeds
