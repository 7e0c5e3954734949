"""Takes connections in from other relays, and carries local ones out to them, by mutual TLS.

What one relay tells another before it carries anything is one byte (`_READY`, `_NOBODY`,
`_REVOKED`), so that who connects knows why it cannot: with TLS 1.3 a client is done before the
server has looked at its certificate. A thread carries each connection, both ways: cryptography and
system calls leave the interpreter to others. It was measured against asyncio
(``docs/decisions/relay.md``).
"""

from __future__ import annotations

import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from caramel.protection.credentials import Credentials, serial_of, why_refused
from caramel.protection.handshakes import Handshakes
from caramel.protection.pump import carry
from caramel.protection.refusals import Refusals

CONNECT_S = 10.0
"""How long a connection to another relay may take until it carries anything, in seconds."""

_READY, _NOBODY, _REVOKED = b"+", b"-", b"r"
_WHY_NOT = {
    b"": "it closed the connection",
    _NOBODY: "its relay runs, but its server does not listen",
    _REVOKED: "the certificate of this side was revoked",
}
_REVOKED_HERE = "its certificate was revoked"
_LOOK_S = 1.0  # how often it is looked for connections whose certificate was revoked
_IDLE_S, _PROBE_S, _PROBES = 60, 10, 6  # until a connection whose other host is gone is given up
_BACKLOG = 1000

