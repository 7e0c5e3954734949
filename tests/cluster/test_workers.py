"""Real worker processes: the same results, and one clear error when one of them is lost."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.cluster.processes import free_ports
from caramel.core.errors import (
    ClusterError,
    SessionError,
    UnsupportedOpError,
    WorkerLostError,
    WorkerStartError,
)
from tests.support import forking, networks
from tests.support.commands import ROOT
from tests.support.processes import worker_pid

tf1 = tf.compat.v1

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster():
    with caramel.Cluster.local(3) as cluster:
        yield cluster


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("pattern", ["shuffle", "ring", "halving_doubling", "exchange"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_worker_processes_train_as_one_device_does(cluster, pattern, optimizer):
    job = networks.network(optimizer, "clip_by_global_norm", number=41)
    model = caramel.ARModel(job.context(), workers=cluster, pattern=pattern)
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(networks.STEPS)]
        values = session.variables()
        replicas = [session.variables(worker=worker) for worker in range(3)]
    expected = networks.run_on_one_device(job, initial)
    assert networks.relative_error(values, expected.values) < 1e-12
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)
    for replica in replicas:
        for name, value in replica.items():
            np.testing.assert_array_equal(value, values[name])


def test_worker_processes_and_embedded_workers_give_the_same_bits(cluster):
    job = networks.network("momentum", number=12)
    results = []
    for workers in (cluster, 3):
        with caramel.ARModel(job.context(), workers=workers).session() as session:
            for _ in range(5):
                session.step(job.feed)
            results.append(session.variables())
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])


def test_several_addresses_reach_the_same_workers(cluster):
    job = networks.network(number=12)
    addresses = [task.address for task in cluster.tasks]
    for workers in (addresses, tf.train.ClusterSpec({"worker": addresses})):
        with caramel.ARModel(job.context(), workers=workers).session() as session:
            assert session.step(job.feed) > 0


def slow_job(seconds):
    """A step that waits, so that a worker can be killed in the middle of it."""
    with tf.Graph().as_default() as graph:
        x, y, feed = networks.inputs(12)
        w = networks.parameter("w", [networks.FEATURES, networks.CLASSES])
        pause = tf.data.Dataset.range(1).apply(_sleep(seconds))
        waited = tf.cast(tf.data.experimental.get_single_element(pause), tf.float64)
        loss = networks.cross_entropy(x @ w + 0 * waited, y)
        train_op, raw = networks.optimized(loss, networks.OPTIMIZERS["momentum"])
    return networks.Network(graph, train_op, loss, feed, raw)


def _sleep(seconds):
    def transform(dataset):
        variant = tf.raw_ops.SleepDataset(
            input_dataset=dataset._variant_tensor,
            sleep_microseconds=tf.constant(int(seconds * 1e6 / 2), tf.int64),
            output_types=[tf.int64],
            output_shapes=[tf.TensorShape([])],
        )
        spec = dataset.element_spec
        return tf.data.experimental.from_variant(variant, spec)

    return transform


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("victim", [0, 2])
def test_killing_a_worker_in_the_middle_of_a_step_names_it_before_the_step_could_end(victim):
    step_s = 100.0
    job = slow_job(step_s)
    with caramel.Cluster.local(3) as cluster:
        pids = [worker_pid(cluster, worker) for worker in range(3)]
        model = caramel.ARModel(job.context(), workers=cluster)
        with model.session() as session:
            timer = threading.Timer(1.0, os.kill, (pids[victim], signal.SIGKILL))
            timer.start()
            begin = time.monotonic()
            with pytest.raises(WorkerLostError) as caught:
                session.step(job.feed)
            assert time.monotonic() - begin < step_s
            message = str(caught.value)
            assert f"lost worker {victim} " in message
            assert cluster.tasks[victim].address in message
            assert "killed by signal 9" in message
            assert "restore the last checkpoint" in message
            assert repr(session).startswith(f"<Session: lost worker {victim}, 0 steps done, ")
            with pytest.raises(SessionError, match="cannot be used any more.*lost worker"):
                session.step(job.feed)
    assert not any(exists(pid) for pid in pids)


def test_a_client_that_lost_a_worker_can_end():
    program = textwrap.dedent(
        """
        import gc, os, signal, sys
        sys.path.insert(0, sys.argv[1])
        import caramel
        from tests.support import networks, processes
        for victim, traced in ((0, False), (1, False), (1, True)):
            cluster = caramel.Cluster.local(2)
            job = networks.network(number=12)
            session = caramel.ARModel(job.context(), workers=cluster).session()
            os.kill(processes.worker_pid(cluster, victim), signal.SIGKILL)
            try:
                session.trace(1, job.feed) if traced else session.step(job.feed)
            except caramel.CaramelError as error:
                print(error, flush=True)
            del session, cluster
            gc.collect()
        print("done", flush=True)
        """
    )
    finished = forking.run(
        [sys.executable, "-c", program, str(ROOT)],
        forks=True,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = finished.stdout.splitlines()
    assert [line[:13] for line in lines[:3]] == [f"lost worker {n}" for n in (0, 1, 1)]
    assert lines[3:] == ["done"]
    assert finished.returncode == 0


@pytest.mark.usefixtures("forked_workers")
def test_a_parameter_server_process_holds_what_workers_compute():
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        with tf.Graph().as_default() as graph:
            with tf.device(cluster.server_devices[0]):
                total = tf1.get_variable("total", initializer=1.0, use_resource=True)
            parts = []
            for device in cluster.devices:
                with tf.device(device):
                    parts.append(total + 1.0)
            add = total.assign_add(tf.add_n(parts))
        for expected in (5.0, 17.0):  # the second session finds the value that the first one left
            with tf1.Session(f"grpc://{cluster.tasks[0].address}", graph=graph) as session:
                if expected == 5.0:
                    session.run(total.initializer)
                assert session.run(add) == expected


def test_parameter_servers_are_nothing_for_all_reduce():
    job = networks.network(number=12)
    with pytest.raises(ClusterError, match="has 1 parameter server .*Give a cluster without the"):
        caramel.ARModel(job.context(), workers={"worker": ["a:1"], "ps": ["b:1"]})


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_stands_still_is_lost_when_it_has_not_answered_for_as_long_as_was_said():
    job = networks.network(number=12)
    with caramel.Cluster.local(2) as cluster:
        pid = worker_pid(cluster, 1)
        model = caramel.ARModel(job.context(), workers=cluster)
        with model.session(lost_after_s=2.0) as session:
            session.step(job.feed)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(WorkerLostError, match=r"lost worker 1 .*no answer for 2 s"):
                    session.step(job.feed)
            finally:
                os.kill(pid, signal.SIGCONT)


def test_a_worker_that_never_comes_up_is_named_after_the_start_timeout(cluster):
    job = networks.network(number=12)
    (port,) = free_ports(1)
    missing = f"127.0.0.1:{port}"
    model = caramel.ARModel(job.context(), workers=[cluster.tasks[0].address, missing])
    begin = time.monotonic()
    with pytest.raises(WorkerStartError, match=f"worker 1 .*{missing}"):
        model.session(start_timeout_s=1.5)
    assert time.monotonic() - begin < 60.0


def test_something_else_that_listens_on_the_address_is_noticed(cluster):
    import socket

    job = networks.network(number=12)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        model = caramel.ARModel(job.context(), workers=[address])
        begin = time.monotonic()
        with pytest.raises(WorkerStartError, match=f"what listens at {address} did not answer"):
            model.session(start_timeout_s=2.0)
        assert time.monotonic() - begin < 60.0


def test_python_functions_are_refused_on_other_processes(cluster):
    with tf.Graph().as_default() as graph:
        x, y, _ = networks.inputs(12)
        scaled = tf1.py_func(lambda a: a * 1.0, [x], tf.float64)
        scaled.set_shape(x.shape)
        loss = networks.cross_entropy(networks.perceptron(scaled), y)
        train_op, _ = networks.optimized(loss, networks.OPTIMIZERS["momentum"])
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(UnsupportedOpError, match="calls a Python function"):
        caramel.ARModel(context, workers=cluster)


def test_a_process_that_is_not_worker_0_cannot_drive_the_job(cluster):
    job = networks.network(number=12)
    other = caramel.Cluster.of([task.address for task in cluster.tasks], task=1)
    model = caramel.ARModel(job.context(), workers=other)
    with pytest.raises(ClusterError, match="worker 0 drives the job.*caramel worker"):
        model.session()
