"""A job whose steps are held up on a worker until a test lets them go on."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np

from tests.support.networks import (
    OPTIMIZERS,
    Network,
    cross_entropy,
    inputs,
    optimized,
    perceptron,
    tf,
    tf1,
)

PATIENCE_S = 60.0


class Bar:
    """Holds up ops of a step that look at it, until it is lifted."""

    def __init__(self):
        self._lifted = threading.Event()
        self._lifted.set()

    def hold_up(self, value, flags):
        """The value, later if a flag is set and the bar is down."""
        if np.any(flags):
            self._lifted.wait(PATIENCE_S)
        return value

    @contextmanager
    def down_until(self, condition):
        """The bar is down until a condition holds; for most of a minute at most."""
        self._lifted.clear()
        thread = threading.Thread(target=self._lift_when, args=(condition,))
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _lift_when(self, condition):
        end_s = time.monotonic() + PATIENCE_S - 10
        while not condition() and time.monotonic() < end_s:
            time.sleep(0.05)
        self._lifted.set()


def barred(bar):
    """A job that is held up in the forward pass on workers with flags; `aside` is no part of it."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(8)
        flags = tf1.placeholder(tf.bool, [None], name="flags")
        held_up = tf.numpy_function(bar.hold_up, [x, flags], x.dtype, stateful=False)
        held_up.set_shape(x.shape)
        loss = cross_entropy(perceptron(held_up), y)
        train_op, raw = optimized(loss, OPTIMIZERS["gradient_descent"])
        aside = tf1.placeholder_with_default(np.zeros(8, bool), [None], name="aside/flags")
        tf.numpy_function(bar.hold_up, [x, aside], x.dtype, stateful=False, name="aside/x")
    return Network(graph, train_op, loss, {**feed, "flags:0": np.zeros(8, bool)}, raw)


def flagged(job, worker):
    """What is fed to hold up one of two workers."""
    return {**job.feed, "flags:0": np.arange(8) // 4 == worker}
