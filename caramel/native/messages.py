"""What TensorFlow writes to its log while Caramel starts servers, opens sessions and does steps.

Some ten lines tell of servers that listen, of devices that are looked for, and of defaults: news
for who starts servers by hand, noise in a program that has only opened a session. A server also
warns that it drops what is left of a step, each time that it is faster than its own threads. What
fails is told by an error in any case.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import c_int
from functools import cache
from types import SimpleNamespace

from caramel.core.errors import InstallationError
from caramel.native import library

ERRORS, FATAL = 2, 3  # absl::LogSeverity

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""TensorFlow's variable for the least severity that it writes, from 0 (all) to 3."""

_TO_LOG = b"log("  # begins the stream of a PrintV2 (`tf.print`) that writes to the log

# Abseil's functions of these names, in the form in which this TensorFlow has them.
_LEVEL = "_ZN4absl12lts_2025081411MinLogLevelEv"
_SET_LEVEL = "_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE"

_change = threading.Lock()
_wanted: list[int] = []  # the severities of all contexts that last
_of_steps: list[int] = []  # of those in which the user's ops run
_graphs_write = False  # whether an op of any session may write to the log
_before = 0  # the level outside of all contexts
_serves = False  # whether this process has servers


def at_least(severity: int) -> AbstractContextManager[None]:
    """Only messages of some severity are written while the context lasts, in the whole process.

    Whoever has set TF_CPP_MIN_LOG_LEVEL has decided what is written: then nothing changes. Nor does
    anything where TensorFlow's library has no such setting: messages are no reason to fail. Several
    threads may be in contexts at a time: the highest severity counts.
    """
    return _lasting(_wanted, severity)


def of_no_trace() -> AbstractContextManager[None]:
    """A context for traced calls: TensorFlow does not tell that it begins and ends to trace.

    Such calls run the user's ops. Once one of a session may write to the log, nothing is hidden:
    the level is that of the process, and several sessions record a step together.
    """
    return _lasting(_of_steps, ERRORS)


def of_no_cleanup() -> AbstractContextManager[None]:
    """A context for a session: servers of this process do not tell that they drop what is left of a
    step ("Local rendezvous is aborting"), which they do some time after the call has returned.

    As in `of_no_trace`, nothing is hidden once an op may write to the log. Nothing is either where
    this process has no servers.
    """
    return _lasting(_of_steps, ERRORS) if _serves else nullcontext()


def learn(graph_def: bytes) -> None:
    """A session gets a graph: may its ops write to the log?"""
    global _graphs_write
    if not _graphs_write and _TO_LOG in graph_def:
        _graphs_write = True
        setting = _setting()
        with _change:
            if setting is not None and (_wanted or _of_steps):
                setting.set_level(_level())


def learn_of_server() -> None:
    """This process starts a server, which does a part of steps."""
    global _serves
    _serves = True


@contextmanager
def _lasting(severities: list[int], severity: int) -> Iterator[None]:
    """A context in which a severity is one of those that are wanted."""
    if LOG_LEVEL in os.environ or _setting() is None:
        yield
        return
    _change_wanted(severities.append, severity)
    try:
        yield
    finally:
        _change_wanted(severities.remove, severity)


def _change_wanted(change: Callable[[int], None], severity: int) -> None:
    global _before
    setting = _setting()
    assert setting is not None
    with _change:
        if not (_wanted or _of_steps):
            _before = setting.level()
        change(severity)
        setting.set_level(_level())


def _level() -> int:
    """The level that counts now."""
    return max((_before, *_wanted, *(() if _graphs_write else _of_steps)))


@cache
def _setting() -> SimpleNamespace | None:
    try:
        found = library.functions({_LEVEL: (c_int, ()), _SET_LEVEL: (None, (c_int,))})
    except InstallationError:
        return None
    return SimpleNamespace(level=getattr(found, _LEVEL), set_level=getattr(found, _SET_LEVEL))
