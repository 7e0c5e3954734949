"""Keras models that are trained by several workers, beside `model.fit` of one process."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

from caramel.models.keras import Trainer

layers, optimizers = keras.layers, keras.optimizers

FEATURES, CLASSES = 6, 3
_random = np.random.RandomState(0)
X, Y = _random.randn(31, FEATURES), _random.randint(0, CLASSES, 31)
ONE_PLAN = {"trials": None}  # options of a session whose steps are all done by the plain plan


def hidden():
    """Few layers: a model is traced for as long as it has ops, longer than all steps of a test."""
    return [layers.Dense(8, "relu"), layers.Dense(CLASSES)]


def normalized():
    return [layers.Dense(8, "relu"), layers.LayerNormalization(), layers.Dense(CLASSES)]


def compiled(model, optimizer="adam", **options):
    """The model, compiled as a classifier."""
    model.compile(
        optimizer() if callable(optimizer) else optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], **options},
    )
    return model


def classifier(optimizer="adam", inner=hidden, kind=keras.Sequential, **options):
    """A compiled model that is the same whenever it is made."""
    keras.utils.set_random_seed(1)
    return compiled(kind([keras.Input((FEATURES,)), *inner()]), optimizer, **options)


def values(model):
    return [np.asarray(variable.numpy()) for variable in model.variables]


@functools.cache
def batched(batch_size):
    """X and Y in batches, as a dataset: Keras traces several functions to make one of arrays."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def with_variables(model, x, y):
    """The model, with variables that its first step would make: to trace it then takes half.

    Args:
        model: compiled and built; its optimizer assigns nothing while it is built.
        x, y: some examples.
    """
    model.optimizer.build(model.trainable_variables)
    model.test_step(tf.nest.map_structure(tf.constant, (x, y)))
    model.reset_metrics()
    return model


def assert_close(own, others, tolerance=1e-12):
    """Each within the tolerance of its largest value."""
    for value, other in zip(own, others, strict=True):
        scale = max(np.max(np.abs(other), initial=0), 1e-300)
        np.testing.assert_allclose(value, other, rtol=0, atol=tolerance * scale)


def assert_same_history(history, expected, tolerance=1e-12):
    assert history.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(history[name], numbers, rtol=tolerance, err_msg=name)


def assert_fits_alike(
    make,
    workers=2,
    callbacks=lambda: None,
    tolerance=1e-12,
    trainer=None,
    look=lambda by_workers: None,
    eagerly=True,
    **options,
):
    """The same history and variables, those of the optimizer and the metrics too.

    Args:
        make: makes the compiled model.
        workers: how many train it.
        callbacks: makes those of one `fit`.
        tolerance: of the largest value of each.
        trainer: options of the `Trainer`.
        look: is given the `Trainer` before it is closed.
        eagerly: whether the one process computes op by op: to trace a step takes it longer than
            all these steps do, and it is traced twice, since the first trace makes variables. Not
            for several outputs: Keras's means of their losses then are others than in a trace; nor
            where `fit` traces steps of one's own, random draws, or all kinds of metrics. "with
            variables" if it traces its step, but has made its variables before.
        options: of `fit`; a function makes the value for one `fit`.
    """
    if not options.keys() & {"x", "y", "validation_split", "class_weight", "sample_weight"}:
        data = batched(options.get("batch_size", 12))
        options = {**options, "x": data, "y": None, "batch_size": None}
    options = {
        "x": X,
        "y": Y,
        "batch_size": 12,
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        "callbacks": callbacks,
        **options,
    }

    def given():
        return {name: value() if callable(value) else value for name, value in options.items()}

    alone, model = make(), make()
    if eagerly == "with variables":
        first = tf.nest.map_structure(lambda values: values[:2], (options["x"], options["y"]))
        with_variables(alone, *first)
    else:
        alone.run_eagerly = eagerly
    expected = alone.fit(**given()).history
    with Trainer(model, workers, session_options=ONE_PLAN, **(trainer or {})) as by_workers:
        history = by_workers.fit(**given()).history
        look(by_workers)
    assert_same_history(history, expected, tolerance)
    assert_close(values(model), values(alone), tolerance)
    return model
