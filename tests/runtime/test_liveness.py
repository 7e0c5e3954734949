"""A worker answers whatever it computes; a process that was stopped or has ended does not."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from contextlib import contextmanager

import grpc
import pytest

import caramel
from caramel.runtime.execution.liveness import Liveness, unanswering
from tests.support import forking
from tests.support.processes import is_running, wait_for, worker_pid

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_workers")]


COMPUTING = textwrap.dedent(
    """
    import sys
    import tensorflow as tf
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:0"):
        waiting = [
            tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name=str(number))[0].op
            for number in range(int(sys.argv[2]))
        ]
    with tf.compat.v1.Session(f"grpc://{sys.argv[1]}", graph=graph) as session:
        session.run(waiting)
    """
)


@contextmanager
def computing(address):
    """Let every thread with which a worker computes wait, for as long as its process lives."""
    ops = 4 * (os.cpu_count() or 1) + 4
    with forking.Popen([sys.executable, "-c", COMPUTING, address, str(ops)]) as process:
        try:
            assert wait_for(lambda: not has_a_free_thread(address))
            yield
        finally:
            process.kill()


def has_a_free_thread(address):
    """Whether a worker answers a call that one of these threads has to take."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"", timeout=0.5)
        except grpc.RpcError:
            return False
    return True


def test_only_a_worker_that_was_stopped_or_has_ended_is_lost():
    with caramel.Cluster.local(1) as cluster:
        (task,), pid = cluster.tasks, worker_pid(cluster, 0)
        liveness = Liveness(cluster, 0.01)

        def is_missing():
            liveness.look()
            return bool(liveness.missing)

        with computing(task.address):
            assert unanswering(cluster, 60.0) == ()
            assert wait_for(lambda: not is_missing())
        os.kill(pid, signal.SIGSTOP)
        assert unanswering(cluster, 0.5) == (task,)
        assert wait_for(is_missing)
        liveness.look()
        assert "no answer for 0.01 s (was the process stopped" in liveness.lost[task]
        os.kill(pid, signal.SIGCONT)
        assert wait_for(lambda: not is_missing())
        assert liveness.lost == {}
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not is_running(pid))
        liveness.close()
        patient = Liveness(cluster, 600.0)
        patient.look()
        assert patient.lost == {}  # it may be starting anew
        assert wait_for(lambda: patient.look() or patient.lost)
        assert patient.lost == {task: ""}
        patient.close()
