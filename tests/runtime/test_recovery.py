"""A session with `caramel.Recovery` loses workers, and nobody sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest

import caramel
from caramel.cluster.processes import LISTENING, free_ports
from caramel.core.errors import PlanError, RecoveryError, SessionError
from caramel.runtime.recovery import members, positions, supervised
from tests.runtime.test_resuming import expected
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.deferring import EVERY, deferred
from tests.support.networks import (
    FEATURES,
    Network,
    cross_entropy,
    inputs,
    network,
    perceptron,
    relative_error,
    start_from,
    tf,
    tf1,
    wide,
)
from tests.support.pipelines import job as pipelines_job
from tests.support.pipelines import numbers, regression
from tests.support.placed import is_spread, placed
from tests.support.processes import WORKER, started, worker_pid

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_workers")]

WORKERS = 3


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    """Worker processes, which a test may kill: sessions start them again."""
    with forking.workers(), caramel.Cluster.local(WORKERS) as cluster:
        yield cluster


def batch(job: Network, step: int) -> dict:
    """Another batch in each step; of one array for all of them, as users do it."""
    return {name: np.roll(value, step, axis=0) for name, value in job.feed.items()}


def on_one_device(job: Network, initial, steps: int) -> dict:
    """What plain TensorFlow makes of so many steps."""
    with job.graph.as_default(), tf1.Session(graph=job.graph) as session:
        variables = start_from(initial, session)
        for step in range(steps):
            session.run(job.train_op, batch(job, step))
        return session.run(variables)


def kill(cluster, worker, number=signal.SIGKILL):
    os.kill(worker_pid(cluster, worker), number)


def test_killed_workers_are_started_again_and_training_ends_as_if_undisturbed(cluster):
    """Also the one that drives the session; with updates that are deferred into the next step."""
    job = network("momentum", model=wide)
    context = job.context()
    plan = deferred(caramel.ARModel(context, cluster, pattern="shuffle"), EVERY)
    model = caramel.ARModel(context, cluster, plan=plan)
    assert model.plan.consequences.deferral.moved
    kills, steps = {7: 1, 12: 0, 13: 2}, 20
    x = np.empty_like(job.feed["x:0"])
    with model.session(recover=caramel.Recovery(snapshot_every=5)) as session:
        initial = session.variables()
        for step in range(steps):
            if step in kills:
                kill(cluster, kills[step])
            if step == 13:  # an evaluation finds that it is gone
                several = [batch(job, number) for number in range(3)]
                found = session.evaluate(several)
                alone = [session.run(job.loss, each) for each in several]
                sizes = [len(each["x:0"]) for each in several]
                assert found == pytest.approx(np.average(alone, weights=sizes), rel=1e-12)
            fed = batch(job, step)
            x[:] = fed["x:0"]  # users use arrays again
            session.step({**fed, "x:0": x})
        values = session.variables()
        replicas = [session.variables(worker) for worker in range(WORKERS)]
        metrics = session.metrics()
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    for replica in replicas:
        for name, value in values.items():
            np.testing.assert_array_equal(replica[name], value)
    assert metrics.steps == steps
    assert len(metrics.recoveries) == 3
    for record, (step, worker) in zip(metrics.recoveries, kills.items(), strict=True):
        assert record.workers == WORKERS
        assert record.snapshot + record.repeated == step
        assert any(f"/task:{worker} " in lost for lost in record.lost)


@pytest.fixture(name="external")
def fixture_external():
    """Workers that somebody else starts: the cluster, and a function that starts one."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
    running = {}
    with ExitStack() as stack:

        def start(worker):
            command = (*WORKER, "--cluster", ",".join(addresses), "--task", str(worker))
            running[worker] = stack.enter_context(started(*command, how=forking.Popen))
            assert LISTENING in running[worker].stdout.readline()
            return running[worker]

        for worker in range(WORKERS):
            start(worker)
        yield caramel.Cluster.of(addresses), running, start


