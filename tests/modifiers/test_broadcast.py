"""Variables reach all workers along a tree, in which nobody sends them to more than two others."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.devices import task_of
from caramel.modifiers import variable_ops
from tests.support.networks import (
    OPTIMIZERS,
    Network,
    cross_entropy,
    inputs,
    network,
    optimized,
    perceptron,
    tf,
    tf1,
)
from tests.support.updates import job_with, normalized, with_update_ops


def sends(model, variable):
    """For each worker that gets a variable, the task that sends it."""
    found = {}
    for worker in variable_ops.broadcast_targets(variable, model.plan):
        op = model.graph.get_operation_by_name(variable_ops.broadcast_op(worker, variable))
        value = op.inputs[1].op
        if value.type == "Identity" and value.device == op.device:
            (value,) = (tensor.op for tensor in value.inputs)
        found[worker] = task_of(value.device)
    return found


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("local", [False, True])
def test_nobody_sends_a_variable_to_more_than_two_others(workers, local):
    job = job_with(with_update_ops, model=normalized) if local else network("momentum")
    model = caramel.ARModel(job.context(), workers, planner="plain", check=True)
    assert bool(model.plan.job.local) == local
    tasks = [task_of(device) for device in model.plan.job.devices]
    for variable in model.plan.job.variables:
        senders = sends(model, variable)
        if variable.name in model.plan.job.local and model.plan.consequences.evaluation:
            assert senders.pop(0) == tasks[0]  # from the evaluation copy beside it
        assert sorted(senders) == list(range(1, workers))
        assert all(list(senders.values()).count(task) <= 2 for task in tasks)
        for worker in senders:  # it comes from worker 0, in few hops
            hops = 0
            while worker:
                worker, hops = tasks.index(senders[worker]), hops + 1
            assert 2**hops <= workers


@pytest.mark.parametrize("workers", [4, 7])
def test_all_workers_have_what_was_initialised_and_what_was_restored(workers, tmp_path):
    job = network("adam")
    model = caramel.ARModel(job.context(), workers, planner="plain")
    with model.session() as session:
        initial = session.variables()
        assert_on_all(session, workers, initial)
        saved = session.save(tmp_path / "saved")
        for _ in range(2):
            session.step(job.feed)
        trained = session.variables()
        assert any(np.any(trained[name] != value) for name, value in initial.items())
        assert_on_all(session, workers, trained)
        session.restore(saved)
        assert_on_all(session, workers, initial)


def assert_on_all(session, workers, expected):
    for worker in range(workers):
        values = session.variables(worker=worker)
        for name, value in expected.items():
            np.testing.assert_array_equal(values[name], value, err_msg=f"{name}, {worker}")


def drawing_from_a_generator():
    """A job that scales its batch by what a generator draws; the state is a variable."""
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        state = tf1.get_variable(
            "state",
            initializer=np.array([3, 5, 7], np.int64),
            use_resource=True,
            trainable=False,
        )
        drawn = tf.raw_ops.StatefulStandardNormalV2(
            resource=state.handle, algorithm=np.int64(1), shape=[3], dtype=tf.float64
        )
        loss = cross_entropy(perceptron(x) * (1 + 0.1 * drawn), y)
        train_op, raw = optimized(loss, OPTIMIZERS["gradient_descent"])
    return Network(graph, train_op, loss, feed, raw)


def test_a_generators_key_is_told_apart_on_every_worker_of_the_tree():
    job, workers = drawing_from_a_generator(), 7
    model = caramel.ARModel(job.context(), workers, planner="plain", check=True)
    assert model.plan.job.generators == {"state"}
    with model.session() as session:
        states = [session.variables(worker=worker)["state"] for worker in range(workers)]
    np.testing.assert_array_equal(states, [[3, 5, 7 + worker] for worker in range(workers)])
