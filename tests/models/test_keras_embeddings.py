"""Embedding layers of Keras models: their gradients travel as rows, and train as in one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.keras_jobs import assert_fits_alike

layers, optimizers = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("float64")

TABLE, WIDTH, WORDS, CLASSES = 40, 5, 4, 3
_random = np.random.RandomState(0)
X, Y = _random.randint(0, 7, (26, 2 * WORDS)), _random.randint(0, CLASSES, 26)  # ids repeat


def two_tables(optimizer):
    """Two tables of one shape, each of which sees half of the words."""
    keras.utils.set_random_seed(1)
    words = keras.Input((2 * WORDS,), dtype="int32")
    looked_up = [
        layers.Embedding(TABLE, WIDTH, name=f"table_{number}")(half)
        for number, half in enumerate(keras.ops.split(words, 2, axis=1))
    ]
    hidden = layers.Flatten()(looked_up[0] * looked_up[1])
    model = keras.Model(words, layers.Dense(CLASSES, "softmax")(hidden))
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    return model


OPTIMIZERS = {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "accumulating": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01)),
}


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)), ids=list(OPTIMIZERS))
def test_tables_train_as_with_fit_and_only_their_rows_travel(number):
    """Also where the optimizer squares each row before it adds up those of equal number."""
    optimizer = list(OPTIMIZERS.values())[number]
    assert_fits_alike(
        lambda: two_tables(optimizer()),
        2 + number % 2,
        look=assert_rows_travel,
        x=X,
        y=Y,
        batch_size=10,
        epochs=1,
    )


def assert_rows_travel(trainer):
    gradients = trainer._remote.model.plan.job.gradients
    are_rows = {each.parameter: each.indices is not None for each in gradients}
    assert are_rows == {name: "table" in name for name in are_rows}
    assert len(are_rows) == 4