def averaged(model=perceptron):
    """A job with moving averages, which each worker has for itself, and a total of examples."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(42)
        loss = cross_entropy(model(x), y)
        mean = tf1.get_variable("mean", [FEATURES], tf.float64, trainable=False)
        total = tf1.get_variable(
            "total", [], tf.float64, tf1.zeros_initializer(), trainable=False, use_resource=True
        )
        updates = [
            mean.assign_sub(0.1 * (mean - tf.reduce_mean(x, 0))),
            total.assign_add(tf.cast(tf.shape(x)[0], tf.float64)),
        ]
        train = tf1.train.AdamOptimizer(0.01).minimize(
            loss, global_step=tf1.train.get_or_create_global_step()
        )
        return Network(graph, tf.group(train, *updates), loss, feed)


def test_training_goes_on_with_fewer_workers_and_takes_them_in_again(external):
    """Whoever computes, each step is that of one device on the whole batch."""
    cluster, running, start = external
    job, steps = averaged(), 24
    model = caramel.ARModel(job.context(), cluster, pattern="shuffle")
    settings = caramel.Recovery(snapshot_every=3, wait_s=0.5, least_workers=2)
    workers = []
    with model.session(trials=None, recover=settings) as session:
        initial = session.variables()
        for step in range(steps):
            if step == 5:
                running[0].kill()
                running[0].wait()
            if step == 10:
                start(0)
                time.sleep(members.RETURN_EVERY_S)
            session.step(batch(job, step))
            workers.append(len(session._running.job.plan.job.devices))
        values, records = session.variables(), session.metrics().recoveries
        running[1].kill()
        running[2].kill()
        with pytest.raises(RecoveryError, match="1 of 3 workers are left, and least_workers is 2"):
            session.step(job.feed)
        assert session.has_failed
        with pytest.raises(SessionError, match="cannot be used any more"):
            session.step(job.feed)
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert workers == [3] * 5 + [2] * 7 + [3] * 12
    assert [record.workers for record in records] == [2, 3]
    assert "/task:0 " in records[1].returned[0]


@pytest.mark.parametrize("most_bytes", [positions.MOST_BYTES, 0])
def test_no_example_of_a_pipeline_is_lost_or_repeated(cluster, monkeypatch, most_bytes):
    """Neither of what workers take in steps, nor of what `session.run` takes, in a copy of it; nor
    where pipelines hold too much to be kept."""
    monkeypatch.setattr(positions, "MOST_BYTES", most_bytes)
    with tf.Graph().as_default() as graph:
        numbers = tf.data.Dataset.range(60).shuffle(60, seed=3).batch(1).prefetch(2)
        iterator = tf1.data.make_initializable_iterator(numbers)
        ids = tf.identity(iterator.get_next(), name="ids")
        train_op, loss = regression(tf.reshape(ids % 40, [-1]))
    model = caramel.ARModel(caramel.Context(graph, train_op=train_op, loss=loss), cluster)

    def train(recover, killed):
        """The examples of each step, and those that `session.run` took."""
        seen, run = [], []
        with model.session(trials=None, recover=recover) as session:
            session.run(iterator.initializer)
            for step in range(18):
                if step in killed:
                    kill(cluster, killed[step])
                seen += session.step(fetches="ids:0").tolist()
                if step in (2, 5, 12):
                    run += session.run("ids:0").tolist()
            return seen, run

    seen, run = train(None, {})
    assert len(set(seen)) == 18 * WORKERS
    assert train(caramel.Recovery(snapshot_every=4), {6: 0, 13: 1}) == (seen, run)


def test_a_pipeline_is_evaluated_whole_though_the_worker_that_reads_it_is_lost(
    cluster, monkeypatch
):
    job = pipelines_job(lambda: numbers(20).batch(3))
    model = job.model(cluster)
    with model.session(trials=None, recover=caramel.Recovery()) as session:
        session.run(job.iterator.initializer)
        session.step()
        run, reads = supervised.Supervised.run, []

        def lose(self, fetches, feed_dict):
            if len(reads) == 4:
                kill(cluster, 0)
            reads.append(fetches)
            return run(self, fetches, feed_dict)

        monkeypatch.setattr(supervised.Supervised, "run", lose)
        assert session.evaluate(fetches=job.ids).tolist() == list(range(20))
        assert len(session.metrics().recoveries) == 1


def test_pipelines_go_on_in_fewer_processes_as_if_undisturbed(external):
    """The replica of a worker that does not come back moves to another one, with its place in the
    data, which nobody else knows: they are shuffled without a seed."""
    cluster, running, start = external
    with tf.Graph().as_default() as graph:
        numbers = tf.data.Dataset.range(60).shuffle(60).batch(1).prefetch(2)
        iterator = tf1.data.make_initializable_iterator(numbers)
        ids = tf.identity(iterator.get_next(), name="ids")
        train_op, loss = regression(tf.reshape(ids % 40, [-1]))
    model = caramel.ARModel(caramel.Context(graph, train_op=train_op, loss=loss), cluster)
    settings, seen, tasks = caramel.Recovery(snapshot_every=4, wait_s=0.5), [], []
    with model.session(trials=None, recover=settings) as session:
        session.run(iterator.initializer)
        w = session.variables()["w"]
        for step in range(60 // WORKERS):
            if step == 6:
                running[1].kill()
                running[1].wait()
            if step == 10:
                start(1)
                time.sleep(members.RETURN_EVERY_S)
            seen.append(session.step(fetches="ids:0"))
            tasks.append(len(set(session._running.job.plan.job.devices)))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.step()
        value = session.variables()["w"]
    assert sorted(np.concatenate(seen)) == list(range(60))
    np.testing.assert_allclose(value, expected(w, [ids % 40 for ids in seen]), rtol=1e-12)
    assert tasks == [3] * 6 + [2] * 6 + [3] * 8


@pytest.fixture(name="one_server")
def fixture_one_server():
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        yield cluster


def train_though_killed(model, cluster, job, kills, steps):
    """What variables are in the beginning and the end, and what has happened."""
    settings = caramel.Recovery(snapshot_every=4)
    with model.session(trials=None, recover=settings) as session:
        initial = session.variables()
        for step in range(steps):
            if step in kills:
                kill(cluster, kills[step])
            session.step(batch(job, step))
        return initial, session.variables(), session.metrics().recoveries


def test_what_is_on_servers_is_on_another_task_too(one_server):
    """A worker is lost, then the only server, and then the worker that had all in its place; in the
    end both together."""
    cluster, job = one_server, averaged()
    model = caramel.PSModel(job.context(), cluster, ordering="tic")
    kills, steps = {3: 0, 6: 2, 7: 1, 10: 2}, 14
    initial, values, records = train_though_killed(model, cluster, job, kills, steps)
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert len(records) == len(kills)
    agents = caramel.PSModel(job.context(), cluster, mode="inference", ordering="tic")
    with model.session(trials=None, recover=caramel.Recovery()) as session:
        session.step(job.feed)
        agent = agents.session(trials=None, variables=session)
        kill(cluster, 1)
        session.step(job.feed)
        with pytest.raises(SessionError, match="gone on after a loss, .* open this one again"):
            agent.step(job.feed)
        agent.close()
        session.step(job.feed)
        kill(cluster, 1)
        kill(cluster, 2)
        with pytest.raises(RecoveryError, match="given up, since 'w1'.* were on tasks that were"):
            session.step(job.feed)
        with pytest.raises(PlanError, match="give variables or recover, not both"):
            model.session(variables=session, recover=caramel.Recovery())


def test_what_each_device_of_a_placed_model_has_the_next_one_has_too(cluster):
    job = averaged()
    model = placed(job, cluster, seed=1)
    assert is_spread(model)
    kills, steps = {3: 0, 6: 2, 7: 1}, 10
    initial, values, records = train_though_killed(model, cluster, job, kills, steps)
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert len(records) == len(kills)


CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
import caramel
from tests.support.pipelines import job, numbers
made = job(lambda: numbers(40).shuffle(40).batch(1))
model = made.model(sys.argv[3:])
recover = caramel.Recovery(snapshot_every=2)
with model.session(trials=None, resume=sys.argv[2], recover=recover) as session:
    print(session.variables()["w"].ravel().tolist(), flush=True)
    session.run(made.iterator.initializer)
    while True:
        print(session.step(fetches=made.ids).tolist(), flush=True)
        if session.steps_done == 3:
            session.save(sys.argv[2] + "/m", global_step=3)
        sys.stdin.readline()
"""


