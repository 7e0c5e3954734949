"""Keras models that are trained by several workers: as `model.fit` trains them."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import (
    GraphError,
    LossScaleError,
    NotTensorFlowError,
    SessionError,
    UnsupportedOpError,
)
from caramel.models.keras import Trainer
from tests.support.keras_jobs import (
    CLASSES,
    FEATURES,
    X,
    Y,
    assert_close,
    assert_fits_alike,
    classifier,
    normalized,
    values,
)

layers, optimizers = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("float64")


# As one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3])
def test_history_and_variables_are_those_of_fit(workers):
    """The last batch has seven examples."""
    make = functools.partial(classifier, inner=normalized)
    assert_fits_alike(make, workers, validation_split=0.1, eagerly="with variables")


def test_averages_of_the_weights():
    optimizer = optimizers.Adam
    assert_fits_alike(
        lambda: classifier(lambda: optimizer(0.01, use_ema=True, ema_momentum=0.9)), epochs=1
    )


def test_fewer_examples_than_workers_at_the_end():
    assert_fits_alike(classifier, 3, x=X[:13], y=Y[:13])


def test_weights_of_classes_and_examples_and_regularizers():
    def inner():
        return [layers.Dense(8, "tanh", kernel_regularizer="l2"), layers.Dense(CLASSES)]

    assert_fits_alike(
        lambda: classifier("sgd", inner, weighted_metrics=["accuracy"]),
        class_weight={0: 1.0, 1: 0.5, 2: 2.0},
    )


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_losses_that_are_no_means_over_the_examples(reduction):
    class Logs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            shown.append(logs["loss"])

    def make():
        model = classifier("sgd")
        loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
        model.compile("sgd", loss)
        return model

    shown = []
    weights = np.random.RandomState(2).rand(len(X))
    assert_fits_alike(make, sample_weight=weights, callbacks=lambda: [Logs()], epochs=1)
    np.testing.assert_allclose(shown[:3], shown[3:], rtol=1e-12)


def test_several_outputs_and_running_metrics():
    def make():
        keras.utils.set_random_seed(1)
        inputs = {name: keras.Input((FEATURES,), name=name) for name in "ab"}
        hidden = layers.Dense(8, "relu")(layers.Concatenate()(list(inputs.values())))
        outputs = {"c": layers.Dense(1, "sigmoid")(hidden), "d": layers.Dense(1)(hidden)}
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
            {"c": "binary_crossentropy", "d": "mse"},
            loss_weights={"c": 1.0, "d": 0.3},
            metrics={"c": [keras.metrics.AUC(name="auc")], "d": [keras.metrics.R2Score(name="r")]},
        )
        return model

    x, y = {"a": X, "b": X[::-1]}, {"c": Y[:, None] % 2, "d": X[:, :1]}
    # Keras's schedules compute in float32.
    assert_fits_alike(make, 3, x=x, y=y, tolerance=1e-7, eagerly="with variables")


def test_convolutions_with_a_group_for_each_channel():
    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((6, 6, 4)),
                layers.Conv2D(8, 3, padding="same", groups=4),
                layers.Conv2D(8, 3, strides=2, groups=8),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES, "softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    assert_fits_alike(make, x=np.random.RandomState(1).randn(24, 6, 6, 4), y=Y[:24], epochs=1)


def test_convolutions_with_other_groups_are_refused():
    model = keras.Sequential(
        [keras.Input((6, 6, 4)), layers.Conv2D(4, 3, groups=2), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    with Trainer(model, 2) as trainer, pytest.raises(UnsupportedOpError, match="groups of 2 of 4"):
        trainer.fit(np.ones((4, 6, 6, 4)), np.ones(4), verbose=0)


def test_data_sets_and_embeddings():
    words = np.random.RandomState(1).randint(0, 9, (24, 4))

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [layers.Embedding(9, 5), layers.GRU(4), layers.Dense(CLASSES, "softmax")]
        )
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    data = tf.data.Dataset.from_tensor_slices((words, Y[:24])).batch(8).repeat()
    assert_fits_alike(make, x=data, y=None, batch_size=None, steps_per_epoch=2)


def test_batches_of_several_lengths():
    """Another graph in the middle of an epoch: what metrics have gathered is kept."""
    random = np.random.RandomState(1)
    batches = [(random.randint(0, 9, (6, n)), Y[6 * n : 6 * n + 6]) for n in (4, 4, 3, 2)]

    def data():
        yield from batches

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layers.Embedding(9, 5), layers.GRU(4), layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        model.compile("sgd", loss, metrics=["accuracy"])
        return model

    specs = (tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64))
    source = tf.data.Dataset.from_generator(data, output_signature=specs)
    assert_fits_alike(make, x=source, y=None, batch_size=None)


class Squared(keras.Model):
    """A model with a step of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = caramel.loss(tf.reduce_mean(tf.square(self(x)[:, 0] - tf.cast(y, x.dtype))))
        gradients = tape.gradient(loss, self.trainable_weights)
        clipped = [tf.clip_by_norm(gradient, 0.5) for gradient in gradients]
        self.optimizer.apply_gradients(zip(clipped, self.trainable_weights, strict=True))
        return {"squared": loss}


