"""Keras's callbacks, and training that goes on elsewhere: as with `model.fit`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from caramel.models.keras import Trainer
from tests.support.deferring import EVERY, deferred
from tests.support.keras_jobs import (
    ONE_PLAN,
    X,
    Y,
    assert_close,
    assert_fits_alike,
    assert_same_history,
    batched,
    classifier,
    compiled,
    optimizers,
    values,
)

callbacks = keras.callbacks
OPTIONS = {"x": batched(12), "shuffle": False, "verbose": 0}
pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("on_epoch", [True, False])
def test_averaged_weights_are_swapped_in_and_out(on_epoch):
    """For validation, or from the end of an epoch on until the next begins."""
    assert_fits_alike(
        lambda: classifier(lambda: optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8)),
        callbacks=lambda: [callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)],
        validation_split=0.2,
    )


class Changing(keras.callbacks.Callback):
    """Changes weights before training, and at both ends of an epoch."""

    def on_train_begin(self, logs=None):
        self.model.layers[0].kernel.assign(2 * self.model.layers[0].kernel)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.model.set_weights([0.5 * weights for weights in self.model.get_weights()])

    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[-1].bias.assign_add([0.1, 0.2, 0.3])


def test_weights_and_rates_that_change_between_epochs():
    def halved(epoch, rate):
        return rate * (0.5 if epoch else 1)

    assert_fits_alike(
        classifier, callbacks=lambda: [Changing(), callbacks.LearningRateScheduler(halved)]
    )


def test_tensorboard_gets_histograms_of_the_weights(tmp_path):
    assert_fits_alike(
        classifier, callbacks=lambda: [callbacks.TensorBoard(tmp_path, histogram_freq=1)]
    )
    assert list(tmp_path.rglob("events*"))


class Stopping(keras.callbacks.Callback):
    """Notes losses, and stops in the middle of an epoch."""

    def __init__(self, losses):
        super().__init__()
        self._losses = losses

    def on_train_batch_end(self, batch, logs=None):
        self._losses.append(logs["loss"])
        self.model.stop_training = batch == 1


def test_training_that_is_stopped_in_an_epoch():
    losses = []
    assert_fits_alike(classifier, callbacks=lambda: [Stopping(losses)])
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-12)


def assert_trained_alike(make, train):
    """By workers and in this process; `train` calls a `fit` several times."""
    alone, model = make(), make()
    alone.run_eagerly = True
    expected = train(alone, alone.fit)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        histories = train(model, trainer.fit)
    for history, other in zip(histories, expected, strict=True):
        assert_same_history(history, other)
    assert_close(values(model), values(alone))


def test_weights_that_are_set_between_two_calls_of_fit():
    def train(model, fit):
        first = fit(**OPTIONS).history
        model.set_weights([0.9 * weights for weights in model.get_weights()])
        model.optimizer.learning_rate = 0.1
        return first, fit(initial_epoch=1, epochs=2, **OPTIONS).history

    assert_trained_alike(classifier, train)


def test_a_saved_model_goes_on_with_other_workers_and_with_none(tmp_path):
    """Two epochs by two workers, one by three, one by `fit`: as four of `fit`."""
    alone, model = classifier(run_eagerly=True), classifier()
    alone.fit(epochs=4, **OPTIONS)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(epochs=2, **OPTIONS)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with Trainer(model, 3, session_options=ONE_PLAN) as trainer:
        trainer.fit(**OPTIONS)
    model.fit(**OPTIONS)
    assert_close(values(model), values(alone))


def test_layers_that_are_frozen_and_then_trained_by_another_optimizer():
    def train(model, fit):
        first = fit(**OPTIONS).history
        model.layers[0].trainable = True
        compiled(model, "rmsprop", metrics=["accuracy", "sparse_categorical_crossentropy"])
        return first, fit(**OPTIONS).history

    def frozen():
        model = classifier()
        model.layers[0].trainable = False
        return compiled(model)

    assert_trained_alike(frozen, train)


def test_all_gradients_may_be_deferred():
    """What a step leaves for the next one is done before callbacks look and change weights."""

    alone, model = classifier(run_eagerly=True), classifier()
    options = {**OPTIONS, "x": X, "y": Y, "batch_size": 12, "validation_split": 0.2, "epochs": 2}
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(**OPTIONS)
        plan = deferred(trainer._remote.model, EVERY)
    with Trainer(model, 2, session_options=ONE_PLAN, plan=plan) as trainer:
        history = trainer.fit(callbacks=[Changing()], **options).history
    alone.fit(**OPTIONS)
    assert_same_history(history, alone.fit(callbacks=[Changing()], **options).history)
    assert_close(values(model), values(alone))
