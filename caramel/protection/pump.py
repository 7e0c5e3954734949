"""Carries bytes between two sockets, in both directions, until either of them ends."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence

_LEAST_BYTES, _MOST_BYTES = 1 << 14, 1 << 18  # of a buffer: it grows where it is filled
_TURNS = 8  # buffers that one direction carries before it is the other one's turn

_Wait = tuple[socket.socket, int]


def carry(one: socket.socket, other: socket.socket) -> None:
    """Carry what comes from either to the other, until one of them has no more to say.

    Both may be TLS. They are left open.

    Raises:
        OSError: a connection broke.
    """
    for end in (one, other):
        end.setblocking(False)
    ways = (_Way(one, other), _Way(other, one))
    while True:
        for way in ways:
            way.go_on()
        if any(way.is_over for way in ways):
            return
        waits = [way.waits for way in ways]
        if None not in waits:
            _wait([wait for wait in waits if wait is not None])


class _Way:
    """One direction.

    A thread serves both directions of a connection: two must not use one end of TLS at a time.

    Attributes:
        waits: the socket, and the event of `select.poll`, before which nothing can be done; None if
            there may be more to do.
        is_over: whether the source has no more to say, and all that it said is delivered.
    """

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self._buffer = memoryview(bytearray(_LEAST_BYTES))
        self._left = self._buffer[:0]  # what is still to be delivered
        self._has_ended = False
        self.waits: _Wait | None = None

    @property
    def is_over(self) -> bool:
        return self._has_ended and not self._left

    def go_on(self) -> None:
        """Carry what can be carried without waiting."""
        for _ in range(_TURNS):
            self.waits = None
            if not self._left:
                self._left = self._buffer[: self._read()]
                if len(self._left) == len(self._buffer) < _MOST_BYTES:
                    self._buffer = memoryview(bytearray(4 * len(self._buffer)))
            self._write()
            if self.waits is not None or self._has_ended:
                return

    def _read(self) -> int:
        """Fill the buffer as far as possible; returns how far."""
        filled, is_tls = 0, isinstance(self._source, ssl.SSLSocket)
        try:
            while filled < len(self._buffer):
                got = self._source.recv_into(self._buffer[filled:])
                filled += got
                if not got:
                    self._has_ended = True
                # TLS gives no more than a record at a time.
                if not got or not is_tls:
                    break
        except (BlockingIOError, ssl.SSLWantReadError):
            self.waits = None if filled else (self._source, select.POLLIN)
        except ssl.SSLWantWriteError:
            self.waits = None if filled else (self._source, select.POLLOUT)
        return filled

    def _write(self) -> None:
        try:
            while self._left:
                self._left = self._left[self._target.send(self._left) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.waits = (self._target, select.POLLOUT)
        except ssl.SSLWantReadError:
            self.waits = (self._target, select.POLLIN)


def _wait(events: Sequence[_Wait]) -> None:
    """Wait for one of some events, or the end of one of these sockets."""
    poll, masks = select.poll(), dict[int, int]()
    for end, event in events:
        masks[end.fileno()] = masks.get(end.fileno(), 0) | event
    for number, mask in masks.items():
        poll.register(number, mask)
    poll.poll()
