"""Whatever fails after a step has run, the session goes on as if it had not: nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.native import session as c_api
from caramel.runtime import variables
from caramel.runtime.steps import plan_executor
from tests.support.deferring import EVERY, SOME, deferred
from tests.support.networks import (
    Network,
    built_network,
    network,
    relative_error,
    run_on_one_device,
    tf,
    tf1,
)

PLAIN = {"planner": "plain", "pattern": "shuffle"}


def no_memory(*_, **__):
    raise MemoryError("no memory")


def interrupted(*_, **__):
    raise KeyboardInterrupt


def none_is_recorded(*_, **__):
    raise ValueError("a message that cannot be read")


@pytest.fixture(name="job", scope="module")
def fixture_job():
    return network("adam", "clip_by_value", number=24)


def model_of(job, choice):
    plain = caramel.ARModel(job.context(), 2, **PLAIN)
    if choice is None:
        return plain
    return caramel.ARModel(job.context(), 2, plan=deferred(plain, choice))


@pytest.mark.parametrize("choice", [None, SOME, EVERY])
@pytest.mark.parametrize(
    ("place", "name", "failure"),
    [
        (c_api, "_value", no_memory),  # of a fetched tensor
        (plan_executor, "combine", no_memory),  # what the workers returned
        (plan_executor, "combine", interrupted),
    ],
)
def test_a_step_whose_results_are_lost_counts(choice, place, name, failure, job, monkeypatch):
    with model_of(job, choice).session(trials=None) as session:
        initial = session.variables()
        losses = {}
        for step in range(6):
            if step in (2, 3):
                with monkeypatch.context() as patch:
                    patch.setattr(place, name, failure)
                    with pytest.raises((MemoryError, KeyboardInterrupt)):
                        session.step(job.feed)
            else:
                losses[step] = session.step(job.feed)
        values = session.variables()
        for worker in range(2):
            assert relative_error(session.variables(worker), values) == 0
    expected = run_on_one_device(job, initial, steps=6)
    assert relative_error(values, expected.values) < 1e-12
    for step, loss in losses.items():
        assert loss == pytest.approx(expected.losses[step], rel=1e-12)


@pytest.mark.parametrize("choice", [None, EVERY])
def test_a_step_whose_feed_cannot_be_sent_is_not_done_and_the_one_before_is(
    choice, job, monkeypatch
):
    with model_of(job, choice).session(trials=None) as session:
        initial = session.variables()
        session.step(job.feed)
        with monkeypatch.context() as patch:
            patch.setattr(c_api, "_tensor", no_memory)
            with pytest.raises(MemoryError):
                session.step(job.feed)
        for _ in range(2):
            session.step(job.feed)
        values = session.variables()
    assert relative_error(values, run_on_one_device(job, initial, steps=3).values) < 1e-12


def test_a_traced_step_whose_trace_cannot_be_read_counts(job, monkeypatch):
    with model_of(job, EVERY).session(trials=None) as session:
        initial = session.variables()
        session.trace(1, job.feed)  # the first one in a process looks at labels
        with monkeypatch.context() as patch:
            patch.setattr(c_api, "_bytes_of", none_is_recorded)
            with pytest.raises(ValueError, match="cannot be read"):
                session.trace(1, job.feed)
        session.step(job.feed)
        values = session.variables()
    assert relative_error(values, run_on_one_device(job, initial, steps=3).values) < 1e-12


def test_what_run_has_assigned_before_it_fails_reaches_all_workers_or_none():
    job = built_network("momentum", number=24)
    with job.graph.as_default():
        w = tf1.trainable_variables()[0]
        with tf.control_dependencies([w.assign(tf.ones_like(w))]):
            bad = tf.debugging.check_numerics(tf.constant(np.nan), "bad number", name="bad")
    assert bad.op.name == "bad"
    job = Network(job.graph, job.train_op, job.loss, job.feed)
    with model_of(job, None).session() as session:
        session.step(job.feed)
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad number"):
            session.run("bad:0")
        first, second = session.variables(0), session.variables(1)
        assert relative_error(second, first) == 0
        session.step(job.feed)
        assert relative_error(session.variables(1), session.variables(0)) == 0


def test_a_restore_that_is_interrupted_leaves_all_workers_equal(job, tmp_path, monkeypatch):
    with model_of(job, EVERY).session(trials=None) as session:
        path = session.save(tmp_path / "m")
        for _ in range(2):
            session.step(job.feed)
        with monkeypatch.context() as patch:
            patch.setattr(variables.SharedState, "broadcast", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.restore(path)
        session.step(job.feed)
        assert relative_error(session.variables(1), session.variables(0)) == 0
