"""A worker that is started by a command on another machine, and learns from that who it is.

It and what has started it (`by_ssh`) speak by its standard input and output, in lines:

1. The worker tells its version, and on which port it is going to listen.
2. It is told all tasks, which of them it is, and variables of the environment.
3. It says that it listens, as every worker does.

Meanwhile and from then on it gets an empty line every few seconds. Where none comes any more, what
has started it is gone, or the way to it is broken: the worker ends. It also ends when its input
does, which is at once if the other side ends in any way.
"""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from caramel.cluster.cluster import Cluster
from caramel.cluster.processes import CANNOT_LISTEN
from caramel.core.errors import WorkerStartError
from caramel.core.version import __version__

SILENT_S = 30.0
"""After how many seconds without a line a worker ends."""

_INPUT = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """What a worker has learnt.

    Attributes:
        cluster: all tasks.
        task: which of them it is, as an index in `cluster.tasks`.
        port: keeps its port from other processes, until its server listens there.
    """

    cluster: Cluster
    task: int
    port: socket.socket


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker tells first.

    Attributes:
        version: of its Caramel.
        port: where it is going to listen.
    """

    version: str
    port: int


def join(port: int) -> Joined:
    """Learn who this process is; from now on it ends with what has started it.

    Args:
        port: where to listen; 0 for any port that is free.

    Raises:
        WorkerStartError: the port is taken.
    """
    told: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    taken = _taken(port)
    print(json.dumps({"caramel": __version__, "port": taken.getsockname()[1]}), flush=True)
    line = json.loads(told.get())
    # Before TensorFlow is loaded, which reads them then.
    os.environ.update(line["environment"])
    return Joined(Cluster.of(line["cluster"]), line["task"], taken)


def tells_port(line: str) -> Told | None:
    """What a line of a worker tells; None if it is another one, which a shell may have written."""
    try:
        told = json.loads(line)
        return Told(str(told["caramel"]), int(told["port"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def who_it_is(cluster: Cluster, task: int, environment: Mapping[str, str]) -> bytes:
    """The line that tells a worker who it is."""
    told = {"cluster": cluster.as_dict(), "task": task, "environment": dict(environment)}
    return json.dumps(told).encode() + b"\n"


def _taken(port: int) -> socket.socket:
    """A port that no other process gets, but in which a server of this one can listen."""
    holder = socket.socket()
    # gRPC sets it, too: both may then be bound, since only one of them listens.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("", port))
    except OSError as error:
        raise WorkerStartError(
            f"the worker {CANNOT_LISTEN} port {port}: {error.strerror}"
        ) from None
    return holder


def _listen(told: queue.SimpleQueue[bytes]) -> NoReturn:
    """Take up what is said, and end this process when nothing is any more."""
    begun = b""
    while select.select([_INPUT], [], [], SILENT_S)[0] and (got := os.read(_INPUT, 1 << 16)):
        *lines, begun = (begun + got).split(b"\n")
        for line in filter(None, lines):
            told.put(line)
    # Whatever the other threads are doing, nobody waits for it.
    os._exit(0)
