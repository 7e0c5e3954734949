"""The only way into a server's namespace, and out of it: a Unix socket.

A socket belongs to the namespace in which it was made, whoever holds it. So the server's process
makes them, in there, and hands them to the relay outside: once where its own connections to others
are taken, and then a connection to its server for each that the relay lets in. What the relay reads
and writes is in the namespace without a detour.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence

_MOST_EXITS_AT_ONCE = 200  # sockets in one message; the system's limit is 253
_CONNECT_S = 5.0
_CONNECT, _CONNECTED, _NOBODY = b"c", b"y", b"n"


class ServerEnd:
    """The end in the server's process.

    Args:
        channel: a Unix socket of `socket.SOCK_SEQPACKET`.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def serve(self, exits: Sequence[socket.socket], port: int) -> None:
        """Hand over the sockets where the server's own connections are taken, and from now on
        connections to the server, in a thread. This process ends when the relay does.

        Args:
            exits: one for each task to which it may connect; they are closed here.
            port: of the server, on loopback.
        """
        for begin in range(0, len(exits), _MOST_EXITS_AT_ONCE):
            some = exits[begin : begin + _MOST_EXITS_AT_ONCE]
            socket.send_fds(self._channel, [_CONNECTED], [each.fileno() for each in some])
        for each in exits:
            each.close()
        thread = threading.Thread(target=self._connect, args=(port,), daemon=True)
        thread.start()

    def _connect(self, port: int) -> None:
        try:
            while self._channel.recv(1):
                self._connect_once(port)
        finally:  # the relay has ended: nobody will ever reach this server again
            os._exit(1)

    def _connect_once(self, port: int) -> None:
        try:
            connection = socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        except OSError:
            self._channel.send(_NOBODY)
            return
        with connection:
            socket.send_fds(self._channel, [_CONNECTED], [connection.fileno()])


class RelayEnd:
    """The end in the relay's process.

    Args:
        channel: a Unix socket of `socket.SOCK_SEQPACKET`.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lock = channel, threading.Lock()

    def exits(self, count: int) -> list[socket.socket]:
        """Where the server's own connections are taken.

        Args:
            count: how many there are.

        Raises:
            ConnectionError: the server's process has ended before.
        """
        got: list[socket.socket] = []
        while len(got) < count:
            got += self._receive()
        return got

    def connect(self) -> socket.socket:
        """A connection to the server.

        Raises:
            ConnectionError: it does not listen.
        """
        with self._lock:
            self._channel.send(_CONNECT)
            (connection,) = self._receive()
        return connection

    def close(self) -> None:
        """Leave it to another process."""
        self._channel.close()

    def _receive(self) -> list[socket.socket]:
        message, numbers, _, _ = socket.recv_fds(self._channel, 1, _MOST_EXITS_AT_ONCE)
        sockets = [socket.socket(fileno=number) for number in numbers]
        if not message or message == _NOBODY:
            raise ConnectionRefusedError("the server does not listen")
        return sockets