@pytest.mark.timeout(600)  # it starts five processes, one after the other
def test_a_program_goes_on_with_what_workers_have_of_one_that_was_killed(external, tmp_path):
    """From the newest snapshot; unless the checkpoints of then are gone."""
    cluster, _, _ = external
    addresses = [task.address for task in cluster.tasks]
    made = pipelines_job(lambda: numbers(40).shuffle(40).batch(1))
    model, recover = made.model(addresses), caramel.Recovery(snapshot_every=2)

    def killed_after(steps):
        words = (sys.executable, "-c", CLIENT, str(ROOT), str(tmp_path), *addresses)
        with forking.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            begin = json.loads(client.stdout.readline())
            seen = []
            for step in range(steps):
                if step:
                    client.stdin.write("\n")
                    client.stdin.flush()
                seen.append(json.loads(client.stdout.readline()))
            client.kill()
        return np.array(begin)[:, None], seen

    w, seen = killed_after(7)
    with model.session(trials=None, resume=tmp_path, recover=recover) as session:
        assert (session.resumed, session.steps_done) == ("snapshot", 6)
        session.run(made.iterator.initializer)
        del seen[6:]
        while session.steps_done < 40 // WORKERS:
            seen.append(session.step(fetches=made.ids).tolist())
        value = session.variables()["w"]
    np.testing.assert_allclose(value, expected(w, list(map(np.array, seen))), rtol=1e-12)
    assert len({number for ids in seen for number in ids}) == 39
    killed_after(3)
    for file in tmp_path.iterdir():
        file.unlink()
    with model.session(trials=None, resume=tmp_path, recover=recover) as session:
        assert (session.resumed, session.steps_done) == (None, 0)


