"""Losses of all kinds, by how they scale with the examples."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.networks import (
    CLASSES,
    FEATURES,
    Network,
    examples,
    optimized,
    perceptron,
    tf,
    tf1,
)

Loss = Callable[["Batch"], Any]


class Batch:
    """What a loss is computed from: placeholders, and a network's output for them."""

    def __init__(self) -> None:
        self.x = tf1.placeholder(tf.float64, [None, FEATURES], name="x")
        self.y = tf1.placeholder(tf.int32, [None], name="y")
        self.mask = tf1.placeholder(tf.float64, [None], name="mask")
        self._compute()

    def _compute(self) -> None:
        self.logits = perceptron(self.x)
        self.labels = tf.one_hot(self.y, CLASSES, dtype=tf.float64)
        self.error = self.logits - self.labels
        self.each = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=self.y, logits=self.logits
        )
        self.weights = tf1.trainable_variables()

    @property
    def decay(self) -> Any:
        return 0.01 * tf.add_n([tf.nn.l2_loss(w) for w in self.weights])


def counted_in_rows(labels: Any) -> Any:
    """How often each class is in rows of two labels."""
    rows = tf.stack([labels, labels], 1)
    return tf.math.bincount(rows, minlength=CLASSES, maxlength=CLASSES, axis=-1)


def batch_feed(number: int, seed: int = 0) -> dict[str, np.ndarray]:
    x, y = examples(number, seed)
    mask = (np.random.RandomState(seed + 7).rand(number) > 0.4).astype(np.float64)
    mask[0] = 1.0
    return {"x:0": x, "y:0": y, "mask:0": mask}


def loss_network(
    loss: Loss, optimizer: Any = None, *, number: int = 12, feed: Mapping[str, Any] | None = None
) -> Network:
    job = _built_once(loss, optimizer or _momentum)
    return dataclasses.replace(job, feed=feed or batch_feed(number))


@functools.cache
def _built_once(loss: Loss, optimizer: Any) -> Network:
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        made = loss(Batch())
        train_op, raw = optimized(made, optimizer)
    graph.finalize()
    return Network(graph, train_op, made, raw=raw)


def _momentum(step: Any) -> Any:
    return tf1.train.MomentumOptimizer(0.05, 0.9)


def _in_float64(loss: Any) -> Any:
    return tf.cast(loss, tf.float64)


def _normalised(x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [0])
    return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)


MEANS: Mapping[str, Loss] = {
    "of counts in each example": lambda b: tf.reduce_mean(
        tf.square(b.logits - tf.cast(counted_in_rows(b.y), tf.float64))
    ),
    "mean": lambda b: tf.reduce_mean(b.each),
    "mean of squares": lambda b: tf.reduce_mean(tf.square(b.error)),
    "mean and decay": lambda b: tf.reduce_mean(b.each) + b.decay,
    "sum over classes, mean over examples": lambda b: tf.reduce_mean(
        tf.reduce_sum(tf.square(b.error), axis=1)
    ),
    "sum by the size of the batch": lambda b: (
        tf.reduce_sum(b.each) / tf.cast(tf.shape(b.x)[0], tf.float64)
    ),
    "sum by the size of a tensor": lambda b: (
        tf.reduce_sum(tf.square(b.error)) / tf.cast(tf.size(b.error), tf.float64)
    ),
    "terms by the size of the batch": lambda b: tf.reduce_sum(
        b.each / tf.cast(tf.shape(b.y)[0], tf.float64)
    ),
    "softmax": lambda b: tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(labels=b.labels, logits=b.logits)
    ),
    "sigmoid": lambda b: tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=b.labels, logits=b.logits)
    ),
    "log of softmax": lambda b: (
        -tf.reduce_mean(tf.reduce_sum(b.labels * tf.math.log(tf.nn.softmax(b.logits) + 1e-9), 1))
    ),
    "losses.mean_squared_error": lambda b: _in_float64(
        tf1.losses.mean_squared_error(b.labels, b.logits)
    ),
    "losses.softmax_cross_entropy": lambda b: _in_float64(
        tf1.losses.softmax_cross_entropy(b.labels, b.logits)
    ),
    "losses.sparse_softmax_cross_entropy": lambda b: _in_float64(
        tf1.losses.sparse_softmax_cross_entropy(b.y, b.logits)
    ),
    "losses.huber_loss": lambda b: _in_float64(tf1.losses.huber_loss(b.labels, b.logits)),
    "losses.absolute_difference": lambda b: _in_float64(
        tf1.losses.absolute_difference(b.labels, b.logits)
    ),
    "losses.hinge_loss": lambda b: _in_float64(tf1.losses.hinge_loss(b.labels, b.logits)),
    "losses.log_loss": lambda b: _in_float64(tf1.losses.log_loss(b.labels, tf.sigmoid(b.logits))),
    "losses.cosine_distance": lambda b: _in_float64(
        tf1.losses.cosine_distance(b.labels, tf.nn.l2_normalize(b.logits, 1), axis=1)
    ),
    "mean of weighed terms": lambda b: tf.reduce_mean(b.each * b.mask),
    "focal": lambda b: tf.reduce_mean(
        tf.reduce_sum(
            -b.labels * (1 - tf.nn.softmax(b.logits)) ** 2 * tf.nn.log_softmax(b.logits), -1
        )
    ),
    "norm of each example": lambda b: tf.reduce_mean(tf.norm(b.error, axis=1)),
    "product of the log": lambda b: tf.reduce_mean(tf.math.log(tf.cosh(b.error))),
}

