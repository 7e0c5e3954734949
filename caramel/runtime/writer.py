"""Writes files beside training: one thing at a time, for which nobody waits until the next.

What has failed is told once, by the next call that looks. The interpreter does not end before what
was begun is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """A thread for each thing that is written, one after the other."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Let a thread call `write`, when what was begun before has ended.

        Raises:
            Exception: what was begun before has failed; `write` is not called.
        """
        self.wait()
        # No daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._run, args=(write,), name="caramel-writer")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, and starts no thread any more
            self._thread = None
            write()

    def wait(self) -> None:
        """Wait until what was begun is written.

        Raises:
            Exception: it has failed, which was not told yet.
        """
        thread = self._thread
        # The thread itself may collect the session as garbage, which ends with this.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise if what was begun has failed, which was not told yet; wait for nothing."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
