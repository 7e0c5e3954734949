"""Keras models that compute in bfloat16 and float16: as one process, to the rounding of these."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from caramel.models.keras import Trainer
from tests.support.keras_jobs import (
    CLASSES,
    FEATURES,
    ONE_PLAN,
    X,
    Y,
    assert_close,
    assert_same_history,
    classifier,
    compiled,
    layers,
    optimizers,
    values,
)

ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
OPTIONS = {"shuffle": False, "verbose": 0}


def scaled(optimizer):
    return optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0, dynamic_growth_steps=3)


def in_half(dtype, optimizer):
    """With parameters in float32 if the dtype is a mixed one."""
    keras.utils.set_random_seed(1)
    inner = [layers.Dense(8, "relu", dtype=dtype), layers.Dense(CLASSES, dtype=dtype)]
    return compiled(
        keras.Sequential([keras.Input((FEATURES,), dtype="float32"), *inner]), optimizer
    )


def trained_weights(model):
    return [weights.numpy().astype(np.float64) for weights in model.trainable_variables]


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_a_step_and_many(dtype):
    def optimizer():
        rate = optimizers.SGD(0.1)
        return scaled(rate) if dtype == "mixed_float16" else rate

    alone, model = in_half(dtype, optimizer), in_half(dtype, optimizer)
    before = trained_weights(alone)
    alone.run_eagerly = True
    alone.fit(X, Y, batch_size=31, **OPTIONS)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(X, Y, batch_size=31, **OPTIONS)
        rounding = ROUNDING[dtype.removeprefix("mixed_")]
        changes = [
            [new - old for new, old in zip(trained_weights(each), before, strict=True)]
            for each in (model, alone)
        ]
        if dtype.startswith("mixed"):
            assert_close(*changes, tolerance=2 * rounding)
        else:  # the weights themselves are rounded, after a change that is
            assert_close(trained_weights(model), trained_weights(alone), tolerance=2 * rounding)
        history = trainer.fit(X, Y, batch_size=12, epochs=4, **OPTIONS).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.usefixtures("float64")
def test_an_overflow_on_one_worker_makes_all_skip_the_step():
    """In the third batch of four; three good ones double the scale, a bad one halves it."""
    x = X.copy()
    x[23] = np.inf  # the last example of that batch: not the first worker's

    def make():
        return classifier(lambda: scaled(optimizers.SGD(0.1, momentum=0.9)))

    alone, model = make(), make()
    alone.run_eagerly = True
    options = {"batch_size": 8, "epochs": 2, **OPTIONS}
    expected = alone.fit(x, Y, **options).history
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        assert_same_history(trainer.fit(x, Y, **options).history, expected)
        of_workers = [trainer.session.variables(worker=worker) for worker in range(2)]
    assert_close(values(model), values(alone))
    kept_alike = [v for v in of_workers[0] if "kernel" in v or "bias" in v or "optimizer" in v]
    assert len(kept_alike) > 8
    for name in kept_alike:
        np.testing.assert_array_equal(of_workers[0][name], of_workers[1][name])
    assert model.optimizer.dynamic_scale.numpy() == 512  # 1024, 512, 1024, 512
    assert model.optimizer.iterations.numpy() == 6
