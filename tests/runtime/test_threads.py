"""Threads share a session: its methods take turns, and what is called within another is refused."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import caramel
from caramel.core.errors import SessionError
from caramel.runtime.turns import Turns, in_turn, last_turn
from tests.support.networks import network, perceptron, relative_error, run_on_one_device, tf

_LONGEST_S = 60.0


class Shared:
    """Something whose methods take turns."""

    def __init__(self):
        self._turns = Turns()
        self.done = []
        self.inside = 0

    @in_turn
    def work(self, name, seconds=0.0, then=None):
        self.inside += 1
        assert self.inside == 1
        time.sleep(seconds)
        if then is not None:
            then()
        self.done.append(name)
        self.inside -= 1

    @last_turn
    def close(self):
        self.done.append("close")


def started(*functions):
    """A thread for each function, each of which waits before the next one begins."""
    threads = [threading.Thread(target=each, daemon=True) for each in functions]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    return threads


def joined(threads):
    for thread in threads:
        thread.join(_LONGEST_S)
    return not any(thread.is_alive() for thread in threads)


def test_who_comes_first_has_the_first_turn():
    shared = Shared()
    names = list("abcd")
    threads = started(*(lambda name=name: shared.work(name, 0.3) for name in names))
    assert joined(threads)
    assert shared.done == names


def test_a_thread_that_comes_again_waits_behind_the_others():
    shared = Shared()

    def twice(name):
        for _ in range(2):
            shared.work(name, 0.2)

    assert joined(started(lambda: twice("a"), lambda: twice("b")))
    assert shared.done == ["a", "b", "a", "b"]


def test_the_end_comes_before_those_that_wait():
    shared = Shared()
    ends = [lambda: shared.work("a", 0.4), lambda: shared.work("b"), shared.close]
    assert joined(started(*ends))
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
    threads = started(lambda: shared.work("a", 0.6))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        shared.work("b")
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
        threads = started(train, train, train)
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
        lambda: results.append(session.step(waiting.feed)),
        refused,
        session.close,
    )
    assert results == []
    gate.set()
    assert joined(threads)
    assert results == [pytest.approx(results[0]), "refused"]