def test_a_step_of_ones_own():
    def make():
        keras.utils.set_random_seed(1)
        model = Squared()
        model.compile("adam")
        model.build((None, FEATURES))
        return model

    assert_fits_alike(make, batch_size=31)


# Callbacks --------------------------------------------------------------------------------------


class Meddling(keras.callbacks.Callback):
    """Looks at the model and changes it after each batch."""

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * (1 - 0.01 * float(keras.ops.mean(kernel))))
        self.model.optimizer.learning_rate.assign(0.01 / (1 + batch))


def test_callbacks_see_and_change_the_model():
    assert_fits_alike(classifier, callbacks=lambda: [Meddling()], batch_size=8)


def test_early_stopping_restores_the_best_weights():
    def callbacks():
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, factor=0.3),
        ]

    assert_fits_alike(
        lambda: classifier(lambda: optimizers.SGD(2.0)),
        2,
        callbacks,
        epochs=4,
        validation_split=0.3,
    )


class Ending(keras.callbacks.Callback):
    """Ends training in the middle, once."""

    def __init__(self):
        super().__init__()
        self.is_to_end = True

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and self.is_to_end:
            self.is_to_end = False
            raise RuntimeError("ended")


def test_backups_and_checkpoints_of_batches_are_those_of_fit(tmp_path):
    def trained(fit, directory):
        callbacks = [
            keras.callbacks.BackupAndRestore(directory / "backup"),
            keras.callbacks.ModelCheckpoint(directory / "{epoch}-{batch}.keras", save_freq=2),
            Ending(),
        ]
        model = classifier()
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        with pytest.raises(RuntimeError, match="ended"):
            fit(model, callbacks=callbacks, **options)
        fit(model, callbacks=callbacks, **options)
        return values(model)

    def by_workers(model, **options):
        with Trainer(model, 2, session_options={"trials": None}) as trainer:
            trainer.fit(X, Y, **options)

    expected = trained(lambda model, **o: model.fit(X, Y, **o), tmp_path / "alone")
    assert_close(trained(by_workers, tmp_path / "workers"), expected)
    saved = sorted(file.name for file in (tmp_path / "alone").glob("*.keras"))
    assert len(saved) == 4
    for name in saved:
        here, there = (
            keras.models.load_model(tmp_path / which / name) for which in ("workers", "alone")
        )
        assert_close(here.get_weights(), there.get_weights())