SUMS: Mapping[str, Loss] = {
    "sum": lambda b: tf.reduce_sum(b.each),
    "sum by a constant": lambda b: tf.reduce_sum(tf.square(b.error)) / 8.0,
    "l2_loss": lambda b: tf.nn.l2_loss(b.error),
    "sum over examples, mean over classes": lambda b: tf.reduce_sum(
        tf.reduce_mean(tf.square(b.error), axis=1)
    ),
    "sum of a mask": lambda b: tf.reduce_sum(b.each * b.mask),
    "two sums": lambda b: tf.reduce_sum(b.each) + 0.5 * tf.nn.l2_loss(b.error),
    "mean times size": lambda b: tf.reduce_mean(b.each) * tf.cast(tf.shape(b.x)[0], tf.float64),
    "matmul": lambda b: tf.reshape(
        tf.matmul(tf.reshape(b.each, [1, -1]), tf.reshape(b.mask, [-1, 1])), []
    ),
    "tensordot": lambda b: tf.tensordot(b.each, b.mask, 1),
    "einsum": lambda b: tf.einsum("bc,bc->", b.error, b.error),
    "losses.mean_squared_error, SUM": lambda b: _in_float64(
        tf1.losses.mean_squared_error(b.labels, b.logits, reduction="weighted_sum")
    ),
    "sum of a boolean mask": lambda b: tf.reduce_sum(tf.boolean_mask(b.each, b.mask > 0)),
    "sum and decay": lambda b: tf.reduce_sum(b.each) + 3.0 * b.decay,
    "half of sum and decay": lambda b: 0.5 * (tf.reduce_sum(b.each) + 3.0 * b.decay),
}

