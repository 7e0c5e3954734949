"""After a step that failed or was interrupted, a session is as if nothing had been going on."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import caramel
from caramel.core.errors import SessionError
from tests.support.deferring import EVERY, SOME, deferred, failing
from tests.support.networks import (
    CLASSES,
    FEATURES,
    Network,
    cross_entropy,
    inputs,
    parameter,
    perceptron,
    tf,
    tf1,
)
from tests.support.processes import wait_for

PLAIN = {"planner": "plain", "pattern": "shuffle"}
_LONGEST_S = 60.0


def test_replicas_are_equal_after_a_step_that_failed_on_one_worker():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        hidden = x
        for number in range(8):
            weights = parameter(f"w{number}", [hidden.shape[1], 200])
            hidden = tf.tanh(hidden @ weights)
        loss = cross_entropy(hidden @ parameter("out", [200, CLASSES]), y)
        metric = tf1.placeholder(tf.float64, [None], name="metric")
        tf.reduce_mean(
            tf.debugging.check_numerics(metric + 0 * loss, "bad metric"), name="metric_mean"
        )
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    model = caramel.ARModel(Network(graph, train_op, loss, feed).context(), 2, **PLAIN)
    good, bad = np.zeros(40), np.zeros(40)
    bad[-1] = np.nan  # of the second worker
    with model.session() as session:
        for _ in range(8):
            session.step({**feed, "metric:0": good}, [loss, "metric_mean:0"])
            with pytest.raises(tf.errors.InvalidArgumentError, match="bad metric"):
                session.step({**feed, "metric:0": bad}, [loss, "metric_mean:0"])
            first, second = session.variables(0), session.variables(1)
            for name, value in first.items():
                np.testing.assert_array_equal(second[name], value)


def interrupt():
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


class Gate:
    """Where steps are held up while it is shut."""

    def __init__(self):
        self.is_shut, self.waited_in_vain = False, False
        self.reached, self.opened = threading.Event(), threading.Event()

    def hold_up(self, value):
        if self.is_shut:
            self.reached.set()
            self.waited_in_vain = not self.opened.wait(_LONGEST_S)
        return value

    def open(self):
        self.is_shut = False
        self.opened.set()

    @contextmanager
    def shut_until_interrupted(self, seen):
        """A step of this block is interrupted in its middle, and let through when that is seen."""

        def interrupted():
            self.reached.wait(_LONGEST_S)
            interrupt()
            wait_for(lambda: seen)
            self.open()

        self.is_shut = True
        thread = threading.Thread(target=interrupted)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def slow(gate):
    """A job whose step waits at a gate."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        waited = tf.numpy_function(gate.hold_up, [x], x.dtype, stateful=False)
        waited.set_shape(x.shape)
        loss = cross_entropy(perceptron(waited), y)
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(loss, global_step=step)
    return Network(graph, train_op, loss, feed)


def raising(kind, seen):
    """A signal handler that notes what it has seen, and raises something."""

    def handler(number, frame):
        seen.append(number)
        raise kind

    return handler


