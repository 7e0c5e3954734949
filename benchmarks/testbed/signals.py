"""Signals that would end this process before its beds are removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from benchmarks.testbed.removal import open_beds

_DEADLY = (signal.SIGTERM, signal.SIGHUP)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def exit_on_signals() -> None:
    """Make signals that would kill this process exit it instead, so that beds are removed."""
    if threading.current_thread() is threading.main_thread():
        for number in _DEADLY:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def restore_signals() -> None:
    """Undo that, once no bed of this process is open."""
    if threading.current_thread() is threading.main_thread() and not open_beds:
        for number in _DEADLY:
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals that arrive in the body take effect after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, *_DEADLY)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in arrived:
            signal.raise_signal(each)
