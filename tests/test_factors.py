"""Gradients that every worker computes from the factors of all workers."""

from __future__ import annotations

import dataclasses

import pytest
from networks import (
    STEPS,
    Network,
    network,
    parameter,
    relative_error,
    run_on_one_device,
    tf,
    wide,
)
from pending_updates import assert_equal
from test_variants import plain_training

import caramel
from caramel.analysis import Analysis
from caramel.analyzers import ANALYZERS
from caramel.facts import GradientFactors
from caramel.plan import FACTORS, Plan


def convolutional(x):
    """Two convolutions, a depthwise one and one in three dimensions, and a dense layer."""
    h = tf.reshape(x, [-1, 6, 1, 1])
    h = tf.nn.conv2d(h, parameter("k", [3, 1, 1, 4], x.dtype), 1, "SAME")
    h = tf.nn.depthwise_conv2d(h, parameter("d", [3, 1, 4, 2], x.dtype), [1, 1, 1, 1], "SAME")
    h = tf.tanh(tf.nn.conv2d(h, parameter("k2", [6, 1, 8, 5], x.dtype), 1, "VALID"))
    h = tf.reshape(h, [-1, 1, 1, 1, 5])
    h = tf.nn.conv3d(h, parameter("k3", [1, 1, 1, 5, 4], x.dtype), [1, 1, 1, 1, 1], "SAME")
    return tf.reshape(h, [-1, 4]) @ parameter("w", [4, 3], x.dtype)


def by_factors(plan: Plan) -> Plan:
    """The plan with every gradient by its factors that has some."""
    groups = [
        dataclasses.replace(group, pattern=FACTORS)
        if plan.gradient(group.members[0]).factors is not None
        else group
        for group in plan.groups
    ]
    return dataclasses.replace(plan, groups=tuple(groups))


def factored(job: Network, workers: int) -> caramel.ARModel:
    plain = caramel.ARModel(job.context(), workers, pattern="shuffle").plan
    return caramel.ARModel(job.context(), workers, plan=by_factors(plain), check=True)


def factors_of(job: Network) -> GradientFactors:
    context = job.context()
    return Analysis([context.op_graph, context.job], ANALYZERS).get(GradientFactors)


def assert_same_bits(job: Network, workers: int, *, feeds=None):
    """Training by factors has the bits of training by `shuffle`, on each worker."""
    losses, values = plain_training(job, workers, feeds=feeds)
    model = factored(job, workers)
    assert any(group.pattern == FACTORS for group in model.plan.groups)
    with model.session() as session:
        initial = session.variables()
        for step in range(STEPS):
            assert session.step(feeds[step] if feeds else job.feed) == losses[step], step
        for worker in range(workers):
            assert_equal(session.variables(worker=worker), values)
    return initial, values


# Exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("model", [wide, convolutional])
def test_factors_give_the_bits_of_shuffle(model, dtype, workers):
    assert_same_bits(network("momentum", model=model, dtype=dtype), workers)


@pytest.mark.parametrize("model", [wide, convolutional])
def test_factors_train_as_one_device(model):
    job = network("adam", model=model)
    initial, values = assert_same_bits(job, 3)
    assert relative_error(values, run_on_one_device(job, initial).values) < 1e-12


def test_parts_of_a_batch_count_as_they_do_with_shuffle():
    job = network("momentum", model=convolutional)
    sizes = [40, 39, 38, 7]
    feeds = [
        {name: value[: sizes[step % 4]] for name, value in job.feed.items()}
        for step in range(STEPS)
    ]
    assert_same_bits(job, 3, feeds=feeds)
