"""What goes wrong while workers train a Keras model in processes of their own."""

from __future__ import annotations

import os
import signal

import keras
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CaramelError, WorkerLostError
from caramel.models.keras import Trainer
from tests.support.keras_jobs import X, Y, assert_close, classifier
from tests.support.processes import worker_pid

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.processes]


class Scaled(keras.layers.Layer):
    """A layer that computes in Python."""

    def call(self, x):
        scaled = tf.py_function(lambda value: 2 * value, [x], x.dtype)
        return tf.ensure_shape(scaled, x.shape)


class Killing(keras.callbacks.Callback):
    """Kills a worker when the second epoch begins."""

    def __init__(self, pid):
        super().__init__()
        self.pid = pid

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            os.kill(self.pid, signal.SIGKILL)


def test_a_lost_worker_and_python_in_a_layer():
    """The model keeps what it had after the last epoch that was whole."""
    options = {"batch_size": 12, "shuffle": False, "verbose": 0}
    alone, model = classifier(), classifier()
    alone.fit(X, Y, **options)
    with caramel.Cluster.local(2) as cluster:
        python = classifier(inner=lambda: [Scaled(), keras.layers.Dense(3)])
        with Trainer(python, cluster) as trainer, pytest.raises(CaramelError, match="Python"):
            trainer.fit(X, Y, **options)
        pid = worker_pid(cluster, 1)
        with (
            Trainer(model, cluster, session_options={"trials": None}) as trainer,
            pytest.raises(WorkerLostError, match=rf"lost worker 1 .*pid {pid}"),
        ):
            trainer.fit(X, Y, epochs=3, callbacks=[Killing(pid)], **options)
    assert_close(model.get_weights(), alone.get_weights())
    assert_close(
        [v.numpy() for v in model.optimizer.variables],
        [v.numpy() for v in alone.optimizer.variables],
    )
