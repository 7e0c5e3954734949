"""A forked child can do nothing in its parent's session, and ends without disturbing it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

import pytest

import caramel
from caramel.core.errors import ClusterError, SessionError
from tests.support import forking
from tests.support.networks import network

_AT_ONCE_S = 20.0  # what waits for something waits for longer


def forked(function):
    """How long a function takes in a forked child; what it raises fails the test."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            begin = time.monotonic()
            function()
            os.write(write, f"{time.monotonic() - begin}".encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    deadline = time.monotonic() + 90
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    with os.fdopen(read) as told:
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        return float(told.read())


@pytest.mark.parametrize("start", [caramel.Cluster.embedded, caramel.Cluster.local])
def test_a_forked_child_ends_at_once_and_the_parent_goes_on(start):
    job = network("momentum", number=24)
    with start(2) as cluster:
        sessions = [caramel.ARModel(job.context(), cluster).session(step_timeout_s=120)]

        def leave():
            with sessions[0]:
                assert sessions[0].metrics().steps == 1
            sessions[0].close()
            cluster.close()

        def let_go():
            sessions.clear()
            gc.collect()

        def use():
            with pytest.raises(SessionError, match="forked child.*process that opened it"):
                sessions[0].step(job.feed)
            with pytest.raises(ClusterError, match="was forked from one that had opened a session"):
                caramel.ARModel(job.context(), 2).session()

        sessions[0].step(job.feed)
        for function in (leave, let_go, use):
            assert forked(function) < _AT_ONCE_S
        sessions[0].step(job.feed)
        assert sessions[0].metrics().steps == 2
        sessions[0].close()


def test_who_forks_after_a_session_gets_no_threads_of_it():
    """gRPC gives them to a child of a process that has a connection; namespaces need one thread."""
    code = """if True:
        import os, time
        import caramel
        from tests.support.networks import network
        job = network("momentum")
        with caramel.ARModel(job.context(), 2).session(trials=None) as session:
            session.step(job.feed)
        # gRPC ends its threads in the background when the last connection is closed.
        deadline = time.monotonic() + 10
        threads = None
        while threads != 1 and time.monotonic() < deadline:
            child = os.fork()
            if child == 0:
                os._exit(len(os.listdir("/proc/self/task")))
            threads = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            time.sleep(0.05)
        print(threads)
    """
    done = forking.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "1\n", done.stderr
