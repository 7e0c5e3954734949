"""What is said of those who were refused: a line now and then, whatever their number."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

_EVERY_S = 10.0


class Refusals:
    """Says who was refused, and why.

    Args:
        say: gets each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._said_s = -_EVERY_S
        self._unsaid = 0
        self.count = 0

    def note(self, connection: socket.socket, why: str) -> None:
        """Somebody was refused."""
        try:
            who = connection.getpeername()[0]
        except OSError:
            who = "somebody"
        with self._lock:
            self.count += 1
            now_s = time.monotonic()
            if now_s < self._said_s + _EVERY_S:
                self._unsaid += 1
                return
            more = f"; {self._unsaid} more since the last such line" if self._unsaid else ""
            self._said_s, self._unsaid = now_s, 0
        self._say(f"refused a connection from {who}: {why}{more}")
