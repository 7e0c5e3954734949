"""TensorFlow's servers: those inside this process, and the one a worker process runs.

Every process that starts one listens on all interfaces of its machine, whatever address the cluster
names, without authentication or encryption: keep them on a network you trust.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from caramel.cluster import processes
from caramel.cluster.cluster import Cluster
from caramel.cluster.grpc_tuning import whole_messages
from caramel.cluster.quiet_start import WITHOUT_KERAS, quiet_start
from caramel.core.errors import ClusterError, WorkerStartError
from caramel.core.util.fingerprint import processors
from caramel.native import library, malloc
from caramel.native.server import start_server, thread_options

if TYPE_CHECKING:
    import tensorflow as tf

LEAST_INTER_OP_THREADS = 2
"""With one thread, TensorFlow's executor takes up the op that got ready last: what is to be sent
waits behind all computation (a step of ResNet-50 on two hosts of one core: 1.15 s, else 1.02 s)."""

OUTLIVES_S = 25.0
"""How long a task of a common script goes on, in seconds, when a signal tells it to end and the
chief is there: launchers send the signal to all tasks at once, the chief may finish its step and
save a checkpoint then, and what has not ended after 30 s is killed by most of them."""

_SAY_AFTER_S = 2.0  # that it goes on
_PORT_RACES = 5  # how often `embedded_servers` tries again with other ports
# TensorFlow cannot stop a server: one that was started lives, and is used again, until its process
# ends.
_started: dict[object, Servers] = {}
_starting = threading.Lock()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that run in this process.

    Attributes:
        target: what a session connects to, ``grpc://host:port``.
        addresses: ``host:port`` of every task of their cluster, in order.
    """

    target: str
    addresses: tuple[str, ...]


def embedded_servers(
    n: int, *, parameter_servers: int = 0, config: tf.compat.v1.ConfigProto | None = None
) -> Servers:
    """Servers in this process that form one cluster: `n` of job "worker", the rest of job "ps".

    A second call with the same arguments returns the same servers, with the variables that they
    hold. All servers of a process share its threads.

    Args:
        n: the number of workers.
        parameter_servers: the number of parameter servers.
        config: options of each server, such as thread counts.

    Raises:
        WorkerStartError: no server can listen.
    """
    with _starting:
        options = _serialized(config)
        key = (n, parameter_servers, options)
        if key not in _started:
            _started[key] = _start_embedded(n, parameter_servers, options)
        return _started[key]


def own_server(cluster: Cluster, *, config: tf.compat.v1.ConfigProto | None = None) -> Servers:
    """The server of the task that this process is (`cluster.task`), started if it is not yet.

    Args:
        cluster: the cluster; its `task` says which task this process is.
        config: options of the server, such as thread counts.

    Raises:
        ClusterError: this process is no task of `cluster`.
        WorkerStartError: the server cannot listen on its address.
    """
    return _own_server(cluster, _serialized(config))


def _own_server(cluster: Cluster, options: bytes) -> Servers:
    if cluster.task is None:
        raise ClusterError(f"this process is no worker of {cluster!r}, so it has no server there")
    with _starting:
        key = (cluster.tasks, cluster.task, options)
        if key not in _started:
            target = _start(cluster, cluster.task, options)
            _started[key] = Servers(target, tuple(task.address or "" for task in cluster.tasks))
        return _started[key]