WEIGHTED: Mapping[str, Loss] = {
    "by the sum of a mask": lambda b: tf.reduce_sum(b.each * b.mask) / tf.reduce_sum(b.mask),
    "by the sum of a mask, or 1": lambda b: (
        tf.reduce_sum(b.each * b.mask) / tf.maximum(tf.reduce_sum(b.mask), 1.0)
    ),
    "by the sum of a mask and a bit": lambda b: (
        tf.reduce_sum(b.each * b.mask) / (tf.reduce_sum(b.mask) + 1e-3)
    ),
    "div_no_nan": lambda b: tf.math.divide_no_nan(
        tf.reduce_sum(b.each * b.mask), tf.reduce_sum(b.mask)
    ),
    "a mean by a mean": lambda b: tf.reduce_mean(b.each * b.mask) / tf.reduce_mean(b.mask),
    "mask over its mean": lambda b: tf.reduce_mean(b.each * b.mask / tf.reduce_mean(b.mask)),
    "boolean_mask": lambda b: tf.reduce_mean(tf.boolean_mask(b.each, b.mask > 0)),
    "boolean_mask of logits": lambda b: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.boolean_mask(b.y, b.mask > 0),
            logits=tf.boolean_mask(b.logits, b.mask > 0),
        )
    ),
    "gather of where": lambda b: tf.reduce_mean(
        tf.gather(b.each, tf.reshape(tf.where(b.mask > 0), [-1]))
    ),
    "losses with weights": lambda b: _in_float64(
        tf1.losses.sparse_softmax_cross_entropy(b.y, b.logits, weights=b.mask)
    ),
    "losses by the sum of weights": lambda b: _in_float64(
        tf1.losses.sparse_softmax_cross_entropy(
            b.y, b.logits, weights=b.mask, reduction="weighted_mean"
        )
    ),
    "where a count is not 0": lambda b: tf.where(
        tf.reduce_sum(b.mask) > 0,
        tf.reduce_sum(b.each * b.mask) / tf.reduce_sum(b.mask),
        tf.constant(0.0, tf.float64),
    ),
    "by a count or 1": lambda b: (
        tf.reduce_sum(b.each * b.mask)
        / tf.where(tf.reduce_sum(b.mask) > 0, tf.reduce_sum(b.mask), tf.constant(1.0, tf.float64))
    ),
    "by count_nonzero": lambda b: (
        tf.reduce_sum(b.each * b.mask) / tf.cast(tf.math.count_nonzero(b.mask), tf.float64)
    ),
    "dynamic_partition": lambda b: tf.reduce_mean(
        tf.dynamic_partition(b.each, tf.cast(b.mask, tf.int32), 2)[1]
    ),
    "weighted with decay": lambda b: (
        tf.reduce_sum(b.each * b.mask) / tf.reduce_sum(b.mask) + b.decay
    ),
}

NEITHER: Mapping[str, Loss] = {
    "norm": lambda b: tf.norm(b.error),
    "root of the mean of squares": lambda b: tf.sqrt(tf.reduce_mean(tf.square(b.error))),
    "square of a mean": lambda b: tf.square(tf.reduce_mean(b.error)),
    "maximum over the batch": lambda b: tf.reduce_max(b.each),
    "log of a mean": lambda b: tf.math.log(tf.reduce_mean(b.each)),
    "standard deviation": lambda b: tf.math.reduce_std(b.error),
    "variance": lambda b: tf.math.reduce_variance(b.error),
    "every pair": lambda b: tf.reduce_mean(tf.matmul(b.logits, b.logits, transpose_b=True)),
    "distances of pairs": lambda b: tf.reduce_mean(
        tf.square(b.logits[:, None, :] - b.logits[None, :, :])
    ),
    "contrastive": lambda b: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.range(tf.shape(b.x)[0]),
            logits=tf.matmul(b.logits, b.labels, transpose_b=True),
        )
    ),
    "the first example": lambda b: b.each[0],
    "neighbours": lambda b: tf.reduce_mean(tf.square(b.logits[1:] - b.logits[:-1])),
    "sum and mean": lambda b: tf.reduce_sum(b.each) + tf.reduce_mean(tf.square(b.error)),
    "divided by a trained count": lambda b: (
        tf.reduce_sum(b.each) / tf.reduce_sum(tf.square(b.logits))
    ),
    "dice": lambda b: (
        1
        - 2
        * tf.reduce_sum(b.labels * tf.nn.softmax(b.logits))
        / (tf.reduce_sum(b.labels) + tf.reduce_sum(tf.square(tf.nn.softmax(b.logits))))
    ),
}
ALL = {"mean": MEANS, "sum": SUMS, "weighted": WEIGHTED, "neither": NEITHER}
