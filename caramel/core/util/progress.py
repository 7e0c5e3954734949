"""Work that may take long says so here, to whoever wants to see it: to nobody by default.

The library tells; what shows it (`caramel.report.progress`) is set by the program. So nothing that
works needs to know whether there is a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

Move = Callable[[int, int], None]
"""Told how much of some work is done, and of how much."""


class Display(Protocol):
    """Shows what is going on. Several threads may tell at once."""

    def begin(self, what: str) -> Any:
        """Some work begins, in a few words ("placing the graph"); returns what stands for it."""

    def move(self, work: Any, done: int, total: int) -> None:
        """So much of it is done."""

    def end(self, work: Any) -> None:
        """It has ended, well or not."""

    def tell(self, text: str) -> None:
        """Something to know, in a line."""


_display: Display | None = None


def show_on(display: Display | None) -> None:
    """Let all that is told from now on be shown; None for nowhere."""
    global _display
    _display = display


@contextmanager
def working(what: str) -> Iterator[Move]:
    """Some work is done in this context, which may tell how far it is.

    Args:
        what: it is, in a few words ("placing the graph").
    """
    display = _display
    if display is None:
        yield _nowhere
        return
    work = display.begin(what)
    try:
        yield partial(display.move, work)
    finally:
        display.end(work)


def tell(text: str) -> None:
    """Say what has happened, in a line."""
    if _display is not None:
        _display.tell(text)


def _nowhere(done: int, total: int) -> None:
    pass
