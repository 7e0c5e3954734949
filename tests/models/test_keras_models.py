"""Keras models of many kinds, trained by workers: as `model.fit` trains them."""

from __future__ import annotations

import keras
import numpy as np
import pytest

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

pytestmark = pytest.mark.usefixtures("float64")
ONE_HOT = np.eye(CLASSES)[Y]


class Built(keras.Model):
    """Its layers make their variables when it is first called."""

    def __init__(self):
        super().__init__()
        first, second = map(keras.initializers.GlorotUniform, (1, 2))
        self.first = layers.Dense(8, "relu", kernel_initializer=first)
        self.second = layers.Dense(CLASSES, kernel_initializer=second)

    def call(self, x):
        return self.second(self.first(x))


def test_models_that_are_built_by_their_first_batch():
    assert_fits_alike(lambda: compiled(Built()), epochs=1)


def test_tied_weights_regularizers_and_constraints():
    def make():
        keras.utils.set_random_seed(1)
        x = keras.Input((FEATURES,))
        tied = layers.Dense(
            FEATURES,
            "tanh",
            kernel_regularizer="l2",
            activity_regularizer=keras.regularizers.L1(0.01),
            kernel_constraint=keras.constraints.MaxNorm(0.5),
        )
        last = layers.Dense(CLASSES, kernel_constraint="unit_norm", bias_regularizer="l1")
        return compiled(keras.Model(x, last(tied(tied(x)))))

    assert_fits_alike(make, 3, epochs=1)


def test_attention():
    """Without the bias of keys: its gradient is zero but for rounding, which Adam makes large."""

    def make():
        keras.utils.set_random_seed(1)
        x = keras.Input((3, 4))
        attended = layers.MultiHeadAttention(2, 3, use_bias=False)(x, x, use_causal_mask=True)
        hidden = layers.LayerNormalization()(layers.Add()([x, attended]))
        hidden = layers.GlobalAveragePooling1D()(layers.Dense(8, "gelu")(hidden))
        return compiled(keras.Model(x, layers.Dense(CLASSES)(hidden)))

    assert_fits_alike(make, x=np.random.RandomState(1).randn(31, 3, 4), epochs=1)


def test_metrics_of_many_kinds():
    metrics = keras.metrics

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES, "softmax")])
        model.compile(
            "adam",
            "categorical_crossentropy",
            metrics=[
                metrics.F1Score(average="macro"),
                metrics.AUC(multi_label=True, name="auc"),
                metrics.OneHotMeanIoU(CLASSES, name="iou"),
                metrics.PrecisionAtRecall(0.5, name="precision"),
                metrics.R2Score(),
                metrics.RootMeanSquaredError(),
                metrics.CosineSimilarity(),
                metrics.PearsonCorrelation(),
            ],
            weighted_metrics=["accuracy", metrics.AUC(name="w"), metrics.F1Score(name="f")],
        )
        return model

    weights = np.random.RandomState(2).rand(31)
    options = {"y": ONE_HOT, "sample_weight": weights, "validation_split": 0.3}
    assert_fits_alike(make, 3, eagerly="with variables", **options)


OPTIMIZERS = {
    "adadelta": lambda: optimizers.Adadelta(0.5),
    "adafactor": lambda: optimizers.Adafactor(0.05),
    "adagrad": lambda: optimizers.Adagrad(0.05, weight_decay=0.1),
    "adamw": lambda: optimizers.AdamW(0.05, global_clipnorm=0.1),
    "adamax": lambda: optimizers.Adamax(0.05),
    "amsgrad": lambda: optimizers.Adam(0.05, amsgrad=True),
    "ftrl": lambda: optimizers.Ftrl(0.05, l1_regularization_strength=0.01),
    "lamb": lambda: optimizers.Lamb(0.05),
    "lion": lambda: optimizers.Lion(0.05, clipvalue=0.01),
    "muon": lambda: optimizers.Muon(0.05),
    "nadam": lambda: optimizers.Nadam(0.05),
    "nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.05, centered=True, clipnorm=0.1),
    "schedule_free": lambda: optimizers.ScheduleFreeAdamW(0.05),
}

# They update vectors otherwise than matrices, clip several gradients together, or have numbers that
# several updates share. The others do the same to each element, or to each gradient.
WITH_VECTORS = ("adafactor", "muon", "adamw", "nadam", "schedule_free")


def test_a_layer_for_each_optimizer():
    """Those that no other test has; all in one model, which `MultiOptimizer` can."""

    def make():
        by_layer = {f"(.*/)?{name}/.*": optimizer() for name, optimizer in OPTIMIZERS.items()}
        chosen = optimizers.OptimizerMap(optimizers.SGD(0.1), by_layer)

        def inner():
            named = (
                layers.Dense(4, "tanh", use_bias=name in WITH_VECTORS, name=name)
                for name in OPTIMIZERS
            )
            return [*named, layers.Dense(CLASSES)]

        return classifier(lambda: optimizers.MultiOptimizer(chosen), inner)

    model = assert_fits_alike(make, eagerly=False)
    assert all(optimizer.built for optimizer in model.optimizer.optimizers)


def test_a_step_is_traced_once_since_its_variables_are_made_before():
    model, calls = classifier(), []
    step = model.train_step

    def train_step(data):
        calls.append(data)
        return step(data)

    model.train_step = train_step
    with Trainer(model, 2, session_options={"trials": None}) as trainer:
        trainer.fit(X, Y, batch_size=31, verbose=0)
    assert len(calls) == 1
