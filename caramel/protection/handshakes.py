"""Who connects proves who it is, before anything else, and in time.

One thread makes all handshakes, so many may be under way at once. A connection that says nothing
costs a socket until its time is over, or until there are too many: then the one that has taken
longest goes, so that whoever is quick gets in however many are slow.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from caramel.protection.credentials import why_refused
from caramel.protection.refusals import Refusals

MOST_UNDER_WAY = 200
LIMIT_S = 10.0

_ACCEPTED_AT_ONCE = 50  # before those under way have their turn


class Handshakes:
    """Takes connections, and hands on those whose TLS handshake succeeds.

    Args:
        listeners: where they are taken.
        context: of TLS, asked for each.
        admit: is handed who has proved its identity; must return at once.
        refusals: is told of the others.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        context: Callable[[], ssl.SSLContext],
        admit: Callable[[ssl.SSLSocket], None],
        refusals: Refusals,
    ) -> None:
        self._listeners = tuple(listeners)
        self._context, self._admit, self._refusals = context, admit, refusals
        self._selector = selectors.DefaultSelector()
        # When each has to be done, in the order in which they began.
        self._until_s: dict[ssl.SSLSocket, float] = {}

    def run(self) -> None:
        """Take connections for ever."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(self._wait_s()):
                if isinstance(key.fileobj, ssl.SSLSocket):
                    self._go_on(key.fileobj)
                elif isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj)
            now_s = time.monotonic()
            for late in [each for each, until_s in self._until_s.items() if until_s <= now_s]:
                self._refuse(late, "its handshake took too long")

    def _wait_s(self) -> float | None:
        """How long the one that began first still has; None if there is none."""
        first_s = next(iter(self._until_s.values()), None)
        return None if first_s is None else max(0.0, first_s - time.monotonic())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it has gone already, or this process has too many files open
                self._make_room()
                return
            if len(self._until_s) >= MOST_UNDER_WAY:
                self._make_room()
            self._begin(connection)

    def _make_room(self) -> None:
        slowest = next(iter(self._until_s), None)
        if slowest is not None:
            self._refuse(slowest, "its handshake was the slowest of too many")

    def _begin(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            secured = self._context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError):  # it has gone already
            connection.close()
            return
        self._until_s[secured] = time.monotonic() + LIMIT_S
        self._selector.register(secured, selectors.EVENT_READ)

    def _go_on(self, connection: ssl.SSLSocket) -> None:
        if connection not in self._until_s:  # it was given up a moment ago
            return
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(connection, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection, selectors.EVENT_WRITE)
        except (OSError, ValueError) as error:
            self._refuse(connection, why_refused(error))
        else:
            self._forget(connection)
            self._admit(connection)

    def _refuse(self, connection: ssl.SSLSocket, why: str) -> None:
        self._refusals.note(connection, why)
        self._forget(connection)
        with suppress(OSError):
            connection.close()

    def _forget(self, connection: ssl.SSLSocket) -> None:
        del self._until_s[connection]
        self._selector.unregister(connection)
