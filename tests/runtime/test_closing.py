"""However a session ends, nobody calls TensorFlow once its session there is deleted."""

from __future__ import annotations

import gc
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest

import caramel
from caramel.native import session as c_api
from caramel.runtime.stalls.diagnosis import StallSettings
from caramel.runtime.stalls.watchdog import Watchdog
from caramel.runtime.steps.marks import StepMarks
from caramel.runtime.steps.plan_executor import PlanExecutor
from tests.support import forking
from tests.support.barred import PATIENCE_S, Bar, barred, flagged
from tests.support.networks import network

ROOT = Path(__file__).parents[2]


class Reader:
    """What becomes of a thread that reads the marks of a step, and is held up in that.

    Attributes:
        has_begun: whether it reads.
        goes_on: lets it go on.
        calls: of TensorFlow, in order: "read" and "done" when one ends, "delete".
        late: calls that would be made with a session or a graph that was deleted.
    """

    def __init__(self):
        self.has_begun, self.goes_on = threading.Event(), threading.Event()
        self.calls, self.late = [], []
        self._deleted = set()

    def spy(self, monkeypatch):
        library = c_api._library()
        for name in ("TF_SessionRun", "TF_GraphOperationByName"):
            monkeypatch.setattr(library, name, self._unless_deleted(getattr(library, name)))
        for name in ("TF_DeleteSession", "TF_DeleteGraph"):
            monkeypatch.setattr(library, name, self._deleting(getattr(library, name)))

    def hold_up(self):
        self.has_begun.set()
        self.goes_on.wait(PATIENCE_S)

    def _unless_deleted(self, function):
        def called(pointer, *given):
            if pointer is None or pointer in self._deleted:
                self.late.append(function.__name__)
                raise RuntimeError("the process would crash")
            is_read = threading.current_thread().name.startswith("caramel-marks")
            if is_read and function.__name__ == "TF_SessionRun":
                self.calls.append("read")
                self.hold_up()
            result = function(pointer, *given)
            if is_read and function.__name__ == "TF_SessionRun":
                self.calls.append("done")
            return result

        return called

    def _deleting(self, function):
        def called(pointer, *given):
            self._deleted.add(pointer)
            self.calls.append("delete")
            return function(pointer, *given)

        return called


def threads():
    return {t for t in threading.enumerate() if t.name.startswith("caramel-")}


def closed(sessions):
    sessions.pop().close()


def left(sessions):
    with pytest.raises(SystemExit), sessions.pop():
        raise SystemExit


def let_go(sessions):
    gone = weakref.ref(sessions.pop())
    assert gone() is None


def collected(sessions):
    cycle = [sessions.pop()]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    del cycle
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("end", [closed, left, let_go, collected])
@pytest.mark.parametrize("place", ["before", "within"])
def test_a_reader_of_marks_makes_no_call_when_its_session_is_deleted(place, end, monkeypatch):
    """It may be about to call TensorFlow, or in the middle of that."""
    before, bar, reader = threads(), Bar(), Reader()
    job = barred(bar)
    if place == "before":
        read = StepMarks.read
        monkeypatch.setattr(StepMarks, "read", lambda *given: reader.hold_up() or read(*given))
    settings = StallSettings(least_s=0.1, answer_s=1.0)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    sessions = [model.session(trials=None, stalls=settings)]
    reader.spy(monkeypatch)  # the session that greets workers was deleted
    for _ in range(6):
        sessions[0].step(job.feed)
    with bar.down_until(reader.has_begun.is_set):
        sessions[0].step(flagged(job, 1))
    if place == "within":
        threading.Timer(3.0, reader.goes_on.set).start()  # while the session is being closed
    end(sessions)
    reader.goes_on.set()
    end_s = time.monotonic() + PATIENCE_S
    while not threads() <= before and time.monotonic() < end_s:
        time.sleep(0.01)
    assert threads() <= before
    assert reader.late == []
    if place == "within":
        assert reader.calls.index("delete") > reader.calls.index("done")


@pytest.mark.parametrize("place", ["Watchdog", "PlanExecutor"])
def test_a_session_is_deleted_although_ending_its_threads_is_interrupted(place, monkeypatch):
    job = network("momentum", number=12)
    session = caramel.ARModel(job.context(), 2, planner="plain").session()
    session.step(job.feed)
    reader = Reader()
    reader.spy(monkeypatch)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        {"Watchdog": Watchdog, "PlanExecutor": PlanExecutor}[place], "close", interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert reader.calls == ["delete", "delete"]
    session.close()  # does nothing


EXITING = """
    import atexit, sys, threading
    import pytest
    import caramel
    from caramel.runtime.stalls.diagnosis import StallSettings
    from tests.runtime.test_closing import Reader
    from tests.support.barred import Bar, barred, flagged

    atexit.register(lambda: print(reader.late, *reader.calls))
    bar, reader = Bar(), Reader()
    reader.spy(pytest.MonkeyPatch())
    job = barred(bar)
    settings = StallSettings(least_s=0.1, answer_s=1.0)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    session = model.session(trials=None, stalls=settings)
    for _ in range(6):
        session.step(job.feed)
    with bar.down_until(reader.has_begun.is_set):
        session.step(flagged(job, 1))
    later = threading.Timer(3.0, reader.goes_on.set)
    later.daemon = True
    later.start()
"""


def test_a_session_that_nobody_closes_is_closed_when_the_interpreter_ends():
    """In the middle of TensorFlow, a thread would take the whole process with it."""
    command = [sys.executable, "-c", textwrap.dedent(EXITING)]
    ended = forking.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    late, *calls = ended.stdout.split()
    assert late == "[]"
    assert calls[-2:] == ["delete", "delete"]
    assert calls.count("read") > 0
