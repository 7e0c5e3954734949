"""Fixtures that several files of tests use."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # everywhere the kernels of new processors
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TensorFlow alone then imports no Keras
# A server has 64 threads otherwise that wait for answers. In a process with servers of many
# clusters they are thousands, and to wake one the kernel looks through all that wait.
os.environ.setdefault("TF_GRPC_WORKER_CACHE_QUEUES", "2")

# Many processes import the same modules: nobody compiles them twice, whatever the caller has set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings

# An example takes as long as it takes: a busy machine is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

sys.dont_write_bytecode = False
gc.disable()  # until all modules are imported


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look through it in every test (a tenth).

    Graphs are collected after each file of tests; to look for them after every few objects takes a
    quarter of the time.
    """
    if "tensorflow" in sys.modules:
        _build_graphs_quickly()
    collect()
    gc.set_threshold(100_000, 50, 1000)
    gc.enable()


def _build_graphs_quickly() -> None:
    """TensorFlow notes no longer where each op was made, nor who called whom when it fails.

    To build a graph from within a test took a third longer: the stack is 60 calls deep there.
    """
    import tensorflow as tf
    from tensorflow.python.util import tf_stack

    here = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda *_, **__: here
    tf.debugging.disable_traceback_filtering()


def collect() -> None:
    """Collect what nobody holds; what is left stays, and is looked through no more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def fixture_collected() -> Iterator[None]:
    """What the tests of a file leave behind is collected.

    What they keep is for others, such as jobs that were built once: hundreds of graphs in the end.
    """
    yield
    collect()


@pytest.fixture
def control_flow() -> Iterator:
    """Switches between v1 (False) and v2 (True) control flow until the test ends."""
    import tensorflow as tf

    before = tf.compat.v1.control_flow_v2_enabled()

    def switch(v2: bool) -> None:
        (tf.compat.v1.enable_control_flow_v2 if v2 else tf.compat.v1.disable_control_flow_v2)()

    yield switch
    switch(before)


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """Workers that a test starts are forked: see `tests.support.forking`."""
    from tests.support import forking

    with forking.workers():
        yield


@pytest.fixture(scope="session")
def two_processes() -> Iterator:
    """Two worker processes, for all tests that leave them as they are."""
    import caramel
    from tests.support import forking

    with forking.workers():  # not what other tests start while these are there
        cluster = caramel.Cluster.local(2)
    with cluster:
        yield cluster


@pytest.fixture
def quick_plans(monkeypatch) -> None:
    """Models search their plans with a small budget."""
    from caramel.planning.options import Options

    quick = functools.partial(Options, budget_tasks=10_000)
    monkeypatch.setattr("caramel.models.allreduce.Options", quick)
