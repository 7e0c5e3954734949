"""What is fed and does not go with the examples goes to every worker whole."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import caramel
from tests.support.networks import (
    CLASSES,
    FEATURES,
    Network,
    assert_equals_one_device,
    cross_entropy,
    inputs,
    parameter,
    perceptron,
    tf,
    tf1,
)

NUMBER = 12
OTHER = 4  # what is fed as "other" is as long as a batch, where it can be
RANDOM = np.random.RandomState(3)


def job_of(make, shape, value, *, batch=None) -> Network:
    """A classifier with a loss of x, labels, logits and something else that is fed."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(NUMBER, batch=batch)
        other = tf1.placeholder(tf.float64, shape, name="other")
        loss = make(x, y, other)
        variables = tf1.trainable_variables()
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return Network(
        graph, train_op, loss, {**feed, "other:0": value}, {v.op.name: None for v in variables}
    )


def classes(x, number):
    """Logits of as many classes."""
    return perceptron(x) @ parameter("to_classes", [CLASSES, number])


# Fed whole ---------------------------------------------------------------------------------------


def weights_by_label(x, y, other):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=classes(x, NUMBER))
    return tf.reduce_mean(losses * tf.gather(other, y))


def weights_by_best_class(x, y, other):
    logits = classes(x, NUMBER)
    return tf.reduce_mean(tf.gather(other, tf.argmax(logits, 1))) * 0.1 + cross_entropy(logits, y)


def prior(x, y, other):
    return cross_entropy(classes(x, NUMBER) + tf.nn.log_softmax(other), y)


def weights_of_one_hot(x, y, other):
    wanted = tf.one_hot(y, NUMBER, dtype=tf.float64)
    return tf.reduce_mean(tf.reduce_sum(wanted * other * tf.square(classes(x, NUMBER)), 1))


def weights_in_matrix_product(x, y, other):
    chosen = tf.one_hot(y, NUMBER, dtype=tf.float64) @ other[:, tf.newaxis]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=classes(x, NUMBER))
    return tf.reduce_mean(losses * tf.reshape(chosen, [-1]))


def bias_that_is_fed(x, y, other):
    return cross_entropy(tf.nn.bias_add(classes(x, NUMBER), other), y)


def mask_of_a_parameter(x, y, other):
    w = parameter("w", [NUMBER, CLASSES])
    wide = x @ parameter("widened", [FEATURES, NUMBER])
    return cross_entropy(wide @ (w * other[:, tf.newaxis]), y)


def normalised_weights(x, y, other):
    return weights_by_label(x, y, other / tf.reduce_sum(other))


def prototypes(x, y, other):
    return cross_entropy(tf.matmul(classes(x, NUMBER), other, transpose_b=True), y)


def distances(x, y, other):
    apart = classes(x, NUMBER)[:, tf.newaxis] - other
    return cross_entropy(-tf.reduce_sum(tf.square(apart), 2), y)


def looked_up(x, y, other):
    return cross_entropy(classes(x, NUMBER) + tf.nn.embedding_lookup(other, y), y)


def einsum(x, y, other):
    return cross_entropy(tf.einsum("ki,bk->bi", other, classes(x, NUMBER)), y)


def mean_picture(x, y, other):
    pictures = tf.reshape(classes(x, NUMBER * 3), [-1, NUMBER, 3]) - other
    return cross_entropy(tf.reduce_sum(tf.tanh(pictures), 2), y)


def projection(x, y, other):
    return cross_entropy(tf.tanh(classes(x, NUMBER)) @ other + perceptron_b(x), y)


def perceptron_b(x):
    return x @ parameter("beside", [FEATURES, CLASSES])


VECTORS = [
    weights_by_label,
    weights_by_best_class,
    prior,
    weights_of_one_hot,
    weights_in_matrix_product,
    bias_that_is_fed,
    mask_of_a_parameter,
    normalised_weights,
]


def vector():
    return RANDOM.uniform(0.5, 1.5, [NUMBER])


@pytest.mark.parametrize("shape", [[None], [NUMBER]], ids=["open", "fixed"])
@pytest.mark.parametrize("make", VECTORS)
def test_what_does_not_go_with_the_examples_is_fed_whole(make, shape):
    model = assert_equals_one_device(job_of(make, shape, vector()), 2, steps=3).model
    assert model.context.job.whole_feeds == {"other"}
    assert model.context.steps[0].job.replicated_feeds == {"other"}


