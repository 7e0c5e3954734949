"""Pipelines of the graph that all workers evaluate come to what one device computes of all."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.errors import FeedError
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Network,
    cross_entropy,
    examples,
    inputs,
    optimized,
    parameter,
    start_from,
    tf,
    tf1,
)
from tests.support.pipelines import Job, job, numbers, until_the_end
from tests.support.placed import placed
from tests.support.serving import served

READ = "IteratorGetNext"
COUNT, BATCH = 10, 4  # so that the last batch is smaller
FETCHES = {
    "means": ["judged_loss:0", "hits:0"],
    "sum": "total:0",
    "whole": ("judged:0", "test_y:0"),
    "count": "right:0",
}


def judging() -> Network:
    """Trained on what is fed; `judged` and what is made of it come from a pipeline."""
    test_x, test_y = examples(COUNT, seed=5)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(2)
        x, y, feed = inputs(12)
        w = parameter("w", [FEATURES, CLASSES])
        loss = cross_entropy(x @ w, y)
        train_op, raw = optimized(loss, OPTIMIZERS["momentum"])
        pipeline = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(BATCH)
        iterator = tf1.data.make_initializable_iterator(pipeline)
        tf.group(iterator.initializer, name="begin")
        some_x, some_y = iterator.get_next()
        judged = tf.identity(some_x * tf1.placeholder(tf.float64, [], "scale") @ w, "judged")
        tf.identity(some_y, "test_y")
        tf.identity(cross_entropy(judged, some_y), "judged_loss")
        tf.identity(cross_entropy(judged, some_y, tf.reduce_sum), "total")
        right = tf.equal(tf.argmax(judged, 1, tf.int32), some_y)
        tf.reduce_mean(tf.cast(right, tf.float64), name="hits")
        tf.reduce_sum(tf.cast(right, tf.int64), name="right")
    return Network(graph, train_op, loss, feed, raw)


MODELS = {
    "all-reduce": lambda job: caramel.ARModel(job.context(), 2, check=True),
    "parameter servers": lambda job: served(job, 2, 1),
    "placed": lambda job: placed(job, 2, seed=1),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_a_whole_pipeline_is_evaluated_each_example_once(make):
    network = judging()
    test_x, test_y = examples(COUNT, seed=5)
    with make(network).session(trials=None) as session:
        session.step(network.feed)
        session.run("begin")
        found = session.evaluate({"scale": 0.5}, FETCHES)
        with network.graph.as_default(), tf1.Session(graph=network.graph) as single:
            start_from(session.variables(), single)
            reads = [op.name for op in network.graph.get_operations() if op.type == READ]
            fed = {f"{reads[0]}:0": test_x, f"{reads[0]}:1": test_y, "scale:0": 0.5}
            expected = single.run(FETCHES, fed)
        for name in ("means", "sum", "whole"):
            for own, wanted in zip(
                tf.nest.flatten(found[name]), tf.nest.flatten(expected[name]), strict=True
            ):
                np.testing.assert_allclose(own, wanted, rtol=1e-12)
        assert sum(found["count"]) == expected["count"]
        with pytest.raises(FeedError, match=r"is at its end: run the initializer"):
            session.evaluate({"scale": 0.5}, FETCHES)


def test_evaluation_takes_nothing_from_the_pipeline_of_training():
    own = job(lambda: numbers().shuffle(10).batch(3))  # without a seed
    with own.model(2).session(trials=None) as session:
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.evaluate(fetches=own.ids)
        session.run(own.iterator.initializer)
        first = session.step(fetches=own.ids)
        assert sorted(session.evaluate(fetches=own.ids)) == list(range(10))
        rest = until_the_end(lambda: session.step(fetches=own.ids))
        trained = [int(n) for step in (first, *rest) for n in np.concatenate([*step], axis=None)]
        assert len(set(trained)) == len(trained) >= 6
        session.run(own.iterator.initializer)
        values, losses = session.evaluate(fetches=[own.ids, own.loss])
        session.run(own.iterator.initializer)
        assert sorted(values) == list(range(10))
        assert losses == pytest.approx(session.evaluate(), rel=1e-12)  # in another order


def composites() -> Job:
    """Examples have a sparse and a ragged part, and nothing else."""

    def sparse(number):
        return tf.sparse.from_dense(tf.one_hot(number, 7, dtype=tf.float64))

    def ragged(number):
        return tf.RaggedTensor.from_tensor(tf.ones([1, number % 3]))

    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, 7], "x")
        w = tf1.get_variable("w", [7, 1], tf.float64, tf1.ones_initializer())
        loss = tf.reduce_mean(x @ w)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        parts = [tf.data.Dataset.range(7).map(part).batch(3) for part in (sparse, ragged)]
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.zip(tuple(parts)))
        some, rows = iterator.get_next()
        product = tf.identity(tf.sparse.sparse_dense_matmul(some, w), "product")
        tf.reduce_mean(product, name="average")
        tf.identity(tf.reduce_sum(rows, axis=[1, 2]), "sums")
    return Job(graph, train_op, loss, None, iterator)


def test_sparse_and_ragged_parts_of_examples_are_evaluated():
    own = composites()
    with own.model(2).session(trials=None) as session:
        session.run(own.iterator.initializer)
        product, sums, mean = session.evaluate(None, ["product:0", "sums:0", "average:0"])
        np.testing.assert_array_equal(product, np.ones([7, 1]))
        np.testing.assert_array_equal(sums, [n % 3 for n in range(7)])
        assert mean == pytest.approx(1.0, rel=1e-12)


def test_pipelines_that_cannot_be_evaluated_are_refused():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(12)
        w = parameter("w", [FEATURES, CLASSES])
        loss = cross_entropy(x @ w, y)
        train_op, raw = optimized(loss, OPTIMIZERS["momentum"])
        iterator = tf1.data.make_initializable_iterator(numbers().batch(2))
        with tf.control_dependencies([iterator.get_next().op]):
            tf.reduce_sum(w * 1.0, name="after")
        tf.identity(iterator.get_next(), "ids")
    network = Network(graph, train_op, loss, feed, raw)
    with caramel.ARModel(network.context(), 2).session(trials=None) as session:
        session.run(iterator.initializer)
        with pytest.raises(
            FeedError, match="nothing but its values is needed.*reads one at 'Const"
        ):
            session.evaluate(fetches="after:0")
        with pytest.raises(FeedError, match="reads one at .* give no list of batches"):
            session.evaluate([{}, {}], "ids:0")
        with pytest.raises(FeedError, match="per_worker: 'ids:0' reads an input pipeline"):
            session.run(caramel.per_worker("ids:0"))
        assert list(session.evaluate(fetches="ids:0")) == list(range(10))  # none was taken
