"""Tests of traced calls: on a busy machine, after a failure, with a lost worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import caramel
from caramel.core.errors import WorkerLostError
from tests.support import processes
from tests.support.deferring import EVERY, deferred
from tests.support.networks import (
    CLASSES,
    Network,
    cross_entropy,
    inputs,
    network,
    parameter,
    tf,
    tf1,
    wide,
)

BUSY = [sys.executable, "-c", "while True: pass"]


@contextmanager
def busy_machine():
    """Twice as many processes that only compute as there are processors."""
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            process = stack.enter_context(subprocess.Popen(BUSY))
            stack.callback(process.kill)
        yield


def received(timeline):
    """How often each task received each tensor."""
    return Counter((s.worker, s.name) for s in timeline.spans if s.resource == "receive")


@pytest.mark.processes
@pytest.mark.parametrize("defers", [False, True])
def test_all_transfers_are_recorded_on_a_busy_machine(defers):
    """Of a step alone, and of one beside which the last one's deferred part is done."""
    job = network("momentum", model=wide)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    if defers:
        model = caramel.ARModel(job.context(), 2, plan=deferred(model, EVERY))
    with model.session() as session, busy_machine():
        for _ in range(2):
            session.step(job.feed)
        first, *later = session.trace(40, job.feed)
    assert {worker for worker, _ in received(first)} == {0, 1}
    assert [received(timeline) for timeline in later] == [received(first)] * 39


def test_a_traced_step_may_fail():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        weights = parameter("w", [x.shape[1], CLASSES])
        metric = tf1.placeholder(tf.float64, [], name="metric")
        loss = cross_entropy(x @ weights, y) + 0 * tf.debugging.check_numerics(metric, "bad metric")
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    model = caramel.ARModel(Network(graph, train_op, loss, feed).context(), 2)
    with model.session() as session:
        (before,) = session.trace(1, {**feed, "metric:0": 0.0})
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad metric"):
            session.trace(1, {**feed, "metric:0": np.nan})
        (after,) = session.trace(1, {**feed, "metric:0": 0.0})
        assert session.metrics().steps == 2
    assert Counter() < received(before) == received(after)  # without what heals the replicas


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
@pytest.mark.parametrize("before", [0, 1])
def test_a_worker_that_is_lost_before_a_traced_step_is_named(before):
    job = network("momentum", model=wide)
    with (
        caramel.Cluster.local(2) as cluster,
        caramel.ARModel(job.context(), cluster).session() as session,
    ):
        session.step(job.feed)
        for _ in range(before):
            session.trace(1, job.feed)
        os.kill(processes.worker_pid(cluster, 1), signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="worker 1"):
            session.trace(1, job.feed)
