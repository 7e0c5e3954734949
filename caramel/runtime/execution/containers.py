"""TensorFlow's containers in which a session has its state.

What is in them outlives the session, and the worker that drives it, until somebody drops it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import uuid4

import grpc

from caramel.core.names import ON_SERVERS, ON_WORKERS
from caramel.native.server import strings_message

_CLEANUP = "/tensorflow.WorkerService/CleanupAll"
_TIMEOUT_S = 5.0  # a server that is alive answers at once

_log = logging.getLogger(__name__)


def _new_name() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Containers:
    """The names of a session's containers.

    Attributes:
        on_workers: what the workers have.
        on_servers: what parameter servers have.
        others: those of the two that are another session's, on whose variables this one works.
        kept: further ones that outlive the session, for as long as its client goes on.
    """

    on_workers: str = field(default_factory=_new_name)
    on_servers: str = field(default_factory=_new_name)
    others: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()

    @property
    def owned(self) -> tuple[str, ...]:
        """Those that end with the session."""
        return tuple(n for n in (self.on_workers, self.on_servers) if n not in self.others)

    def sharing_servers(self) -> Containers:
        """Those of a session that works on what this one has on servers."""
        return Containers(on_servers=self.on_servers, others=frozenset({self.on_servers}))

    def of_another(self) -> Containers:
        """Those of a session that reads what is in all of these."""
        names = (self.on_workers, self.on_servers)
        return Containers(*names, others=frozenset(names))

    def fill(self, graph_def: bytes) -> bytes:
        """A serialised GraphDef with the names in place of their marks."""
        # Both have the same length, so no length in the message changes.
        own = graph_def.replace(ON_WORKERS.encode(), self.on_workers.encode())
        return own.replace(ON_SERVERS.encode(), self.on_servers.encode())


def drop(containers: Iterable[str], addresses: Iterable[str]) -> None:
    """Let servers forget what is in containers.

    It is TensorFlow's own call for this. `tf.compat.v1.Session.reset` makes it, too, but also ends
    all other sessions of the server that it is sent to.

    Args:
        containers: their names.
        addresses: ``host:port`` of each server; those that do not answer are left out.
    """
    names = tuple(containers)
    if not names:  # to TensorFlow that would be all that is in none
        return
    message = strings_message(names)
    # One after the other: each answers at once, and calls that wait for none need a thread, which
    # Python begins no more while it ends.
    for address in addresses:
        # Workers are reached directly, as TensorFlow does. Not to connect again would save some
        # milliseconds, but gRPC gives threads to forks of a process that has a connection.
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            try:
                channel.unary_unary(_CLEANUP)(message, timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                _log.info("what %s holds of a session cannot be dropped: %s", address, error)
