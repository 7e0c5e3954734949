"""Sessions with `caramel.Recovery` go on without a parameter server or a device that stays away."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import pytest

import caramel
from caramel.cluster.processes import LISTENING, free_ports
from caramel.core.errors import PlanError, RecoveryError
from caramel.runtime.recovery import members
from tests.runtime.test_recovery import averaged, batch, on_one_device
from tests.runtime.test_resuming import expected
from tests.support import forking
from tests.support.networks import Network, deep, parameter, relative_error, tf, tf1
from tests.support.pipelines import job as pipelines_job
from tests.support.pipelines import numbers
from tests.support.placed import is_spread, placed
from tests.support.processes import WORKER, started

pytestmark = pytest.mark.processes

SETTINGS = caramel.Recovery(snapshot_every=3, wait_s=0.5)


class Tasks:
    """Workers and servers that somebody else starts; those of a cluster by their number."""

    def __init__(self, workers: int, servers: int, stack: ExitStack) -> None:
        ports = free_ports(workers + servers)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self._own, self._servers = addresses[:workers], addresses[workers:]
        self._running, self._stack = {}, stack
        for task in range(len(addresses)):
            self.start(task)
        self.cluster = caramel.Cluster.of(self._own, parameter_servers=self._servers or None)

    def start(self, task: int) -> None:
        words = ["--cluster", ",".join(self._own)]
        is_server = task >= len(self._own)
        if self._servers:
            words += ["--ps", ",".join(self._servers), "--job", "ps" if is_server else "worker"]
        words += ["--task", str(task - len(self._own) if is_server else task)]
        process = self._stack.enter_context(started(*WORKER, *words, how=forking.Popen))
        self._running[task] = process
        assert LISTENING in process.stdout.readline()

    def kill(self, *tasks: int) -> None:
        for task in tasks:
            self._running[task].kill()
            self._running[task].wait()


@pytest.fixture(name="stack")
def fixture_stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(name="served")
def fixture_served(stack):
    """Two workers, the tasks 0 and 1, and two parameter servers, 2 and 3."""
    return Tasks(2, 2, stack)


@pytest.fixture(name="devices")
def fixture_devices(stack):
    """Three tasks, over which a model is spread."""
    return Tasks(3, 0, stack)


def servers_of(session) -> int:
    return len(session._running.job.plan.job.servers)


def test_variables_of_a_server_that_stays_away_go_to_those_that_are_left(served):
    """Also those that are split by rows; a worker may stay away, too; both are taken in again."""
    job, steps = averaged(deep), 22
    model = caramel.PSModel(job.context(), served.cluster, ordering="tic")
    assert model.context.row_splits.splits
    there = []
    with model.session(trials=None, recover=SETTINGS) as session:
        initial = session.variables()
        for step in range(steps):
            if step == 4:
                served.kill(2)
            if step == 6:  # the other one has a second copy of all by now
                served.kill(3)
                served.start(3)
            if step == 8:
                served.kill(0)
            if step == 13:
                served.start(0)
                served.start(2)
                time.sleep(members.RETURN_EVERY_S)
            if step == 18:
                served.kill(3)
            session.step(batch(job, step))
            there.append((session._running.job.plan.workers, servers_of(session)))
        values, metrics = session.variables(), session.metrics()
        served.kill(2)
        with pytest.raises(RecoveryError, match=r"none of 2 parameter servers is left; .*/job:ps/"):
            session.step(job.feed)
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    told = [(record.workers, record.servers) for record in metrics.recoveries]
    assert told == [(2, 1), (2, 1), (1, 1), (2, 2), (2, 1)]
    assert [*dict.fromkeys(there[:18])] == [(2, 2), (2, 1), (1, 1)]
    assert there[-1] == (2, 1)
    assert "2 workers and 1 parameter server since" in dict(metrics.rows())["recoveries"]


def test_what_infers_goes_on_without_a_server(served):
    job = averaged()
    model = caramel.PSModel(job.context(), served.cluster, mode="inference")
    with model.session(trials=None, recover=SETTINGS) as session:
        before, loss = session.variables(), session.step(job.feed)
        served.kill(3)
        assert session.step(job.feed) == pytest.approx(loss, rel=1e-12)
        assert servers_of(session) == 1
        values = session.variables()
    for name, value in before.items():
        np.testing.assert_array_equal(values[name], value)


def test_agents_do_without_what_those_do_without_whose_variables_they_read(served):
    job = averaged()
    model = caramel.PSModel(job.context(), served.cluster)
    agents = caramel.PSModel(job.context(), served.cluster, mode="inference")
    with model.session(trials=None, recover=SETTINGS) as session:
        session.step(job.feed)
        served.kill(0, 3)
        session.step(job.feed)
        loss = session.evaluate(job.feed)
        with agents.session(trials=None, variables=session) as agent:
            assert (agent._running.job.plan.workers, servers_of(agent)) == (1, 1)
            assert agent.step(job.feed) == pytest.approx(loss, rel=1e-12)


def test_a_pipeline_goes_on_though_the_only_replica_is_placed_anew(devices):
    """Its examples are shuffled without a seed, on the device that stays away."""
    made = pipelines_job(lambda: numbers(40).shuffle(40).batch(2))
    context = caramel.Context(made.graph, train_op=made.train_op, loss=made.loss)
    model = caramel.PlacedModel(context, devices.cluster, partitioner="hash")
    killed, seen = model.plan.placement.number_of[made.iterator.initializer.name], []
    with model.session(trials=None, recover=SETTINGS) as session:
        session.run(made.iterator.initializer)
        w = session.variables()["w"]
        for step in range(20):
            if step == 8:
                devices.kill(killed)
            seen.append(np.ravel(session.step(fetches=made.ids)))
        value = session.variables()["w"]
    assert sorted(np.concatenate(seen)) == list(range(40))
    np.testing.assert_allclose(value, expected(w, seen), rtol=1e-12)


@pytest.mark.parametrize("killed", [0, 2])
def test_what_was_on_a_device_that_stays_away_is_placed_anew(devices, killed):
    """Also on the one that is fed."""
    job, steps = averaged(), 12
    model = placed(job, devices.cluster, seed=1)
    assert is_spread(model)
    there = []
    with model.session(trials=None, recover=SETTINGS) as session:
        initial = session.variables()
        for step in range(steps):
            if step == 4:
                devices.kill(killed)
            if step == 8:
                devices.start(killed)
                time.sleep(members.RETURN_EVERY_S)
            session.step(batch(job, step))
            there.append(len(session._running.job.plan.placement.devices))
        values = session.variables()
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert [*dict.fromkeys(there)] == [3, 2]
    assert there[-1] == 3


def test_who_comes_back_and_cannot_take_part_does_not_end_training(devices, monkeypatch):
    """No placement may be found for those that are there then; all together take part again."""
    job, steps, there, told = averaged(), 16, [], []
    model = placed(job, devices.cluster, seed=1)
    chosen_on = model._chosen_on

    def refusing(cluster):
        if {task.index for task in cluster.tasks} == {0, 1}:
            told.append(cluster)
            raise PlanError("no placement fits")
        return chosen_on(cluster)

    monkeypatch.setattr(model, "_chosen_on", refusing)
    monkeypatch.setattr(members, "RETURN_EVERY_S", 0.0)
    with model.session(trials=None, recover=SETTINGS) as session:
        initial = session.variables()
        for step in range(steps):
            if step in (1, 3):  # a snapshot is taken in between
                devices.kill(1 if step == 1 else 2)
            if step in (5, 12):
                devices.start(1 if step == 5 else 2)
            session.step(batch(job, step))
            there.append(len(session._running.job.plan.placement.devices))
        values = session.variables()
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert [*dict.fromkeys(there)] == [3, 2, 1]
    assert (there[-1], len(told)) == (3, 1)


def three_parts():
    """A job with three parameters of a size, each with slots."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None], name="x")
        parts = [parameter(f"w{number}", [10_000]) for number in range(3)]
        loss = tf.reduce_mean(x) * tf.add_n([tf.reduce_sum(tf.square(w)) for w in parts])
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
    return Network(graph, train_op, loss, {"x:0": np.arange(4.0)})


def test_without_memory_for_what_was_on_a_device_it_is_one_clear_error(devices):
    job = three_parts()
    model = placed(job, devices.cluster, memory=600_000, seed=1)
    with model.session(trials=None, recover=SETTINGS) as session:
        session.step(job.feed)
        devices.kill(2)
        missing = r"given up: it cannot go on without worker 2 \(/job:worker/task:2 at [^)]*\): "
        lacks = (
            "no placement by 'hash' fits: device '/job:worker/task:0' needs 640,116 bytes and has"
        )
        with pytest.raises(RecoveryError, match=missing + lacks):
            session.step(job.feed)
        assert session.has_failed
