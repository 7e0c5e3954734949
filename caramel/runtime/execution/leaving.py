"""Lets servers forget a session whose calls may still be under way there.

TensorFlow keeps a queue for its container and for each op that waits at it. If the container goes
first, such an op is the last owner: cancelled, it deletes the queue from inside a method of the
queue (``QueueBase::Cancel``), and the server dies. So queues are closed before their container is
dropped: then nothing waits at them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.core.devices import task_of
from caramel.core.errors import SessionError
from caramel.core.names import variant_prefix
from caramel.core.op_types import QUEUES
from caramel.native.session import GraphCall, GraphSession
from caramel.runtime.execution.containers import Containers, drop
from caramel.runtime.execution.distributed_graph import GraphPart

tf1 = tf.compat.v1

WAIT_S = 1.5
"""For all servers together, in seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is still there.

    Attributes:
        device: of its task, by which ops name it.
        address: its ``host:port``.
    """

    device: str
    address: str


def forget(parts: Iterable[GraphPart], containers: Containers, servers: Iterable[Server]) -> None:
    """Drop what servers hold of a session, on each once nothing waits at its queues any more.

    A server that takes long for that (it may be stopped) is not waited for; it drops it later. If
    this process has ended by then, whoever comes next removes it (`leases`).

    Args:
        parts: of the session's graph.
        containers: the session's.
        servers: those that were not lost.
    """
    queues, threads = _queues(parts, containers), []
    for server in servers:
        given = queues.get(server.device, ()), containers, server
        thread = threading.Thread(
            target=_forget, args=given, name="caramel-forgetting", daemon=True
        )
        thread.start()
        threads.append(thread)
    until_s = time.monotonic() + WAIT_S
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))


def _forget(queues: Sequence[Any], containers: Containers, server: Server) -> None:
    try:
        if queues:
            _close(queues, server)
    except (tf.errors.OpError, SessionError) as error:
        _log.info("the queues of a session on %s cannot be closed: %s", server.address, error)
    else:
        drop(containers.owned, [server.address])


def _close(queues: Sequence[Any], server: Server) -> None:
    """Close queues of a server, by a session that needs no other server."""
    graph_def = tf1.GraphDef()
    for queue in queues:
        graph_def.node.append(queue)
        graph_def.node.add(
            name=f"{queue.name}/close_with_session",
            op="QueueCloseV2" if queue.op.endswith("V2") else "QueueClose",
            input=[queue.name],
            device=queue.device,
        ).attr["cancel_pending_enqueues"].b = True
    closes = [node.name for node in graph_def.node if node.op.startswith("QueueClose")]
    config = tf1.ConfigProto(device_filters=[server.device], isolate_session_state=False)
    session = GraphSession(f"grpc://{server.address}", config, server.device)
    session.extend(graph_def.SerializeToString())
    GraphCall(session, [], closes, [])()
    session.close()


def _queues(parts: Iterable[GraphPart], containers: Containers) -> Mapping[str, list[Any]]:
    """The nodes of queues, as servers know them, by the device of their task."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        if b"Queue" not in part.graph_def:  # there are graphs of 100 MB
            continue
        graph_def = tf1.GraphDef.FromString(containers.fill(part.graph_def))
        for node in graph_def.node:
            task = task_of(node.device)
            if node.op in QUEUES and task is not None:
                prefix = variant_prefix(part.variant)
                node.name = f"{prefix}/{node.name}" if prefix else node.name
                node.attr.pop("_class", None)
                del node.input[:]
                found.setdefault(task, []).append(node)
    return found
