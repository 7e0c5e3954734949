"""What workers of a Keras model draw, and what each finds in its own part of a batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.models.keras import Trainer
from tests.support.keras_jobs import (
    CLASSES,
    ONE_PLAN,
    X,
    Y,
    assert_close,
    assert_fits_alike,
    classifier,
    compiled,
    layers,
    optimizers,
    values,
)

EXAMPLES, UNITS = 12, 64
OPTIONS = {"batch_size": EXAMPLES, "shuffle": False, "verbose": 0}
pytestmark = pytest.mark.usefixtures("float64")


def test_one_worker_draws_as_fit_does():
    def inner():
        x = keras.Input((3, 4))
        attended = layers.MultiHeadAttention(2, 3, dropout=0.3, use_bias=False)(x, x)
        hidden = layers.GaussianNoise(0.1)(layers.Flatten()(layers.Dropout(0.5)(attended)))
        return x, layers.Dense(CLASSES)(hidden)

    def make():
        keras.utils.set_random_seed(1)
        return compiled(keras.Model(*inner()), "sgd")

    assert_fits_alike(make, 1, x=np.random.RandomState(1).randn(31, 3, 4), eagerly="with variables")


class Masks(keras.Model):
    """Tells what its dropout has left of ones."""

    def __init__(self):
        super().__init__()
        self.dropout, self.dense = layers.Dropout(0.5, seed=3), layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.dropout(x, training=training))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            left = self.dropout(data, training=True)
            loss = caramel.loss(tf.reduce_mean(tf.square(self.dense(left))))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"mask": left}


class Noting(keras.callbacks.Callback):
    """Notes masks, and changes something else after each batch."""

    def __init__(self):
        super().__init__()
        self.masks = []

    def on_train_batch_end(self, batch, logs=None):
        self.masks.append(np.array(logs["mask"]))
        self.model.dense.kernel.assign(0.5 * self.model.dense.kernel)


def test_no_two_examples_get_one_mask_on_several_workers():
    """Two steps by three workers, one by two, one by `fit`; worker 0 draws what `fit` would."""
    ones, noting, alone = np.ones((2 * EXAMPLES, UNITS)), Noting(), Noting()

    def make():
        model = Masks()
        model.compile("sgd")
        model.build((None, UNITS))
        return model

    model = make()
    with Trainer(model, 3, session_options=ONE_PLAN) as trainer:
        trainer.fit(ones, callbacks=[noting], **OPTIONS)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(ones[:EXAMPLES], callbacks=[noting], **OPTIONS)
    model.fit(ones[:EXAMPLES], callbacks=[noting], **OPTIONS)
    masks = np.concatenate(noting.masks) > 0
    assert len(masks) == 4 * EXAMPLES == len({mask.tobytes() for mask in masks})
    assert abs(np.mean(masks) - 0.5) < 0.05
    make().fit(np.concatenate([ones, ones]), callbacks=[alone], **OPTIONS)
    for got, expected, share in zip(noting.masks, alone.masks, (3, 3, 2, 1), strict=True):
        own = EXAMPLES // share
        np.testing.assert_array_equal(got[:own], expected[:own])


def test_each_worker_normalises_its_own_part():
    """As a loop by hand over the parts, with the mean of the gradients and moving averages."""

    def make():
        return classifier(
            lambda: optimizers.SGD(0.1, momentum=0.9),
            lambda: [layers.Dense(8), layers.BatchNormalization(momentum=0.5), layers.Dense(3)],
        )

    model, other = make(), make()
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(X[:24], Y[:24], epochs=2, **OPTIONS)
    for first in (0, 12, 0, 12):
        before = [v.numpy() for v in other.non_trainable_variables]
        gradients, averages = [], []
        for begin in (first, first + 6):
            for variable, value in zip(other.non_trainable_variables, before, strict=True):
                variable.assign(value)
            part = slice(begin, begin + 6)
            with tf.GradientTape() as tape:
                loss = other.compute_loss(y=Y[part], y_pred=other(X[part], training=True))
            gradients.append(tape.gradient(loss, [v.value for v in other.trainable_variables]))
            averages.append([v.numpy() for v in other.non_trainable_variables])
        mean = [(a + b) / 2 for a, b in zip(*gradients, strict=True)]
        other.optimizer.apply(mean, other.trainable_variables)
        for variable, own in zip(
            other.non_trainable_variables, zip(*averages, strict=True), strict=True
        ):
            variable.assign(np.mean(own, 0))
    assert_close(values(model)[:8], values(other)[:8])
    np.testing.assert_allclose(model.predict(X, verbose=0), other.predict(X, verbose=0))
