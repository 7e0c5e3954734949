"""How often may a session try to go on? So many times in an hour, and ever slower in a row."""

from __future__ import annotations

import time
from collections import deque

_HOUR_S = 3600.0
_FIRST_WAIT_S, _MOST_WAIT_S = 0.5, 60.0


class Restarts:
    """The attempts of a session to go on.

    Args:
        most: how many there may be in an hour.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._begun_s: deque[float] = deque()
        self._in_a_row = 0

    def begin(self) -> bool:
        """Wait, if the last attempt has failed; whether another one may be made."""
        while self._begun_s and time.monotonic() - self._begun_s[0] > _HOUR_S:
            self._begun_s.popleft()
        if len(self._begun_s) >= self.most:
            return False
        if self._in_a_row:
            time.sleep(min(_FIRST_WAIT_S * 2 ** (self._in_a_row - 1), _MOST_WAIT_S))
        self._in_a_row += 1
        self._begun_s.append(time.monotonic())
        return True

    def succeeded(self) -> None:
        """A step was done since."""
        self._in_a_row = 0
