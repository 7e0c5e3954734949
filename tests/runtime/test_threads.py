"""Threads share a session: its methods take turns, and what is called within another is refused."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import caramel
from caramel.core.errors import SessionError
from caramel.runtime.turns import Turns, in_turn, last_turn
from tests.support.networks import network, perceptron, relative_error, run_on_one_device, tf
from tests.support.processes import wait_for

_LONGEST_S = 60.0


class Shared:
    """Something whose methods take turns."""

    def __init__(self):
        self._turns = Turns()
        self.done = []
        self.inside = 0

    @property
    def line(self):
        """How many are in turn or wait."""
        return len(self._turns._line)

    @in_turn
    def work(self, name, others=0, then=None):
        """Waits in its turn until so many others stand in line."""
        self.inside += 1
        assert self.inside == 1
        assert wait_for(lambda: self.line > others)
        if then is not None:
            then()
        self.done.append(name)
        self.inside -= 1

    @last_turn
    def close(self):
        self.done.append("close")


def started(turns, *functions):
    """A thread for each function, each of which stands in line before the next one begins."""
    threads = [threading.Thread(target=each, daemon=True) for each in functions]
    for number, thread in enumerate(threads, 1):
        thread.start()
        assert wait_for(lambda number=number: len(turns._line) >= number)
    return threads


def joined(threads):
    for thread in threads:
        thread.join(_LONGEST_S)
    return not any(thread.is_alive() for thread in threads)


def test_who_comes_first_has_the_first_turn():
    shared = Shared()
    names = list("abcd")
    work = [lambda name=name, n=n: shared.work(name, others=3 - n) for n, name in enumerate(names)]
    threads = started(shared._turns, *work)
    assert joined(threads)
    assert shared.done == names


def test_a_thread_that_comes_again_waits_behind_the_others():
    shared = Shared()

    def twice(name):
        shared.work(name, others=1)
        shared.work(name, others=name == "a")

    assert joined(started(shared._turns, lambda: twice("a"), lambda: twice("b")))
    assert shared.done == ["a", "b", "a", "b"]


def test_the_end_comes_before_those_that_wait():
    shared = Shared()
    ends = [lambda: shared.work("a", others=2), lambda: shared.work("b"), shared.close]
    assert joined(started(shared._turns, *ends))
    assert shared.done == ["a", "close", "b"]


def test_what_is_called_within_a_turn_of_the_same_thread_is_refused():
    shared = Shared()
    with pytest.raises(SessionError, match=r"session\.work was called within session\.work"):
        shared.work("outer", then=lambda: shared.work("inner"))
    shared.inside = 0
    shared.work("outer", then=shared.close)  # the end is not
    assert shared.done == ["close", "outer"]


def test_an_interruption_leaves_the_line():
    shared = Shared()
    goes_on = threading.Event()
    threads = started(
        shared._turns, lambda: shared.work("a", then=lambda: goes_on.wait(_LONGEST_S))
    )

    def interrupt():
        wait_for(lambda: shared.line == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        shared.work("b")
    goes_on.set()
    shared.work("c")
    assert joined(threads)
    assert shared.done == ["a", "c"]


@pytest.fixture(name="job", scope="module")
def fixture_job():
    return network("momentum", number=24)


def test_threads_that_train_together_do_each_step_once_while_plans_change(job):
    """All steps have the same examples, so their order does not show in the parameters."""
    model = caramel.ARModel(job.context(), 2)
    for name in ("one", "two"):
        model.add_variant(model.plan, name)
    settings = caramel.TrialSettings(rounds=2, steps=2, skipped=1)
    errors = []

    def train():
        try:
            for _ in range(8):
                session.step(job.feed)
                session.metrics()
        except Exception as error:
            errors.append(error)

    with model.session(trials=settings, step_timeout_s=_LONGEST_S) as session:
        initial = session.variables()
        threads = [threading.Thread(target=train, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        session.use("two")
        session.try_plans(settings)
        read = session.variables()
        assert joined(threads)
        assert errors == []
        assert session.metrics().steps == 24
        values = session.variables()
    assert set(read) == set(values)
    expected = run_on_one_device(job, initial, steps=24)
    assert relative_error(values, expected.values) < 1e-12


def test_closing_waits_for_the_step_of_another_thread(job):
    gate = threading.Event()

    def slow(x):
        def wait(value):
            gate.wait(_LONGEST_S)
            return value

        waited = tf.numpy_function(wait, [x], x.dtype, stateful=False)
        waited.set_shape(x.shape)
        return perceptron(waited)

    waiting = network("gradient_descent", model=slow)
    results = []

    def refused():
        with pytest.raises(SessionError, match="closed"):
            session.step(waiting.feed)
        results.append("refused")

    session = caramel.ARModel(waiting.context(), 2).session(step_timeout_s=_LONGEST_S)
    threads = started(
        session._turns,
        lambda: results.append(session.step(waiting.feed)),
        refused,
        session.close,
    )
    assert results == []
    gate.set()
    assert joined(threads)
    assert results == [pytest.approx(results[0]), "refused"]
