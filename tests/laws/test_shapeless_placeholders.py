"""A placeholder without a shape is a batch or a scalar, as it is fed, and is exact either way."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.inputs import worker_inputs
from caramel.core.errors import FeedError
from caramel.core.variable_access import state_access
from tests.support.networks import in_turns, parameter, start_from

tf1 = tf.compat.v1


def shapeless(name, default=None):
    if default is not None:
        return tf1.placeholder_with_default(tf.constant(default, tf.float64), None, name)
    return tf1.placeholder(tf.float64, name=name)


def linear():
    x, y = shapeless("x"), shapeless("y")
    return tf.reduce_mean(tf.square(parameter("w", []) * x + parameter("b", []) - y))


def matrices():
    h = tf.tanh(tf.matmul(shapeless("x"), parameter("w", [3, 4])) + parameter("b", [4]))
    logits = tf.matmul(h / shapeless("keep_prob"), parameter("v", [4, 1]))
    return tf.reduce_mean(tf.square(logits - shapeless("y")))


def decayed():
    return linear() + shapeless("decay") * tf.nn.l2_loss(parameter("w", []))


def labels_only():
    """The parameter meets the batch only in differentiation of its own."""
    return tf.reduce_mean(tf.square(parameter("w", []) - shapeless("y")))


def one_of_two():
    """Only one of the two batches has no shape, and alone makes one gradient differ."""
    x = tf1.placeholder(tf.float64, [None], "x")
    y = shapeless("y")
    first = tf.reduce_mean(tf.square(parameter("w", []) * x))
    return first + tf.reduce_mean(tf.square(parameter("v", []) - y))


def summed():
    x, y = shapeless("x"), shapeless("y")
    return tf.reduce_sum(tf.square(parameter("w", []) * x - y)) / 14


def summed_and_decayed():
    return summed() + shapeless("decay") * tf.nn.l2_loss(parameter("w", []))


OPTIMIZERS = {
    "rate": lambda: tf1.train.GradientDescentOptimizer(shapeless("rate")),
    "of_labels": lambda: tf1.train.GradientDescentOptimizer(
        tf.reduce_max(tf1.get_default_graph().get_tensor_by_name("y:0"))
    ),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
}

ROWS = np.random.default_rng(1).normal(size=(7, 3))
NUMBERS = np.linspace(-1, 2, 7)
FEEDS = {
    linear: {"x:0": NUMBERS, "y:0": NUMBERS**2},
    matrices: {"x:0": ROWS, "y:0": ROWS[:, :1], "keep_prob:0": 0.5},
    decayed: {"x:0": NUMBERS, "y:0": NUMBERS**2, "decay:0": 0.1},
    summed: {"x:0": NUMBERS, "y:0": NUMBERS**2},
    summed_and_decayed: {"x:0": NUMBERS, "y:0": NUMBERS**2, "decay:0": 0.1},
    labels_only: {"y:0": NUMBERS},
    one_of_two: {"x:0": NUMBERS, "y:0": NUMBERS**2},
}


def built(make_loss, optimizer="momentum", process=lambda gradients: gradients):
    with tf.Graph().as_default() as graph, tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
        tf1.set_random_seed(1)
        loss = tf.identity(make_loss(), name="loss")
        optimizer = OPTIMIZERS[optimizer]()
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        optimizer.apply_gradients(zip(process(gradients), variables, strict=True), name="train")
    return graph


def assert_as_on_one_device(graph, feeds, workers):
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with caramel.ARModel(context, workers, check=True).session() as session:
        initial = session.variables()
        losses = [session.step(feeds) for _ in range(4)]
        values = [session.variables(worker) for worker in range(workers)]
    with graph.as_default(), tf1.Session() as single:
        variables = start_from(initial, single)
        expected = [single.run(["loss:0", "train"], feeds)[0] for _ in range(4)]
        expected_values = single.run(variables)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    for own in values:
        for name, value in expected_values.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-11, atol=1e-13, err_msg=name)
            np.testing.assert_array_equal(own[name], values[0][name])


@pytest.mark.parametrize(
    ("make_loss", "workers"), in_turns([loss for loss in FEEDS for _ in range(2)], [1, 2, 3])
)
def test_batches_are_split(make_loss, workers):
    assert_as_on_one_device(built(make_loss), FEEDS[make_loss], workers)


@pytest.mark.parametrize("optimizer", ["rate", "adam"])
@pytest.mark.parametrize("make_loss", [linear, matrices])
def test_with_any_optimizer(make_loss, optimizer):
    feeds = FEEDS[make_loss] | ({"rate:0": 0.05} if optimizer == "rate" else {})
    assert_as_on_one_device(built(make_loss, optimizer), feeds, 2)


def test_behind_a_clip_by_the_global_norm():
    clipped = built(matrices, process=lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0])
    assert_as_on_one_device(clipped, FEEDS[matrices], 3)


@pytest.mark.parametrize("make_loss", [linear, labels_only, decayed])
def test_scalars_are_the_same_for_all(make_loss):
    feeds = dict.fromkeys(FEEDS[make_loss], 0.5)
    assert_as_on_one_device(built(make_loss), feeds, 2)


def test_a_single_example_of_a_sum_is_refused_on_several_workers():
    graph, feeds = built(summed), {"x:0": 0.5, "y:0": 2.0}
    assert_as_on_one_device(graph, feeds, 1)
    with pytest.raises(FeedError, match="x:0, y:0 are fed scalars, the same for all 2 workers"):
        assert_as_on_one_device(graph, feeds, 2)


def test_a_scalar_beside_a_batch_is_the_same_for_all():
    assert_as_on_one_device(built(linear), {"x:0": NUMBERS, "y:0": 0.5}, 3)


def test_a_default_is_kept_where_nothing_is_fed():
    def weighted():
        errors = tf.square(parameter("w", []) * shapeless("x") - 1.0)
        return tf.reduce_mean(errors * shapeless("weights", 2.0))

    graph = built(weighted)
    assert_as_on_one_device(graph, {"x:0": NUMBERS}, 2)
    assert_as_on_one_device(graph, {"x:0": NUMBERS, "weights:0": NUMBERS}, 2)


def test_a_learning_rate_must_be_a_scalar_and_is_not_to_be_declared():
    context = caramel.Context(built(linear, "rate"), train_op="train", loss="loss:0")
    with (
        caramel.ARModel(context, 2).session() as session,
        pytest.raises(FeedError, match=r"'rate:0' has no declared shape.*\(7,\); pass replicated"),
    ):
        session.step(FEEDS[linear] | {"rate:0": NUMBERS})


def test_a_batch_that_also_reaches_an_update_itself_is_to_be_declared():
    """Here the learning rate depends on the labels, of which each worker has others."""
    graph = built(linear, "of_labels")
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with (
        caramel.ARModel(context, 2).session() as session,
        pytest.raises(FeedError, match=r"'y:0'.*declare its shape.*\[None\]\).*replicated"),
    ):
        session.step(FEEDS[linear])


def test_scalars_beside_batches_that_have_shapes_are_not_taken_for_batches():
    def mixed():
        x = tf1.placeholder(tf.float64, [None, 3], "x")
        return tf.reduce_mean(tf.square(x @ parameter("w", [3, 1]) * shapeless("keep_prob"))) + (
            shapeless("decay") * tf.nn.l2_loss(parameter("w", [3, 1]))
        )

    graph = built(mixed)
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    access = state_access(context.op_graph, context.job)
    assert not worker_inputs(context.op_graph, context.job, access).taken_for_batches
    assert_as_on_one_device(graph, {"x:0": ROWS, "keep_prob:0": 0.5, "decay:0": 0.1}, 2)