def test_training_goes_on_here_and_there():
    """An epoch by workers, one by `fit`, one by workers again, compiled anew before."""

    def recompiled(model):
        model.compile(optimizers.SGD(0.05), model.loss, metrics=["accuracy"])

    options = {"batch_size": 12, "shuffle": False, "verbose": 0}
    alone, model = classifier(run_eagerly=True), classifier()
    alone.fit(X, Y, epochs=2, **options)
    recompiled(alone)
    alone.run_eagerly = True
    alone.fit(X, Y, **options)
    with Trainer(model, 2, session_options={"trials": None}) as trainer:
        trainer.fit(X, Y, **options)
        model.fit(X, Y, **options)
        recompiled(model)
        trainer.fit(X, Y, **options)
    assert_close(values(model), values(alone))
    assert model.train_function is None or "Trainer" not in repr(model.train_function)


def test_a_loss_that_is_an_attribute_of_the_model_stays_on_it():
    model = classifier("sgd")
    of_class = model.compute_loss

    def halved(*arguments, **options):
        return of_class(*arguments, **options) / 2

    model.compute_loss = halved
    with Trainer(model, 1, session_options={"trials": None}) as trainer:
        trainer.fit(X, Y, batch_size=31, verbose=0)
    assert model.compute_loss is halved


def test_all_sessions_end_though_one_cannot_be_pulled_from(monkeypatch):
    model = classifier()
    trainer = Trainer(model, 1, session_options={"trials": None})
    trainer.evaluate(X, Y, batch_size=31, verbose=0)
    trainer.fit(X, Y, batch_size=31, verbose=0)
    training, testing = trainer.session, trainer._testing.remote
    monkeypatch.setattr(testing, "pull", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.close()
    assert not testing.is_usable
    with pytest.raises(SessionError, match="no session"):
        _ = trainer.session
    with pytest.raises(SessionError, match="closed"):
        training.variables()


# What is wrong ------------------------------------------------------------------------------------


def test_models_that_cannot_be_are_refused():
    with pytest.raises(NotTensorFlowError, match="takes a keras.Model, not str"):
        Trainer("model", 2)
    with pytest.raises(GraphError, match="not compiled"):
        Trainer(keras.Sequential([layers.Dense(1)]), 2)
    with pytest.raises(GraphError, match="run_eagerly=True"):
        Trainer(classifier(run_eagerly=True), 2)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = classifier()
    with pytest.raises(GraphError, match=r"scope of a tf.distribute strategy"):
        Trainer(mirrored, 2)
    with pytest.raises(UnsupportedOpError, match="synchronized BatchNormalization"):
        Trainer(classifier(inner=lambda: [layers.BatchNormalization(synchronized=True)]), 2)


def test_losses_of_different_reductions_are_refused():
    inputs = keras.Input((FEATURES,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in "ab"}
    model = keras.Model(inputs, outputs)
    losses = {"a": keras.losses.MeanSquaredError(reduction="sum"), "b": "mse"}
    model.compile("sgd", losses)
    with Trainer(model, 2) as trainer, pytest.raises(LossScaleError, match="do not scale alike"):
        trainer.fit(X, {"a": X[:, :1], "b": X[:, 1:2]}, verbose=0)


def test_layers_within_layers_are_looked_at():
    class Own(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = [layers.BatchNormalization(synchronized=True, name="hidden")]

        def call(self, x):
            return self.inner[0](x)

    with pytest.raises(UnsupportedOpError, match="layer 'hidden' is a synchronized"):
        Trainer(classifier(inner=lambda: [Own()]), 2)
    model = keras.Sequential(
        [keras.Input((3, 2), batch_size=6), layers.Bidirectional(layers.LSTM(4, stateful=True))]
    )
    model.compile("sgd", "mse")
    with pytest.raises(UnsupportedOpError, match="layer '.*lstm.*' is stateful"):
        Trainer(model, 2)


def test_lists_of_callbacks_are_wanted():
    model = classifier()
    callbacks = keras.callbacks.CallbackList(model=model)
    with Trainer(model, 2) as trainer, pytest.raises(GraphError, match="give callbacks as a list"):
        trainer.fit(X, Y, callbacks=callbacks)


def test_caramel_keras_is_the_module():
    assert caramel.keras.Trainer is Trainer