@pytest.fixture(name="handled")
def fixture_handled():
    """Puts another handler of Ctrl-C in place, until the test has ended."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, SystemExit])
@pytest.mark.parametrize("defers", [False, True])
def test_a_step_that_is_interrupted_is_done_whole(defers, kind, handled, tmp_path):
    """By Ctrl-C, or by a signal handler that raises something else."""
    gate, seen = Gate(), []
    handled(raising(kind, seen))
    job = slow(gate)
    plain = caramel.ARModel(job.context(), 2, **PLAIN)
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, SOME)) if defers else plain
    with plain.session() as expected, model.session(step_timeout_s=60) as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(2):
            session.step(job.feed), expected.step(job.feed)
        with gate.shut_until_interrupted(seen), pytest.raises(kind):
            session.step(job.feed)
        expected.step(job.feed)
        values = session.variables()
        for name, value in expected.variables().items():
            np.testing.assert_array_equal(values[name], value)
        assert session.step(job.feed) == expected.step(job.feed)


def test_a_signal_handler_that_uses_the_session_is_refused_and_the_session_goes_on(
    handled, tmp_path
):
    gate, seen = Gate(), []
    job = slow(gate)
    model = caramel.ARModel(job.context(), 2, **PLAIN)
    within = pytest.raises(SessionError, match=r"session\.save was called within session\.step")
    with model.session(step_timeout_s=60) as session:
        session.step(job.feed)
        handled(lambda number, _: (seen.append(number), session.save(tmp_path / "within")))
        with gate.shut_until_interrupted(seen), within:
            session.step(job.feed)
        session.step(job.feed)
        assert session.variables()["global_step"] == 3


def test_a_second_interruption_comes_through_at_once_and_ends_the_session(handled):
    gate, seen = Gate(), []

    def interrupted_twice():
        gate.reached.wait(_LONGEST_S)
        interrupt()
        wait_for(lambda: seen)
        time.sleep(0.3)
        interrupt()

    handled(raising(KeyboardInterrupt, seen))
    job = slow(gate)
    with caramel.ARModel(job.context(), 2, **PLAIN).session(step_timeout_s=120) as session:
        session.step(job.feed)
        gate.is_shut = True
        threading.Thread(target=interrupted_twice).start()
        with pytest.raises(KeyboardInterrupt):
            session.step(job.feed)
        assert len(seen) == 2
        gate.open()
        assert not gate.waited_in_vain
        with pytest.raises(SessionError, match="interrupted during a training step"):
            session.step(job.feed)


def test_the_failure_of_a_deferred_update_is_told_although_the_data_have_ended():
    random = np.random.default_rng(0)
    examples = (random.normal(size=(24, FEATURES)), random.integers(0, CLASSES, 24))
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        data = tf.data.Dataset.from_tensor_slices(examples).batch(4)
        iterator = tf1.data.make_initializable_iterator(data)
        x, y = iterator.get_next()
        poison = tf1.placeholder_with_default(tf.constant(0.0, tf.float64), [], name="poison")
        loss = cross_entropy(perceptron(x), y)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        pairs = [
            (tf.debugging.check_numerics(g + poison, "bad gradient"), v)
            for g, v in optimizer.compute_gradients(loss)
        ]
        train_op = optimizer.apply_gradients(pairs)
    context = Network(graph, train_op, loss, {}).context()
    plain = caramel.ARModel(context, 2, **PLAIN)
    model = caramel.ARModel(context, 2, plan=deferred(plain, EVERY))
    with model.session() as session:
        session.run(iterator.initializer)
        for poison_value in (0.0, 0.0, np.nan):
            session.step({"poison:0": poison_value})
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad gradient"):
            session.step()
        with pytest.raises(tf.errors.OutOfRangeError):
            session.step()


def test_a_checkpoint_can_be_restored_although_a_deferred_update_fails(tmp_path):
    job = failing()
    plain = caramel.ARModel(job.context(), 2, **PLAIN)
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, EVERY))
    with model.session() as session:
        path = session.save(tmp_path / "initial")
        before = session.variables()
        session.step(job.feed)
        session.step({**job.feed, "poison:0": np.nan})
        session.restore(path)
        for worker in range(2):
            for name, value in session.variables(worker).items():
                np.testing.assert_array_equal(value, before[name])


def test_moving_averages_are_evaluated_as_a_failed_step_left_them():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(12)
        options = {"trainable": False, "use_resource": True}
        mean = tf1.get_variable("mean", [], tf.float64, tf1.zeros_initializer(), **options)
        update = mean.assign_sub(0.5 * (mean - tf.reduce_mean(x)))
        with tf.control_dependencies([update]):
            loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        tf.identity(mean, name="seen")
    model = caramel.ARModel(Network(graph, train_op, loss, feed).context(), 2, **PLAIN)
    with model.session() as session:
        session.step(feed)
        session.run("seen:0")
        with pytest.raises(tf.errors.OpError):
            session.step({**feed, "y:0": np.full(12, CLASSES + 1)})
        assert session.run("seen:0") == pytest.approx(session.variables()["mean"])
