"""Calls into TensorFlow are made in a thread that does not outlive its use."""

from __future__ import annotations

import threading

from caramel.channel import Channel
from caramel.cluster import Cluster


def test_the_thread_of_a_closed_channel_is_gone():
    """Else it may be inside TensorFlow when the interpreter ends, which aborts the process."""
    before = set(threading.enumerate())
    for _ in range(200):
        channel = Channel(Cluster.embedded(1))
        assert channel.call(lambda: 7, what="a call", timeout_s=5) == 7
        channel.close(lambda: None, timeout_s=5)
        assert set(threading.enumerate()) <= before