def serve(
    cluster: Cluster,
    task: int,
    *,
    parent_pid: int | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Run task `task` of `cluster` in this process until SIGTERM, SIGINT or its parent's end.

    Call it from the main thread, which alone can handle signals; elsewhere it ends only with the
    parent. The handlers that were installed before are put back.

    Args:
        cluster: all workers and parameter servers.
        task: which of them this is, as an index in `cluster.tasks`.
        parent_pid: return when the parent of this process is another than this one.
        intra_op_threads: threads that one op may use; TensorFlow's choice by default.
        inter_op_threads: ops that may run at once; by default as many as there are processors, and
            at least two.
        ready: called once the server listens.

    Raises:
        ClusterError: there is no such task.
        WorkerStartError: the server cannot listen on its address.
    """
    # A process that only serves does not import TensorFlow: the shared library is enough, with
    # which it listens after a fifth of the time (``docs/decisions/worker-start.md``). With plugins
    # this worker may have devices and kernels of theirs.
    if library.has_plugins():
        os.environ.setdefault(*WITHOUT_KERAS)
        import tensorflow  # noqa: F401
    threads = thread_options(intra_op=intra_op_threads or 0, inter_op=inter_op_threads or 0)
    with _end_requested() as end:
        _own_server(Cluster.of(cluster.as_dict(), task=task), threads)
        if ready is not None:
            ready()
        while not end.wait(processes.PARENT_POLL_S):
            if processes.parent_has_gone(parent_pid):
                return


def serve_until_chief_ends(
    cluster: Cluster,
    *,
    start_timeout_s: float = 600.0,
    poll_s: float = 1.0,
    failures: int = 5,
    config: tf.compat.v1.ConfigProto | None = None,
) -> None:
    """Run this process's own worker or parameter server as long as the chief, worker 0, is there.

    For jobs in which every process runs the same script: the chief drives the training, the
    others call this and end with it. Unless the script has loaded TensorFlow before, its start-up
    messages are hidden. SIGTERM and SIGINT end it, too, but not before the chief has ended, for
    `OUTLIVES_S`; a second signal ends it at once. Call it from the main thread, which alone can
    handle signals.

    Args:
        cluster: the cluster; its `task` says which task this process is.
        start_timeout_s: how long the chief may take to come up, in seconds.
        poll_s: seconds between two attempts to connect to the chief.
        failures: how many attempts in a row must fail until the chief counts as gone.
        config: options of the server, such as thread counts.

    Raises:
        ClusterError: this process is no task of `cluster`, or is the chief.
        WorkerStartError: the server cannot listen, or the chief did not come up in time.
    """
    if cluster.task == 0:
        raise ClusterError("this process is worker 0, the chief, which cannot wait for itself")
    # From here on this process is a worker, as those of ``caramel worker``, and as quiet.
    with nullcontext() if "tensorflow" in sys.modules else quiet_start():
        own_server(cluster, config=config)
    chief = Cluster("remote", cluster.tasks[:1])
    with suppress(KeyboardInterrupt):
        # Not `poll_s` apart: a short job must not begin and end unseen.
        chief.wait_until_reachable(start_timeout_s)
        failed = 0
        with _end_requested() as end:
            while failed < failures and not end.wait(poll_s):
                failed = failed + 1 if chief.unreachable() else 0
        if end.is_set():
            _outlive(chief)


def _outlive(chief: Cluster) -> None:
    """Go on until the chief has ended, but not for long."""
    begin_s, is_said = time.monotonic(), False
    while (waited_s := time.monotonic() - begin_s) < OUTLIVES_S and not chief.unreachable():
        if waited_s > _SAY_AFTER_S and not is_said:
            is_said = True
            _log.warning(
                "told to end: this task goes on until worker 0 has ended, for %g s at most; it "
                "ends at once when it is told again",
                OUTLIVES_S,
            )
        time.sleep(processes.PARENT_POLL_S)


def _serialized(config: tf.compat.v1.ConfigProto | None) -> bytes:
    return b"" if config is None else config.SerializeToString(deterministic=True)


def _start_embedded(workers: int, parameter_servers: int, options: bytes) -> Servers:
    for races_left in reversed(range(_PORT_RACES)):
        ports = processes.free_ports(workers + parameter_servers)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        cluster = Cluster.of({"worker": addresses[:workers], "ps": addresses[workers:]})
        try:
            targets = [_start(cluster, task, options) for task in range(len(addresses))]
        except WorkerStartError:
            if not races_left:
                raise
        else:
            return Servers(targets[0], tuple(addresses))
    raise AssertionError("the last attempt either returns or raises")


def _start(cluster: Cluster, task: int, options: bytes) -> str:
    which = cluster.tasks[task]
    at_least = thread_options(inter_op=max(LEAST_INTER_OP_THREADS, processors()))
    # Before the first server of a process: gRPC reads its variable then, and threads that have
    # begun have heaps of their own.
    malloc.keep_memory()
    try:
        with whole_messages():
            return start_server(
                # In serialized protos the last value counts: what the user has said holds.
                cluster.as_dict(),
                which.job,
                which.index,
                config=at_least + options,
            )
    except library.StatusError as error:
        assert which.address is not None
        reason = _why_not_bound(which.address) or error.message
        raise WorkerStartError(
            f"{cluster.name(task)} ({which.device}) {processes.CANNOT_LISTEN} {which.address}: "
            f"{reason}"
        ) from None


def _why_not_bound(address: str) -> str | None:
    """The system's reason why the port of `address` cannot be used; TensorFlow does not say it."""
    with socket.socket() as attempt:
        # As gRPC does; else connections that ended a moment ago would count.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return None


@contextmanager
def _end_requested() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set for as long as the context lasts."""
    end = threading.Event()

    def request_end(number: int, frame: FrameType | None) -> None:
        end.set()

    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield end
        return
    before = {each: signal.signal(each, request_end) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield end
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
