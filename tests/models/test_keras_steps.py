"""Keras models with training steps of their own, done by workers: as `model.fit` does them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import GraphError
from caramel.models.keras import Trainer
from tests.support.keras_jobs import (
    CLASSES,
    FEATURES,
    X,
    Y,
    assert_fits_alike,
    classifier,
    compiled,
    layers,
    optimizers,
)

NOISE = np.random.RandomState(5).randn(31, 4)
pytestmark = pytest.mark.usefixtures("float64")


def dense(units, seed, activation=None):
    return layers.Dense(
        units, activation, kernel_initializer=keras.initializers.GlorotUniform(seed)
    )


class Adversaries(keras.Model):
    """A generator and a discriminator, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((4,)), dense(8, 1, "relu"), dense(6, 2)])
        self.discriminator = keras.Sequential([keras.Input((6,)), dense(8, 3, "relu"), dense(1, 4)])
        self.of_fakes, self.of_both = (keras.metrics.Mean(name=name) for name in ("g", "d"))

    def compile(self, generators, discriminators):
        super().compile()
        self.generators, self.discriminators = generators, discriminators
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.of_fakes, self.of_both]

    def train_step(self, data):
        real, noise = data
        number = tf.shape(real)[0]
        fake, true = tf.zeros([number, 1]), tf.ones([number, 1])
        judge, weights = self.discriminator, self.discriminator.trainable_weights
        both = tf.concat([self.generator(noise), real], 0)
        with tf.GradientTape() as tape:
            d_loss = caramel.loss(self.loss_of(tf.concat([fake, true], 0), judge(both)))
        self.discriminators.apply_gradients(
            zip(tape.gradient(d_loss, weights), weights, strict=True)
        )
        weights = self.generator.trainable_weights
        with tf.GradientTape() as tape:
            g_loss = caramel.loss(self.loss_of(true, judge(self.generator(noise))))
        self.generators.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.of_fakes.update_state(g_loss, sample_weight=tf.cast(number, tf.float64))
        self.of_both.update_state(d_loss, sample_weight=tf.cast(number, tf.float64))
        return {metric.name: metric.result() for metric in self.metrics}


def adversaries():
    model = Adversaries()
    model.compile(*(optimizers.SGD(rate, momentum=0.9) for rate in (0.05, 0.1)))
    return model


def test_two_optimizers_and_two_losses():
    assert_fits_alike(adversaries, 3, x=X, y=NOISE, eagerly=False)


class Guided(keras.Model):
    """As Keras's guide has it: what metrics come to, by their names, in a structure of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return self.told(loss)

    def told(self, loss):
        return {metric.name: metric.result() for metric in self.metrics}


class Renamed(Guided):
    """Tells metrics by other names, and what it computes from one and from its rate."""

    def told(self, loss):
        of_loss, others = self.metrics
        return {
            "l": of_loss.result(),
            "a": {"twice": 2 * others.result()["accuracy"] * self.optimizer.learning_rate},
        }


class Mixed(Guided):
    def told(self, loss):
        return {"x": self.metrics[0].result() + loss}


def guided(kind):
    def make():
        keras.utils.set_random_seed(1)
        x = keras.Input((FEATURES,))
        return compiled(kind(x, layers.Dense(CLASSES)(layers.Dense(8, "relu")(x))))

    return make


@pytest.mark.parametrize("kind", [Guided, Renamed])
@pytest.mark.filterwarnings("ignore:The model does not provide all metrics")
def test_what_a_step_computes_from_metrics(kind):
    # A mean of means, so of even batches.
    assert_fits_alike(guided(kind), x=X[:24], y=Y[:24], eagerly="with variables")


def test_what_is_computed_from_metrics_and_from_a_batch_is_refused():
    with (
        Trainer(guided(Mixed)(), 2) as trainer,
        pytest.raises(GraphError, match=r"returns 'x', which is computed from metrics.*apart"),
    ):
        trainer.fit(X, Y, verbose=0)


def test_xla_that_is_asked_for_is_told_of(caplog):
    for asked, told in (("auto", 0), (True, 1)):
        model = classifier(jit_compile=asked)
        with Trainer(model, 2):
            pass
        assert sum("jit_compile=True" in each.message for each in caplog.records) == told


def test_a_step_that_needs_the_number_of_examples_while_it_is_traced():
    class Shifts(keras.layers.Layer):
        def call(self, x):
            return x + tf.ones((x.shape[0], 1), x.dtype)

    model = keras.Sequential([keras.Input((4,), batch_size=12), Shifts(), layers.Dense(1)])
    model.compile("sgd", "mse")
    with Trainer(model, 2) as trainer, pytest.raises(GraphError, match="the number of examples"):
        trainer.fit(np.ones((12, 4)), np.ones(12), batch_size=12, verbose=0)
