"""What becomes of a call that another thread makes, for a caller who may be interrupted.

An interruption may come between any two steps of Python. Whoever waits for a
`concurrent.futures.Future` then may leave it locked, and the thread that makes the call would wait
for ever when it has ended. Here nobody holds a lock while he does something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Outcome(Generic[Result]):
    """The result of a call, or its error.

    Attributes:
        is_over: whether the call has ended.
        error: what it has raised; None if nothing, or if it has not ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.error: BaseException | None = None
        self._results: list[Result] = []
        self._claimed, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()

    def of(self, function: Callable[[], Result]) -> None:
        """Make the call, unless it was cancelled."""
        if not self._claimed.acquire(blocking=False):
            return
        try:
            self._results.append(function())
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._ended.release()

    def cancel(self) -> bool:
        """Let the call not be made; whether it had not begun."""
        return self._claimed.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the call no longer than that; whether it has ended."""
        if not self.is_over:
            self._ended.acquire(timeout=timeout_s)
        return self.is_over

    def result(self) -> Result:
        """What the call has returned; it has ended.

        Raises:
            BaseException: what it has raised.
        """
        if self.error is not None:
            raise self.error
        return self._results[0]
