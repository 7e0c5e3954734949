"""A worker or parameter server that only those with a certificate reach.

Three processes are one worker. The one that was started is the relay of connections that come in.
Its children are TensorFlow's server, in a network namespace of its own, and the relay of the
server's connections to others. They end together. There are two relays since threads of one
interpreter, of which each is busy with another direction, keep each other waiting.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import date
from types import FrameType
from typing import NoReturn

from caramel.cluster.addresses import host_and_port
from caramel.cluster.cluster import Cluster
from caramel.cluster.processes import CANNOT_LISTEN, PARENT_POLL_S, parent_has_gone
from caramel.core.errors import WorkerStartError
from caramel.protection.credentials import Credentials, directory_of
from caramel.protection.namespace import enter_network_namespace
from caramel.protection.relay import Place, Relay, local_listener, port_of, public_listeners
from caramel.protection.way_in import RelayEnd, ServerEnd

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
_GRACE_S = 3.0  # between SIGTERM and SIGKILL
_SOON_S = 30 * 24 * 3600.0  # a certificate that expires sooner is told


def go_inside(
    cluster: Cluster,
    task: int,
    certificates: str | os.PathLike[str],
    *,
    firewalled: bool = False,
    parent_pid: int | None = None,
) -> Cluster:
    """Go on in a child of this process, which is to serve a task, out of reach of strangers.

    This process itself becomes its relay, ends with it, and never returns from here.

    Args:
        cluster: all tasks, where others reach their relays.
        task: which of them this is, as an index in `cluster.tasks`.
        certificates: a directory that ``caramel certificates`` has made.
        firewalled: whether a firewall keeps all others from the server: it gets no namespace.
        parent_pid: end when the parent of this process is another than this one.

    Returns:
        In the child, the cluster as its server has to see it: all tasks on loopback.

    Raises:
        CertificateError: the certificate cannot be used, or is for another host.
        WorkerStartError: the port cannot be used.
        ClusterError: the system allows no namespace.
    """
    place = _place(cluster, task)
    credentials = Credentials(directory_of(certificates, [place.host]))
    _tell_of_expiry(credentials.check(place.host))
    listeners = _bound(cluster, task, place)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()  # of a process that has nothing of TensorFlow yet
    if child:
        there.close()
        _relay(child, cluster, task, credentials, listeners, RelayEnd(here), parent_pid)
    here.close()
    for listener in listeners:
        listener.close()
    if not firewalled:
        enter_network_namespace()
    _end_with_parent()
    return _seen_from_inside(cluster, task, None if firewalled else place.port, ServerEnd(there))


def _end_with_parent() -> None:
    """Let the system kill this process when its parent ends, even while it is stopped."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _seen_from_inside(cluster: Cluster, task: int, port: int | None, way_in: ServerEnd) -> Cluster:
    """The cluster as a server sees it, whose connections go through sockets of the relay.

    Args:
        port: where the server listens; None for any that is free.
    """
    with ExitStack() as stack:
        own = stack.enter_context(socket.socket())  # so that no other gets its port
        own.bind(("", port or 0))
        chosen = port_of(own)
        exits = [local_listener() for _ in range(len(cluster.tasks) - 1)]
    ports = [port_of(each) for each in exits]
    ports.insert(task, chosen)
    way_in.serve(exits, chosen)
    inside = zip(cluster.tasks, ports, strict=True)
    return Cluster("remote", [replace(each, address=f"127.0.0.1:{at}") for each, at in inside])


def _relay(
    child: int,
    cluster: Cluster,
    task: int,
    credentials: Credentials,
    listeners: Sequence[socket.socket],
    way_in: RelayEnd,
    parent_pid: int | None,
) -> NoReturn:
    """Be the relay of a server until either ends."""
    end = threading.Event()

    def request_end(number: int, frame: FrameType | None) -> None:
        end.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, request_end)
    try:
        exits = way_in.exits(len(cluster.tasks) - 1)
    except OSError:  # the child has ended; it says why
        _end_as(os.waitpid(child, 0)[1])
    children = [child]
    if exits:
        way_out = os.fork()  # this process has no other thread yet
        if not way_out:
            way_in.close()
            _relay_out(cluster, task, credentials, exits)
        children.append(way_out)
    Relay(credentials, _say).let_in(listeners, way_in.connect)
    while not end.wait(PARENT_POLL_S) and not parent_has_gone(parent_pid):
        for pid in children:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _end_as(status)
    for pid in children:
        _end_child(pid)
    os._exit(0)


def _relay_out(
    cluster: Cluster, task: int, credentials: Credentials, exits: Sequence[socket.socket]
) -> NoReturn:
    """Be the relay of a server's connections to others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    relay = Relay(credentials, _say)
    others = [number for number in range(len(cluster.tasks)) if number != task]
    for listener, other in zip(exits, others, strict=True):
        relay.let_out(listener, _place(cluster, other))
    while True:
        signal.pause()


def _say(line: str) -> None:
    print(f"caramel: {line}", file=sys.stderr, flush=True)


def _end_child(child: int) -> None:
    """Ask a child to end, and kill it if it does not."""
    until_s = time.monotonic() + _GRACE_S
    os.kill(child, signal.SIGTERM)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.02)


def _end_as(status: int) -> NoReturn:
    """End as a child did whose status `os.waitpid` told."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError):  # of signals that cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


def _bound(cluster: Cluster, task: int, place: Place) -> list[socket.socket]:
    try:
        return public_listeners(place)
    except OSError as error:
        raise WorkerStartError(
            f"{cluster.name(task)} ({cluster.tasks[task].device}) {CANNOT_LISTEN} "
            f"{cluster.tasks[task].address}: {error.strerror or error}"
        ) from None


def _place(cluster: Cluster, task: int) -> Place:
    return Place(*host_and_port(cluster.tasks[task].address))


def _tell_of_expiry(expires_s: float) -> None:
    if expires_s < time.time() + _SOON_S:
        day = date.fromtimestamp(expires_s)
        print(f"caramel: the certificate of this host expires on {day}.", file=sys.stderr)
