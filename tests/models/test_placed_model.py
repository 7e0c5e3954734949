"""One replica over several devices trains as one device does, wherever its ops are."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from benchmarks import networks as of_papers
from tests.support import control_flow, pipelines
from tests.support.control_flow import plain_network
from tests.support.networks import (
    OPTIMIZERS,
    Network,
    control_flow_version,
    cross_entropy,
    inputs,
    network,
    optimized,
    parameter,
    perceptron,
    relative_error,
    start_from,
    tf,
    tf1,
    wide,
)
from tests.support.placed import assert_placed_equals_one_device, is_spread, placed
from tests.support.updates import job_with, normalized, with_update_ops


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    job = network(optimizer, "clip_by_global_norm")
    model = placed(job, seed=len(optimizer))
    assert is_spread(model)
    assert_placed_equals_one_device(model, job)


@pytest.mark.parametrize(("model", "v2"), control_flow.CASES)
def test_control_flow(model, v2):
    with control_flow_version("v2" if v2 else "v1"):
        job = plain_network(model)
        spread = placed(job, seed=1)
        assert is_spread(spread)
        assert_placed_equals_one_device(spread, job)


@pytest.mark.parametrize("partitioner", ["search", "dfs", "heft", "mite", "batch_split"])
def test_partitioners(partitioner):
    job = network("adam", model=wide)
    assert_placed_equals_one_device(placed(job, partitioner=partitioner), job)


def test_moving_averages():
    job = job_with(with_update_ops, model=normalized)
    assert_placed_equals_one_device(placed(job), job)


def test_seeded_dropout():
    """Masks are those of one device: seeds are in the ops, or in a generator's variable."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        generator = tf.random.Generator.from_seed(3, alg="philox")
        kept = tf.cast(generator.uniform(tf.shape(x), dtype=tf.float64) < 0.8, tf.float64)
        loss = cross_entropy(perceptron(tf1.nn.dropout(x * kept, rate=0.3, seed=5)), y)
        train_op, raw = optimized(loss, OPTIMIZERS["momentum"])
    job = Network(graph, train_op, loss, feed, raw)
    model = placed(job, seed=2)
    with model.session(trials=None) as session, tf1.Session(graph=graph) as alone:
        with graph.as_default():
            alone.run(tf1.global_variables_initializer())
            session.assign({v.op.name: alone.run(v) for v in tf1.global_variables()})
        for _ in range(5):
            assert session.step(feed) == alone.run([loss, train_op], feed)[0]


def test_rows_of_a_table():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        rows = tf.nn.embedding_lookup(parameter("rows", [6, 5]), tf.abs(y) % 6)
        loss = cross_entropy(tf.concat([x, rows], 1) @ parameter("w", [x.shape[1] + 5, 3]), y)
        train_op, raw = optimized(loss, OPTIMIZERS["adagrad"])
    job = Network(graph, train_op, loss, feed, raw)
    assert_placed_equals_one_device(placed(job, seed=4), job)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_input_pipeline(seed):
    job = pipelines.job(lambda: pipelines.numbers(12).batch(4))
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    model = caramel.PlacedModel(context, 3, partitioner="hash", seed=seed, check=True)
    with model.session(trials=None) as session, tf1.Session(graph=job.graph) as alone:
        with job.graph.as_default():
            alone.run([tf1.global_variables_initializer(), job.iterator.initializer])
            session.assign({v.op.name: alone.run(v) for v in tf1.global_variables()})
        session.run(job.iterator.initializer)
        for _ in range(3):
            assert session.step() == alone.run([job.loss, job.train_op])[0]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image"), [("resnet_v2_50", 32), ("inception_v1", 64), ("alexnet_v2", 80)]
)
def test_networks_of_the_papers(name, image):
    """Gradients that are added up are rounded in another order; else bits are the same."""
    job = of_papers.build(name, batch=2, image=image, optimizer="sgd")
    model = caramel.PlacedModel(job.context(), 3, partitioner="critical_path", speeds=[1, 1.1, 1.2])
    assert is_spread(model)
    feed = job.feed()
    with model.session(trials=None) as session, tf1.Session(graph=job.graph) as alone:
        with job.graph.as_default():
            variables = {v.op.name: v for v in tf1.global_variables()}
            start_from(session.variables(), alone)
        for _ in range(2):
            expected = alone.run([job.loss, job.train_op], feed)[0]
            np.testing.assert_allclose(session.step(feed), expected, rtol=1e-5)
        values, wanted = session.variables(), alone.run(variables)
    assert relative_error(values, wanted) < 1e-4
