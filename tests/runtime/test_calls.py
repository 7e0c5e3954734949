"""Calls into TensorFlow are made in a thread that does not outlive its use."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.cluster.processes import free_ports
from caramel.core.errors import StepTimeoutError, WorkerLostError
from caramel.runtime.execution.calls import Channel, Look
from caramel.runtime.execution.liveness import Liveness


def test_the_thread_of_a_closed_channel_is_gone():
    """Else it may be inside TensorFlow when the interpreter ends, which aborts the process."""
    before = set(threading.enumerate())
    for _ in range(200):
        channel = Channel(Cluster.embedded(1))
        assert channel.call(lambda: 7, what="a call", timeout_s=60) == 7
        channel.close(lambda: None, timeout_s=60)
        assert set(threading.enumerate()) <= before


def test_closing_does_not_wait_for_a_worker_that_was_lost_since_the_last_call(caplog):
    (port,) = free_ports(1)  # nobody listens there
    cluster, goes_on = Cluster.of([f"127.0.0.1:{port}"]), threading.Event()
    channel = Channel(cluster)
    assert channel.call(lambda: 7, what="a call", timeout_s=60) == 7
    begin = time.monotonic()
    channel.close(goes_on.wait, timeout_s=200)  # as TensorFlow waits, for ever
    assert time.monotonic() - begin < 100
    (warning,) = caplog.messages
    assert f"worker 0 (/job:worker/task:0 at 127.0.0.1:{port}) during closing the se" in warning
    goes_on.set()


def test_who_asks_for_it_looks_early_and_workers_are_not_asked_for_that(monkeypatch):
    cluster, goes_on, probes, looks = Cluster.embedded(1), threading.Event(), [], []
    monkeypatch.setattr(Liveness, "look", lambda self: probes.append(1))

    def tell(elapsed_s, missing):
        looks.append((elapsed_s, missing, len(probes)))
        if probes:
            goes_on.set()

    look = Look(tell, after_s=0.1)
    Channel(cluster).call(lambda: goes_on.wait(60), what="a call", timeout_s=60, look=look)
    assert len(looks) > 2
    assert looks[0][0] >= 0.1
    for elapsed_s, missing, probed in looks:
        assert missing == ()
        assert elapsed_s >= 1.0 or not probed


def test_a_worker_that_accepts_connections_and_says_nothing_is_lost_in_the_end():
    """Its process was stopped, or something else accepts in its place."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        cluster = Cluster.of([f"127.0.0.1:{mute.getsockname()[1]}"])
        channel, goes_on = Channel(cluster), threading.Event()
        with pytest.raises(StepTimeoutError, match=r"within 2 s; there is no answer from worker 0"):
            channel.call(goes_on.wait, what="a step", timeout_s=2)
        channel = Channel(cluster, lost_after_s=0.5)
        with pytest.raises(WorkerLostError, match=r"lost worker 0 .*a step: no answer for 0.5 s"):
            channel.call(goes_on.wait, what="a step", timeout_s=60)
        goes_on.set()


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupted_call_is_done_whole_or_not_at_all(has_begun, monkeypatch):
    """Also where the interruption comes just when the thread was told of the call."""
    channel, gate, made = Channel(Cluster.embedded(1)), threading.Event(), []
    told = channel._thread.submit

    def interrupted(function):
        told(function)
        if has_begun:
            gate.set()
            while not made:
                time.sleep(0.01)
        raise KeyboardInterrupt

    def call():
        made.append("begun")
        time.sleep(0.3)
        made.append("ended")

    told(gate.wait)  # keeps the thread busy
    with monkeypatch.context() as patch:
        patch.setattr(channel._thread, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.call(call, what="a call", timeout_s=60)
    gate.set()
    assert made == (["begun", "ended"] if has_begun else [])
    assert channel.call(lambda: 7, what="a call", timeout_s=60) == 7
    assert len(made) == 2 * has_begun
    channel.close(lambda: None, timeout_s=60)


def test_a_connection_that_was_interrupted_for_a_moment_is_told_with_what_to_do(monkeypatch):
    """The workers answer again, whatever it was; nobody knows what they have kept."""
    cluster = Cluster.of(["127.0.0.1:1", "127.0.0.1:2"])
    monkeypatch.setattr(cluster, "unreachable", lambda timeout_s=1.0: ())
    monkeypatch.setattr("caramel.runtime.execution.calls._DIAGNOSIS_S", 0.1)

    def reset():
        raise tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")

    with pytest.raises(WorkerLostError) as error:
        Channel(cluster).call(reset, what="a training step", timeout_s=60)
    assert str(error.value) == (
        "a worker, or the connection to it, failed during a training step and answers again (was "
        "it restarted, or the network interrupted?): open a new session and restore the last "
        "checkpoint, or what session.rescue(path) writes if workers still have all variables: "
        "recvmsg:Connection reset by peer"
    )