Connect = Callable[[], socket.socket]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relay takes connections."""

    host: str
    port: int


class UnreachableError(ConnectionError):
    """Another relay cannot be reached; the message says why.

    Attributes:
        is_silent: whether it said nothing in time; else it is clear that it does not help to wait.
    """

    def __init__(self, message: str, is_silent: bool = False) -> None:
        super().__init__(message)
        self.is_silent = is_silent


class Relay:
    """The connections of one server, or one program.

    Args:
        credentials: the certificate of this host.
        say: gets lines about who was refused.
    """

    def __init__(self, credentials: Credentials, say: Callable[[str], None]) -> None:
        self._credentials = credentials
        self.refusals = Refusals(say)
        # The serial number of the other side's certificate, by the sockets of a connection.
        self._open: dict[tuple[socket.socket, socket.socket], int] = {}
        _allow_many_files()
        _begin(self._cut_revoked)

    def let_in(self, listeners: Sequence[socket.socket], connect: Connect) -> None:
        """Take connections from other relays from now on.

        Args:
            listeners: where.
            connect: makes a connection to the server that is protected, for each.
        """

        def admit(connection: ssl.SSLSocket) -> None:
            if not _begin(self._carry_in, connection, connect):
                self.refusals.note(connection, "this host has no thread left")
                connection.close()

        _begin(Handshakes(listeners, self._credentials.server, admit, self.refusals).run)

    def let_out(
        self,
        listener: socket.socket,
        place: Place,
        is_allowed: Callable[[socket.socket], bool] = lambda connection: True,
    ) -> None:
        """Carry local connections to another relay from now on.

        Args:
            listener: where they are taken.
            place: where the other relay is.
            is_allowed: whether one is carried.
        """
        _begin(self._take_out, listener, place, is_allowed)

    def reach(self, place: Place, timeout_s: float) -> None:
        """Connect to what another relay protects, and do nothing with it.

        Raises:
            UnreachableError: it cannot be reached now.
        """
        self._dial(place, timeout_s).close()

    def _carry_in(self, connection: ssl.SSLSocket, connect: Connect) -> None:
        with closing(connection), suppress(OSError):
            connection.settimeout(CONNECT_S)
            _tune(connection)
            if serial_of(connection.getpeercert()) in self._credentials.revoked():
                self.refusals.note(connection, _REVOKED_HERE)
                connection.send(_REVOKED)
                return
            try:
                server = connect()
            except OSError:
                connection.send(_NOBODY)
                return
            with server:
                connection.send(_READY)
                self._carry(connection, server)

    def _take_out(
        self, listener: socket.socket, place: Place, is_allowed: Callable[[socket.socket], bool]
    ) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it has gone already, or this process has too many files open
                time.sleep(0.01)
                continue
            if not _begin(self._carry_out, connection, place, is_allowed):
                connection.close()

    def _carry_out(
        self, connection: socket.socket, place: Place, is_allowed: Callable[[socket.socket], bool]
    ) -> None:
        with connection, suppress(OSError):
            if not is_allowed(connection):
                self.refusals.note(connection, "it is of another user of this machine")
                return
            with self._dial(place, CONNECT_S) as other:
                self._carry(other, connection)

    def _dial(self, place: Place, timeout_s: float) -> ssl.SSLSocket:
        """A connection to what another relay protects.

        Raises:
            UnreachableError: there is none.
        """
        until_s = time.monotonic() + timeout_s
        connection: socket.socket | None = None
        try:
            connection = socket.create_connection((place.host, place.port), timeout_s)
            connection.settimeout(max(0.01, until_s - time.monotonic()))
            _tune(connection)
            host = place.host.partition("%")[0]  # the interface is not part of the name
            secured = connection = self._credentials.client().wrap_socket(
                connection, server_hostname=host
            )
            if serial_of(secured.getpeercert()) in self._credentials.revoked():
                raise UnreachableError(_REVOKED_HERE)
            secured.settimeout(max(0.01, until_s - time.monotonic()))
            answer = secured.recv(1)
            if answer != _READY:
                raise UnreachableError(_WHY_NOT.get(answer, "it is no relay of Caramel"))
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, UnicodeError):  # of host names that cannot be encoded
                raise UnreachableError("its name is no name of a host") from None
            if isinstance(error, OSError) and not isinstance(error, UnreachableError):
                raise UnreachableError(
                    why_refused(error), is_silent=isinstance(error, TimeoutError)
                ) from None
            raise
        return secured

    def _carry(self, other: ssl.SSLSocket, local: socket.socket) -> None:
        """Carry a connection until its end, or until the other side's certificate is revoked."""
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends = (other, local)
        self._open[ends] = serial_of(other.getpeercert())
        try:
            carry(*ends)
        finally:
            del self._open[ends]

    def _cut_revoked(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            revoked = self._credentials.revoked()
            for ends in [each for each, serial in list(self._open.items()) if serial in revoked]:
                self.refusals.note(ends[0], _REVOKED_HERE)
                for end in ends:
                    # The method of TLS would let its thread go on in plain text.
                    with suppress(OSError):
                        socket.socket.shutdown(end, socket.SHUT_RDWR)


def _begin(function: Callable[..., None], *arguments: object) -> bool:
    """Call a function in a thread of its own; whether there could be one."""
    try:
        threading.Thread(target=function, args=arguments, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _tune(connection: socket.socket) -> None:
    """Send at once what there is, and notice some day that the other host is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def public_listeners(place: Place) -> list[socket.socket]:
    """Sockets where other relays can connect: on all interfaces, as TensorFlow has them; but only
    on loopback where the host is a loopback address.

    Raises:
        OSError: the port is taken, or cannot be used.
    """
    if place.host == "localhost" or place.host.startswith("127."):
        return [_listener(place.host, place.port)]
    if place.host == "::1":
        return [_listener(place.host, place.port, family=socket.AF_INET6)]
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return [_listener("", place.port, family=socket.AF_INET6, dualstack_ipv6=True)]
    return [_listener("", place.port)]


def _listener(host: str, port: int, **options: object) -> socket.socket:
    return socket.create_server((host, port), backlog=_BACKLOG, **options)  # type: ignore[arg-type]


def local_listener() -> socket.socket:
    """A socket where connections of this machine, or namespace, are taken."""
    return _listener("127.0.0.1", 0)


def port_of(listener: socket.socket) -> int:
    """The port of a socket."""
    return int(listener.getsockname()[1])
