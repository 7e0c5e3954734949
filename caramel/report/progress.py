"""Shows what the library is doing while that takes long: live on a terminal, in lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import IO, Any, Literal, get_args

from rich import get_console
from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from caramel.core.errors import CaramelError
from caramel.core.util.progress import show_on

How = Literal["auto", "live", "lines"]

_SHORT_S = 1.0  # what ends sooner is not worth a line


def show_progress(how: How | None = "auto") -> None:
    """Let Caramel say what it is doing while that takes longer than a moment.

    It tells of loading, starting and reaching workers, tracing, building and placing graphs,
    measuring, planning, trials of plans, and saving. Nothing of it is shown by default.

    Args:
        how: "live" for spinners and bars on standard output, as in a terminal or a notebook;
            "lines" for lines on standard error, as in the log of a batch job; "auto" for the first
            where standard output is a terminal or a notebook, else for the second; None to end it.

    Raises:
        CaramelError: it is none of these.
    """
    if how is not None and not (isinstance(how, str) and how in get_args(How)):
        raise CaramelError(f"show_progress takes 'auto', 'live', 'lines' or None, not {how!r}")
    if how == "auto":
        console = get_console()
        how = "live" if console.is_terminal or console.is_jupyter else "lines"
    if how is None:
        show_on(None)
    else:
        show_on(Live(get_console()) if how == "live" else Lines(sys.stderr))


class Lines:
    """Shows each work that takes longer than a moment in two lines: that it goes on, and its time.

    Args:
        file: gets the lines.
        after_s: how long a moment is, in seconds.
    """

    def __init__(self, file: IO[str], after_s: float = _SHORT_S) -> None:
        self._file, self._after_s = file, after_s

    def begin(self, what: str) -> _Work:
        """See `caramel.core.util.progress.Display`; so are the others."""
        work = _Work(what, time.monotonic())
        work.timer = threading.Timer(self._after_s, self._last_long, [work])
        work.timer.daemon = True
        try:
            work.timer.start()
        except RuntimeError:  # the interpreter ends, and begins no thread
            work.timer = None
        return work

    def move(self, work: _Work, done: int, total: int) -> None:
        pass  # lines tell only how long things take

    def end(self, work: _Work) -> None:
        with work.lock:
            work.has_ended = True
        if work.timer is not None:
            work.timer.cancel()
        if work.is_told:
            self.tell(f"{work.what}: {time.monotonic() - work.began_s:.1f} s")

    def tell(self, text: str) -> None:
        print(f"caramel: {text}", file=self._file, flush=True)

    def _last_long(self, work: _Work) -> None:
        with work.lock:
            if not work.has_ended:
                work.is_told = True
                self.tell(f"{work.what}…")


class _Work:
    """Something that is being done.

    Attributes:
        what: it is.
        began_s: when, by the monotonic clock.
        timer: waits until it counts as long.
        is_told: whether it has been said that it goes on.
        has_ended: whether it has.
    """

    def __init__(self, what: str, began_s: float) -> None:
        self.what, self.began_s = what, began_s
        self.timer: threading.Timer | None = None
        self.is_told = self.has_ended = False
        self.lock = threading.Lock()


class Live:
    """Shows what goes on in lines that move, and go when it has ended.

    Args:
        console: where; that of the program's own displays, if it has any.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._progress: Progress | None = None

    def begin(self, what: str) -> TaskID | None:
        """See `caramel.core.util.progress.Display`; so are the others."""
        with self._lock:
            if self._progress is None:
                self._progress = self._started()
            if self._progress is None:
                return None
            return self._progress.add_task(what, total=None)

    def move(self, work: TaskID | None, done: int, total: int) -> None:
        with self._lock:
            if self._progress is not None and work is not None:
                self._progress.update(work, completed=done, total=total)

    def end(self, work: TaskID | None) -> None:
        with self._lock:
            if self._progress is None or work is None:
                return
            self._progress.remove_task(work)
            if not self._progress.tasks:
                self._progress.stop()
                self._progress = None

    def tell(self, text: str) -> None:
        self._console.print(f"caramel: {text}", highlight=False, markup=False, soft_wrap=True)

    def _started(self) -> Progress | None:
        columns: list[Any] = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
        ]
        progress = Progress(*columns, console=self._console, transient=True)
        try:
            progress.start()
        except LiveError:  # the program shows something itself: it has the terminal
            return None
        return progress
