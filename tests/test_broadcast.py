"""Variables reach all workers along a tree, in which nobody sends them to more than two others."""

from __future__ import annotations

import numpy as np
import pytest
from networks import network

import caramel
from caramel.devices import task_of
from caramel.modifiers import synchronise as programs

WORKERS = [1, 2, 3, 4, 7, 8]


def sends(model, variable):
    """For each worker that gets a variable, the task that sends it."""
    found = {}
    for worker in programs.broadcast_targets(variable, model.plan):
        op = model.graph.get_operation_by_name(programs.broadcast_op(worker, variable))
        value = op.inputs[1].op
        if value.type == "Identity" and value.device == op.device:
            (value,) = (tensor.op for tensor in value.inputs)
        found[worker] = task_of(value.device)
    return found


@pytest.mark.parametrize("workers", WORKERS)
def test_nobody_sends_a_variable_to_more_than_two_others(workers):
    model = caramel.ARModel(network("momentum").context(), workers, planner="plain", check=True)
    tasks = [task_of(device) for device in model.plan.devices]
    for variable in model.plan.variables:
        senders = sends(model, variable)
        assert sorted(senders) == list(range(1, workers))
        assert all(list(senders.values()).count(task) <= 2 for task in tasks)
        for worker in senders:  # it comes from worker 0, in few hops
            hops = 0
            while worker:
                worker, hops = tasks.index(senders[worker]), hops + 1
            assert 2**hops <= workers


@pytest.mark.parametrize("workers", WORKERS[1:])
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
