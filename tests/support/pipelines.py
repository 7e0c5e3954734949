"""A regression on the examples whose numbers an input pipeline delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import caramel
from tests.support.networks import tf, tf1

FEATURES = 3
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(40, FEATURES)
Y = RANDOM.randn(40)


@dataclass(frozen=True)
class Job:
    """A linear regression on the examples whose numbers a pipeline delivers."""

    graph: tf.Graph
    train_op: Any
    loss: Any
    ids: Any
    iterator: Any

    def model(self, workers: int, **options: Any) -> caramel.ARModel:
        context = caramel.Context(self.graph, train_op=self.train_op, loss=self.loss)
        return caramel.ARModel(context, workers=workers, check=True, **options)


def regression(ids: Any, *, averages: bool = False) -> tuple[Any, Any]:
    """Train op and loss of a regression on the examples of the given numbers."""
    x, y = tf.gather(tf.constant(X), ids), tf.gather(tf.constant(Y), ids)
    far_away = tf1.random_uniform_initializer(1.0, 2.0, dtype=tf.float64)  # so that training helps
    w = tf1.get_variable("w", [FEATURES, 1], tf.float64, far_away)
    updates = []
    if averages:
        mean = tf1.get_variable("mean", [FEATURES], tf.float64, trainable=False)
        count = tf1.get_variable("count", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        updates = [mean.assign_sub(0.1 * (mean - tf.reduce_mean(x, 0))), count.assign_add(1)]
    loss = tf.reduce_mean((tf.squeeze(x @ w, 1) - y) ** 2)
    train = tf1.train.MomentumOptimizer(0.05, 0.9).minimize(
        loss, global_step=tf1.train.get_or_create_global_step()
    )
    return tf.group(train, *updates), loss


def job(pipeline: Callable[[], Any], *, reshape: bool = False, averages: bool = False) -> Job:
    with tf.Graph().as_default() as graph:
        iterator = tf1.data.make_initializable_iterator(pipeline())
        ids = tf.identity(iterator.get_next(), name="ids")
        train_op, loss = regression(tf.reshape(ids, [-1]) if reshape else ids, averages=averages)
    return Job(graph, train_op, loss, ids, iterator)


def until_the_end(read: Callable[[], Any]) -> list[Any]:
    """What `read` returns, called until a pipeline has ended."""
    values = []
    while True:
        try:
            values.append(read())
        except tf.errors.OutOfRangeError:
            return values


def numbers(count: int = 10) -> Any:
    return tf.data.Dataset.range(count)
