"""Keeps TensorFlow's start-up messages out of a program's errors.

For programs; nothing in the library calls it but where a process becomes a worker for good.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn

from caramel.core.util.gc_pause import held_back
from caramel.core.util.progress import working

WITHOUT_KERAS = ("TF_USE_LEGACY_KERAS", "1")
"""For processes in which nobody uses Keras: TensorFlow then leaves it out, and with it all that it
imports where they are installed (scikit-learn, Matplotlib): half of a start's processor time."""

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

# What TensorFlow writes at every start whatever its log level, because its log is not set up yet.
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|I\d{4} \d\d:\d\d:"
    rb"|W\d{4} .*GPU trace was not collected"  # of each trace on a machine without GPUs
)


@contextmanager
def quiet_start() -> Iterator[Callable[[], None]]:
    """Import TensorFlow inside it, and its start-up messages do not appear on standard error.

    That takes some seconds, which `caramel.show_progress` explains. Hides nothing where the user
    has set TF_CPP_MIN_LOG_LEVEL to 0, to see everything. Python collects no garbage meanwhile.
    Yields a function that ends it early.
    """
    with ExitStack() as stack:
        stack.enter_context(working("loading TensorFlow"))
        stack.enter_context(held_back())  # what modules make stays; half a second of looking
        if os.environ.get(_LOG_LEVEL) != "0":
            stack.callback(_hide_noise())
        yield stack.close


def _hide_noise() -> Callable[[], None]:
    """Begin to leave out messages; what is returned ends it."""
    given = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = given or "3"
    read_end, write_end = os.pipe()
    sys.stderr.flush()
    # A child, not a thread: what TensorFlow writes while it crashes still gets through.
    child = os.fork()
    if child == 0:
        os.close(write_end)
        _forward_errors(read_end)
    errors = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    os.close(read_end)

    def restore() -> None:
        if not given:  # TensorFlow has read it; what this process starts need not inherit it
            os.environ.pop(_LOG_LEVEL, None)
        sys.stderr.flush()
        os.dup2(errors, 2)
        os.close(errors)
        with suppress(ChildProcessError):  # where SIGCHLD is ignored, nobody can be waited for
            os.waitpid(child, 0)

    return restore


def _forward_errors(read_end: int) -> NoReturn:
    """Write every line that is no noise to standard error, until nobody writes any more."""
    try:
        # Ctrl-C reaches the child, too, and the parent may still write.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        with open(read_end, "rb") as lines:
            for line in lines:
                if not _NOISE.match(line):
                    os.write(2, line)
    finally:
        # Not `exit`, which would run what the parent has registered.
        os._exit(0)
