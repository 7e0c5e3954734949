"""Classifiers of words whose table of embeddings has sparse gradients."""

from __future__ import annotations

import functools

import numpy as np

from tests.support.networks import (
    OPTIMIZERS,
    PROCESSES,
    Network,
    cross_entropy,
    optimized,
    parameter,
    tf,
    tf1,
)

ROWS, WIDTH, CLASSES, WORDS = 12, 4, 3, 5
METHODS = ("gather", "dense")


def looked_up_once(ids):
    return tf.nn.embedding_lookup(parameter("table", [ROWS, WIDTH]), ids)


def looked_up_twice(ids):
    table = parameter("table", [ROWS, WIDTH])
    return tf.nn.embedding_lookup(table, ids) + tf.nn.embedding_lookup(table, (ids * 5 + 1) % ROWS)


@functools.cache
def embedding(
    optimizer="gradient_descent",
    process="unchanged",
    *,
    lookup=looked_up_once,
    number: int = 14,
    reduce=tf.reduce_mean,
    index_dtype=tf.int32,
    distinct: bool = False,
) -> Network:
    """Words of a sentence, averaged and classified. Ids repeat in and between the sentences."""
    random = np.random.RandomState(3)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        ids = tf1.placeholder(index_dtype, [None, WORDS], name="ids")
        labels = tf1.placeholder(tf.int32, [None], name="labels")
        hidden = tf.tanh(tf.reduce_mean(lookup(ids), 1))
        loss = cross_entropy(hidden @ parameter("w", [WIDTH, CLASSES]), labels, reduce)
        make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        train_op, raw = optimized(loss, make, PROCESSES.get(process, process))
    graph.finalize()  # so one device trains it once
    highest = 7  # of twelve rows some are never touched
    words = random.randint(0, highest, (number, WORDS))
    if distinct:
        words = np.arange(number * WORDS).reshape(number, WORDS) % ROWS
    feed = {"ids:0": words, "labels:0": random.randint(0, CLASSES, number)}
    return Network(graph, train_op, loss, feed, raw)
