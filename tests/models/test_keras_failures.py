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
from caramel.runtime.recovery.members import Members
from tests.support.keras_jobs import X, Y, assert_close, assert_same_history, classifier
from tests.support.processes import worker_pid

pytestmark = [pytest.mark.usefixtures("float64", "forked_workers"), pytest.mark.processes]


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


class Disturbing(keras.callbacks.Callback):
    """Does something before some batches, by epoch and batch."""

    def __init__(self, do):
        super().__init__()
        self.do, self.epoch = do, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.do.get((self.epoch, batch), lambda: None)()


def test_a_lost_worker_and_python_in_a_layer():
    """The model keeps what it had after the last epoch that was whole."""
    options = {"batch_size": 12, "shuffle": False, "verbose": 0}
    alone, model = classifier(run_eagerly=True), classifier()
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


def test_what_metrics_have_gathered_is_right_after_losses(monkeypatch):
    """Workers are lost in steps with fewer examples than workers, and in others; at first they are
    started again, then not."""
    x, y = X[:26], Y[:26]
    options = {"batch_size": 12, "shuffle": False, "verbose": 0, "epochs": 4}
    alone, model = classifier(run_eagerly=True), classifier()
    expected = alone.fit(x, y, **options)
    with caramel.Cluster.local(3) as cluster:

        def kill(worker):
            return lambda: os.kill(worker_pid(cluster, worker), signal.SIGKILL)

        def leave_out():
            monkeypatch.setattr(Members, "_start_again", lambda *_: None)
            kill(0)()

        recover = caramel.Recovery(snapshot_every=2, wait_s=0.5)
        do = {(0, 2): kill(1), (1, 1): kill(2), (2, 2): leave_out, (3, 1): kill(1)}
        session_options = {"trials": None, "recover": recover}
        with Trainer(model, cluster, session_options=session_options) as trainer:
            history = trainer.fit(x, y, callbacks=[Disturbing(do)], **options)
            records = trainer.session.metrics().recoveries
    assert [record.workers for record in records] == [3, 3, 2, 1]
    assert_same_history(history.history, expected.history)
    assert_close(model.get_weights(), alone.get_weights())


def test_fit_is_told_to_end_and_goes_on_in_another_program(tmp_path):
    options = {"batch_size": 5, "shuffle": False, "verbose": 0}
    alone, first, second = classifier(run_eagerly=True), classifier(), classifier()
    alone.fit(X, Y, **options)
    of_session = {"trials": None, "resume": tmp_path, "save_on_sigterm": tmp_path}
    told = Disturbing({(0, 3): lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with (
        Trainer(first, 2, session_options=of_session) as trainer,
        pytest.raises(SystemExit) as ended,
    ):
        trainer.fit(X, Y, callbacks=[told], **options)
    assert ended.value.code == 143
    with Trainer(second, 2, session_options=of_session) as trainer:
        assert trainer.steps_done == 3
        trainer.fit(X[15:], Y[15:], **options)
        assert trainer.steps_done == 7
    for own, others in zip(second.variables, alone.variables, strict=True):
        if "rate" not in own.path:
            assert_close([own.numpy()], [others.numpy()])
    assert_close(
        [v.numpy() for v in second.optimizer.variables],
        [v.numpy() for v in alone.optimizer.variables],
    )
