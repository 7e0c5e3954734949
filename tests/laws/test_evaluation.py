"""Batches that all workers evaluate come to what one device computes of all examples, and what each
worker is asked for is computed of its own variables."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.errors import FeedError
from tests.support.deferring import EVERY, deferred
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Network,
    cross_entropy,
    examples,
    inputs,
    l2,
    optimized,
    parameter,
    start_from,
    tf,
    tf1,
)
from tests.support.placed import placed
from tests.support.serving import served

FETCHES = {
    "means": ["judged_loss:0", "hits:0"],
    "sum": "total:0",
    "whole": ("judged:0", "costs:0"),
    "count": "right:0",
}


def judging() -> Network:
    """What is evaluated reads a moving average and a table, and runs a loop."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(2)
        x, y, feed = inputs(12)
        w = parameter("w", [FEATURES, CLASSES])
        average = tf1.get_variable("average", [FEATURES], tf.float64, tf1.zeros_initializer())
        loss = cross_entropy(x @ w, y)
        train_op, raw = optimized(loss, OPTIMIZERS["momentum"])
        own = tf1.get_variable("own", [FEATURES], tf.float64, trainable=False)  # of each worker
        moved = [
            average.assign(0.5 * average + 0.5 * tf.reduce_mean(x, 0)),
            own.assign(0.5 * own + 0.5 * tf.reduce_mean(x, 0)),
        ]
        _, judged = tf.while_loop(
            lambda number, _: number < 2,
            lambda number, values: (number + 1, tf.tanh(values)),
            [0, (x - average - own) @ w],
        )
        judged = tf.identity(judged, "judged")
        tf.identity(cross_entropy(judged, y), "judged_loss")
        tf.add(cross_entropy(judged, y, tf.reduce_sum), l2([w]), "total")
        right = tf.equal(tf.argmax(judged, 1, tf.int32), y)
        tf.reduce_mean(tf.cast(right, tf.float64), name="hits")
        tf.reduce_sum(tf.cast(right, tf.int64), name="right")
        pairs = tf.lookup.KeyValueTensorInitializer(
            tf.constant([0, 1, 2], tf.int64), tf.constant([0.5, 1.0, 2.0], tf.float64)
        )
        table = tf.lookup.StaticHashTable(pairs, tf.constant(0.0, tf.float64))
        costs = tf.identity(table.lookup(tf.cast(y, tf.int64)), "costs")
        tf.divide(tf.reduce_sum(costs * judged[:, 0]), tf.reduce_sum(costs), "weighted")
        seen = tf1.get_variable("seen", [], tf.float64, tf1.zeros_initializer(), trainable=False)
        with tf.control_dependencies([seen.assign_add(1.0).op]):
            tf.identity(loss, "counting")
        train_op = tf.group(train_op, *moved)
    return Network(graph, train_op, loss, feed, raw)


def lagging(job: Network) -> caramel.ARModel:
    """Updates of a step are done in the next one."""
    model = caramel.ARModel(job.context(), 3, pattern="shuffle")
    return caramel.ARModel(job.context(), 3, plan=deferred(model, EVERY), check=True)


MODELS = {
    "all-reduce": lambda job: caramel.ARModel(job.context(), 3, check=True),
    "deferred": lagging,
    "parameter servers": lambda job: served(job, 2, 1),
    "placed": lambda job: placed(job, 2, seed=1),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_evaluation_by_all_workers_is_that_of_one_device(make):
    job = judging()
    x, y = examples(17, seed=4)
    batches = [{"x": x[a:b], "y": y[a:b]} for a, b in ((0, 9), (9, 16), (16, 17))]
    with make(job).session(trials=None) as session:
        for steps in (2, 1):  # the second time variables have changed
            for _ in range(steps):
                session.step(job.feed)
            found = session.evaluate(iter(batches), FETCHES)
            values = session.variables()
            with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
                start_from(values, single)
                single.run(tf1.tables_initializer())
                expected = single.run(FETCHES, {"x:0": x, "y:0": y})
            for name in ("means", "sum", "whole"):
                for own, wanted in zip(
                    tf.nest.flatten(found[name]), tf.nest.flatten(expected[name]), strict=True
                ):
                    np.testing.assert_allclose(own, wanted, rtol=1e-12, atol=1e-15)
            assert sum(found["count"]) == expected["count"]
        assert session.evaluate(batches) == pytest.approx(
            session.run(job.loss, {"x": x, "y": y}), rel=1e-12
        )
        with pytest.raises(FeedError, match="'weighted:0'.*divided by .*the sum and the count"):
            session.evaluate(batches, "weighted:0")
        with pytest.raises(FeedError, match="what is fetched writes variable 'seen'"):
            session.evaluate(batches, "counting:0")


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_each_worker_is_asked_for_what_it_computes_of_its_own_variables(make):
    job = judging()
    x, y = examples(7, seed=4)
    wanted = ["judged_loss:0", "costs:0", "own:0"]
    model = make(job)
    with model.session(trials=None) as session, tf1.Session(graph=job.graph) as single:
        single.run(tf1.tables_initializer())
        for _ in range(2):  # the second time copies are there, and variables have changed
            session.step(job.feed)
            fetches = {"all": "judged_loss:0", "own": (caramel.per_worker(wanted), "own:0")}
            found = session.run(fetches, {"x": x, "y": y})
            own, mean = found["own"]
            assert all(isinstance(each, tuple) and len(each) == model.plan.workers for each in own)
            assert len({float(each[0]) for each in own[2]}) == model.plan.workers
            np.testing.assert_allclose(np.mean(own[2], 0), mean, rtol=1e-12)
            np.testing.assert_allclose(session.run("judged_loss:0", {"x": x, "y": y}), found["all"])
            for worker in range(model.plan.workers):
                values = session.variables(worker=worker)
                with job.graph.as_default():
                    start_from(values, single)
                expected = [*single.run(wanted[:2], {"x:0": x, "y:0": y}), values["own"]]
                for each, value in zip(own, expected, strict=True):
                    np.testing.assert_allclose(each[worker], value, rtol=1e-12)
        with pytest.raises(FeedError, match="'counting:0' writes variable 'seen', which session"):
            session.run(caramel.per_worker("counting:0"), {"x": x, "y": y})
