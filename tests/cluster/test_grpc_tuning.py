"""Connections of Caramel's servers wait for whole messages."""

from __future__ import annotations

import os
import sys

import pytest

from caramel.cluster.grpc_tuning import whole_messages
from tests.support import forking

VARIABLE = "GRPC_EXPERIMENTS"

# Sends 16 MB from one server to the other a few times, while a thread looks at all sockets.
SEND = """
import os, socket, threading
import tensorflow as tf
from caramel.cluster.servers import embedded_servers

def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket"):
                yield socket.socket(fileno=os.dup(int(name)))
        except OSError:
            pass

def look():
    while not over.wait(0.001):
        for each in sockets():
            with each:
                seen.add(each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

servers, seen, over = embedded_servers(2), set(), threading.Event()
with tf.Graph().as_default():
    with tf.device("/job:worker/task:0"):
        sent = tf.random.uniform([4 << 20])
    with tf.device("/job:worker/task:1"):
        received = tf.reduce_sum(sent)
    thread = threading.Thread(target=look)
    thread.start()
    with tf.compat.v1.Session(servers.target) as session:
        for _ in range(10):
            session.run(received)
    over.set()
    thread.join()
print(max(seen))
"""


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at its sockets in /proc")
def test_a_socket_wakes_its_process_only_when_much_has_come():
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    finished = forking.run(
        [sys.executable, "-c", SEND],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 16384  # bytes; 1 is the system's default


def test_the_variable_is_set_only_inside(monkeypatch):
    pytest.importorskip("tensorflow")  # whose library has to know the experiments
    monkeypatch.delenv(VARIABLE, raising=False)
    with whole_messages():
        assert os.environ[VARIABLE]
    assert VARIABLE not in os.environ


def test_the_users_own_setting_holds(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    with whole_messages():
        assert os.environ[VARIABLE] == ""
    assert os.environ[VARIABLE] == ""
