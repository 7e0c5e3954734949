"""Keras models that are trained by several workers, beside `model.fit` of one process."""

from __future__ import annotations

import keras
import numpy as np

from caramel.models.keras import Trainer

layers = keras.layers

FEATURES, CLASSES = 6, 3
_random = np.random.RandomState(0)
X, Y = _random.randn(31, FEATURES), _random.randint(0, CLASSES, 31)


def hidden():
    return [layers.Dense(8, "relu"), layers.LayerNormalization(), layers.Dense(CLASSES)]


def classifier(optimizer="adam", inner=hidden, kind=keras.Sequential, **options):
    """A compiled model that is the same whenever it is made."""
    keras.utils.set_random_seed(1)
    model = kind([keras.Input((FEATURES,)), *inner()])
    model.compile(
        optimizer() if callable(optimizer) else optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], **options},
    )
    return model


def values(model):
    return [np.asarray(variable.numpy()) for variable in model.variables]


def assert_close(own, others, tolerance=1e-12):
    for value, other in zip(own, others, strict=True):
        scale = max(np.max(np.abs(other), initial=0), 1e-300)
        np.testing.assert_allclose(value, other, rtol=0, atol=tolerance * scale)


def assert_fits_alike(make, workers=2, callbacks=lambda: None, tolerance=1e-12, **options):
    """The same history and variables, those of the optimizer and the metrics too."""
    options = {
        "x": X,
        "y": Y,
        "batch_size": 12,
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        **options,
    }
    alone, model = make(), make()
    expected = alone.fit(callbacks=callbacks(), **options).history
    with Trainer(model, workers, session_options={"trials": None}) as trainer:
        history = trainer.fit(callbacks=callbacks(), **options).history
    assert history.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(history[name], numbers, rtol=tolerance, err_msg=name)
    assert_close(values(model), values(alone), tolerance)
    return model
