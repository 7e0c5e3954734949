"""Saves a checkpoint when the process is told to end by SIGTERM, as spot machines do, and ends it.

Python calls the handler of a signal in the main thread, in the middle of whatever that does. Within
a method of the session the checkpoint is written when that has returned; elsewhere at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakMethod

from caramel.core.errors import PlanError
from caramel.runtime.turns import Turns

EXIT_CODE = 128 + signal.SIGTERM
"""Of a process that SIGTERM has ended, as shells have it."""

NAME = "preempted"
"""What the checkpoint is called where a directory is given."""

_log = logging.getLogger(__name__)


def check_last(given: Any) -> None:
    """Check what says where the checkpoint is written.

    Raises:
        PlanError: it is no path; or signals cannot be handled here: this is not the main thread, or
            a library handles SIGTERM.
    """
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise PlanError(
            f"save_on_sigterm must be the path of a checkpoint, or a directory, not {given!r}"
        )
    if threading.current_thread() is not threading.main_thread():
        raise PlanError(
            "save_on_sigterm works only where the session is opened in the main thread, which is "
            "where Python handles signals"
        )
    if signal.getsignal(signal.SIGTERM) is None:
        raise PlanError(
            "save_on_sigterm: SIGTERM is handled by a library that is not written in Python; let "
            "the program call session.save itself"
        )


def path_of_last(given: str | os.PathLike[str], resume: str | os.PathLike[str] | None) -> str:
    """The path of the checkpoint, where a path or a directory is given.

    Args:
        given: a directory may not be there yet, if it ends with a slash or is that of `resume`.
        resume: where a session looks for checkpoints.
    """
    path = os.fspath(given)
    is_directory = (
        path.endswith(os.sep)
        or os.path.isdir(path)
        or (resume is not None and os.path.abspath(path) == os.path.abspath(resume))
    )
    return os.path.join(path, NAME) if is_directory else path


class Preemption:
    """Handles SIGTERM until `end`.

    Where the program has a handler of its own, that is called when the checkpoint is written, and
    says what happens then. One that is installed later takes the place of this one.

    Args:
        save: a method that writes the checkpoint and returns its path. Its object is not held.
        turns: those of the session.
    """

    def __init__(self, save: Callable[[], str], turns: Turns) -> None:
        self._save, self._turns = WeakMethod(save), turns
        self._is_told = self._is_over = False
        self._before: Any = signal.signal(signal.SIGTERM, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self._is_over or self._turns.are_forked:
            self._pass_on(number, frame)
        elif not self._is_told:  # a second one changes nothing
            self._is_told = True
            self._turns.when_left(lambda: self._act(number, frame))

    def end(self) -> None:
        """Put back the handler that was there before."""
        self._is_over = True
        is_main = threading.current_thread() is threading.main_thread()
        current: object = signal.getsignal(signal.SIGTERM)
        if is_main and not self._turns.are_forked and current is self:
            signal.signal(signal.SIGTERM, self._before)

    def _act(self, number: int, frame: FrameType | None) -> None:
        save = self._save()
        try:
            path = None if save is None else save()
        except Exception as error:  # whatever it was: the process is to end
            _log.error("told to end by SIGTERM; no checkpoint can be written: %s", error)
        else:
            _log.warning("told to end by SIGTERM; checkpoint '%s' is written", path)
        if callable(self._before):
            self._is_told = False  # it may let the program go on
            self._before(number, frame)
        else:
            raise SystemExit(EXIT_CODE)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Do what would have been done without this handler."""
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