@pytest.mark.parametrize("shape", [[None, CLASSES], [NUMBER, None], [NUMBER, CLASSES]])
def test_a_matrix_that_rows_of_examples_are_multiplied_with_is_fed_whole(shape):
    job = job_of(projection, shape, RANDOM.randn(NUMBER, CLASSES))
    assert_equals_one_device(job, 2, steps=3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (prototypes, [NUMBER, NUMBER]),
        (distances, [NUMBER, NUMBER]),
        (looked_up, [None, NUMBER]),
        (einsum, [None, 5]),
        (mean_picture, [None, 3]),
    ],
)
def test_matrices_that_are_no_batch_are_fed_whole(make, shape):
    value = RANDOM.randn(NUMBER, shape[1])
    assert_equals_one_device(job_of(make, shape, value), 2, steps=3)


@pytest.mark.parametrize("workers", [1, 3])
def test_it_need_not_be_as_long_as_a_batch(workers):
    def make(x, y, other):
        return cross_entropy(perceptron(x) * other, y)

    assert_equals_one_device(job_of(make, [None], [1.0, 2.0, 0.5]), workers, steps=3)


def test_a_row_for_all_examples_is_fed_whole():
    def make(x, y, other):
        return cross_entropy(perceptron(x) + other, y)

    assert_equals_one_device(job_of(make, [1, CLASSES], [[1.0, 2.0, 0.5]]), 2, steps=3)


def test_rates_of_rows_that_reach_an_update_are_fed_whole():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(NUMBER)
        loss = cross_entropy(perceptron(x), y)
        rates = tf1.placeholder(tf.float64, [None], name="rates")
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        train_op = tf.group(
            *[
                v.assign_sub(rates[:, tf.newaxis] * g if v.shape[0] == FEATURES else 0.1 * g)
                for v, g in zip(variables, gradients, strict=True)
            ]
        )
    feed = {**feed, "rates:0": np.linspace(0.1, 0.2, FEATURES)}
    job = Network(graph, train_op, loss, feed, {v.op.name: None for v in variables})
    assert_equals_one_device(job, 2, steps=3)


def test_where_batches_are_fixed_it_is_what_meets_no_batch():
    """Six examples for each of two workers."""
    job = job_of(weights_of_one_hot, [NUMBER], vector(), batch=NUMBER // 2)
    model = caramel.ARModel(job.context(), 2)
    assert model.context.job.whole_feeds == {"other"}


def test_it_is_told_by_the_log_and_by_metrics(caplog):
    job = job_of(weights_by_label, [None], vector())
    model = caramel.ARModel(job.context(), 2)
    assert "'other' is fed whole to every worker: 'GatherV2' (GatherV2) picks" in caplog.text
    with model.session() as session:
        assert session.metrics().whole_feeds == ("other",)


# Split -------------------------------------------------------------------------------------------


def weights_of_examples(x, y, other):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=perceptron(x))
    return tf.reduce_mean(losses * other)


def targets(x, y, other):
    logits = perceptron(x)
    return tf.reduce_mean(tf.square(logits[:, 0] - other)) + cross_entropy(logits, y)


def column_of_weights(x, y, other):
    return cross_entropy(perceptron(x) * other[:, tf.newaxis], y)


def chosen_examples(x, y, other):
    """Those of positive weight count."""
    chosen = tf.where(other > 0.0)[:, 0]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=perceptron(x))
    return tf.reduce_mean(tf.gather(losses, chosen) * tf.gather(other, chosen))


def other_rows(x, y, other):
    """Perhaps examples that are compared with each other."""
    rows = other[:, tf.newaxis] * parameter("row", [1, CLASSES])
    return cross_entropy(tf.matmul(perceptron(x), rows, transpose_b=True), y)


def alone(x, y, other):
    """Nothing is known of it."""
    return cross_entropy(perceptron(x), y) + tf.reduce_mean(other)


@pytest.mark.parametrize(
    "make", [weights_of_examples, targets, column_of_weights, chosen_examples, other_rows, alone]
)
def test_what_goes_with_the_examples_is_split_as_ever(make, caplog):
    job = job_of(make, [None], vector())
    caplog.set_level(logging.WARNING)
    assert caramel.ARModel(job.context(loss_reduction="mean"), 2).context.job.whole_feeds == set()
    assert "is fed whole" not in caplog.text


def test_labels_of_a_fixed_number_are_split_with_their_batch():
    with tf.Graph().as_default() as graph:
        x, y, _ = inputs(6, batch=6)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    assert caramel.ARModel(context, 2).context is context
