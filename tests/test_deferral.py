"""Deferred groups change when an update is done, never what it is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from networks import (
    OPTIMIZERS,
    PROCESSES,
    STEPS,
    Network,
    inputs,
    cross_entropy,
    network,
    optimized,
    parameter,
    perceptron,
    relative_error,
    run_on_one_device,
    tf,
    tf1,
    tied,
)

import caramel
from caramel.errors import PlanError
from caramel.plan import Gate

EVERY, FIRST, LAST, SOME = "every", "first", "last", "some"
CHOICES = {
    EVERY: lambda number, count: True,
    FIRST: lambda number, count: number == 0,
    LAST: lambda number, count: number == count - 1,
    SOME: lambda number, count: number % 2 == 1,
}


def deferred(model, choice):
    """The model's plan with some of its groups deferred."""
    groups = [
        dataclasses.replace(group, deferred=CHOICES[choice](number, len(model.plan.groups)))
        for number, group in enumerate(model.plan.groups)
    ]
    return dataclasses.replace(model.plan, groups=tuple(groups))


def train(model, feed, steps=STEPS):
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for _ in range(steps)]
        replicas = [session.variables(worker=w) for w in range(model.plan.workers)]
        return initial, losses, session.variables(), replicas


def assert_same(job, workers, choice, *, pattern="shuffle", change=lambda plan: plan, **options):
    """Training with deferred groups gives the same bits as training without."""
    context = job.context()
    plain = caramel.ARModel(context, workers, pattern=pattern, **options)
    plan = change(deferred(plain, choice))
    other = caramel.ARModel(context, workers, plan=plan, check=True)
    assert other.plan.deferral.moved
    _, losses, values, _ = train(plain, job.feed)
    initial, other_losses, other_values, replicas = train(other, job.feed)
    for name, value in values.items():
        np.testing.assert_array_equal(other_values[name], value, err_msg=name)
        for replica in replicas:
            np.testing.assert_array_equal(replica[name], value, err_msg=name)
    assert other_losses == losses
    return initial, other_values


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gives_the_same_bits(optimizer, choice):
    workers = 2 + len(optimizer) % 2
    assert_same(network(optimizer, dtype=tf.float32), workers, choice) if (
        optimizer not in ("proximal", "exponential", "adagrad_da")
    ) else assert_same(network(optimizer), workers, choice)


@pytest.mark.parametrize("choice", [EVERY, SOME])
@pytest.mark.parametrize("process", PROCESSES)
def test_clipping_and_decay_give_the_same_bits(process, choice):
    assert_same(network("adam", process, decayed_loss=True), 2, choice)


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "piecewise"])
def test_deferred_training_is_that_of_one_device(optimizer):
    job = network(optimizer)
    initial, values = assert_same(job, 3, EVERY)
    expected = run_on_one_device(job, initial)
    assert relative_error(values, expected.values) < 1e-12