def test_what_cannot_be_recovered_is_refused():
    job = network("momentum")
    with pytest.raises(PlanError, match="its workers are inside this process"):
        caramel.ARModel(job.context(), 2).session(recover=caramel.Recovery())
    with pytest.raises(PlanError, match="recover must be a caramel.Recovery"):
        caramel.ARModel(job.context(), 2).session(recover=True)
    one = caramel.ARModel(job.context(), caramel.Cluster.of(["127.0.0.1:1"]))
    with pytest.raises(PlanError, match="there is only one worker"):
        one.session(recover=caramel.Recovery())
    for wrong in ({"wait_s": -1}, {"restarts": 0}, {"least_workers": 1.5}, {"snapshot_every": 0}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            caramel.Recovery(**wrong)


def test_a_worker_that_was_stopped_is_waited_for_no_longer_than_it_may_be_silent(external):
    """It may still think that it is one of the workers when it runs again."""
    cluster, running, _ = external
    job, steps = network("momentum"), 12
    model = caramel.ARModel(job.context(), cluster)
    settings = caramel.Recovery(snapshot_every=2, wait_s=0.5)
    with model.session(trials=None, recover=settings, lost_after_s=2.0) as session:
        initial = session.variables()
        for step in range(steps):
            if step == 5:
                running[2].send_signal(signal.SIGSTOP)
            if step == 8:
                running[2].send_signal(signal.SIGCONT)
                time.sleep(members.RETURN_EVERY_S)
            session.step(batch(job, step))
        values, records = session.variables(), session.metrics().recoveries
    assert relative_error(values, on_one_device(job, initial, steps)) < 1e-12
    assert [record.workers for record in records] == [2, 3]
