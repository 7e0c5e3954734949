"""What Keras's `fit` is given, and workers train with: arrays, datasets, generators, structures."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from caramel.core.errors import FeedError, GraphError
from caramel.models.keras import Trainer
from tests.support.keras_jobs import (
    CLASSES,
    FEATURES,
    ONE_PLAN,
    X,
    Y,
    assert_fits_alike,
    classifier,
    compiled,
    layers,
)

pytestmark = pytest.mark.usefixtures("float64")
BATCHES = [slice(begin, begin + 12) for begin in (0, 12, 24)]


class Parts(keras.utils.PyDataset):
    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        return X[BATCHES[index]], Y[BATCHES[index]]


def weighted_parts():
    """For ever."""
    while True:
        for part in BATCHES:
            yield X[part], Y[part], np.arange(len(Y[part])) / 10.0


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lambda: Parts(workers=2), {}),
        (
            weighted_parts,
            {"steps_per_epoch": 4, "validation_data": Parts(), "validation_steps": 1},
        ),
    ],
    ids=["PyDataset", "generator"],
)
def test_data_in_batches(data, options):
    assert_fits_alike(classifier, x=data, y=None, batch_size=None, **options)


@pytest.mark.parametrize("kind", [list, dict])
def test_structures_of_inputs_and_outputs(kind):
    """With losses, metrics and weights of examples for each output; the last batch has one."""

    def structure(**values):
        return values if kind is dict else list(values.values())

    def make():
        keras.utils.set_random_seed(1)
        inputs = {"a": keras.Input((FEATURES,), name="a"), "b": keras.Input((2,), name="b")}
        hidden = layers.Dense(8, "relu")(layers.Concatenate()(list(inputs.values())))
        outputs = {
            "p": layers.Dense(1, name="p")(hidden),
            "q": layers.Dense(CLASSES, "softmax", name="q")(hidden),
        }
        model = keras.Model(structure(**inputs), structure(**outputs))
        model.compile(
            "adam",
            structure(p="mse", q="sparse_categorical_crossentropy"),
            loss_weights=structure(p=1.0, q=0.3),
            metrics=structure(p=["mae"], q=["accuracy"]),
        )
        return model

    def first(number, **values):
        return structure(**{name: value[:number] for name, value in values.items()})

    assert_fits_alike(
        make,
        3,
        x=first(25, a=X, b=X[:, :2]),
        y=first(25, p=X[:, :1], q=Y),
        eagerly="with variables",
        sample_weight=first(25, p=np.arange(31.0), q=np.arange(31.0)[::-1]),
        validation_data=(first(9, a=X, b=X[:, :2]), first(9, p=X[:, :1], q=Y)),
    )


def test_several_steps_in_one_call():
    assert_fits_alike(lambda: classifier(steps_per_execution=3), batch_size=8)


def test_padded_sequences():
    words = np.random.RandomState(1).randint(0, 9, (31, 6))
    words[:, 4:] *= np.random.RandomState(2).rand(31, 2) > 0.5

    def make():
        keras.utils.set_random_seed(1)
        inner = [
            layers.Embedding(9, 5, mask_zero=True),
            layers.Bidirectional(layers.GRU(4)),
            layers.Dense(CLASSES),
        ]
        return compiled(keras.Sequential([keras.Input((None,)), *inner]), "sgd")

    assert_fits_alike(make, x=words, batch_size=16, epochs=1)


def test_the_only_loss_is_that_of_a_layer():
    class Small(layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(keras.ops.square(x)))
            return x

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES), Small()])
        model.compile("sgd")
        return model

    assert_fits_alike(make, y=None)


def test_data_of_another_width_are_refused_by_name_and_those_that_fit_go_on():
    """In whatever the model does with them; also where it learns its width from the first batch."""
    model = compiled(keras.Sequential([layers.Dense(CLASSES)]))
    wide = np.concatenate([X, X[:, :1]], 1)
    with Trainer(model, workers=2, session_options=ONE_PLAN) as trainer:
        trainer.fit(X, Y, verbose=0)
        session, before = trainer.session, model.get_weights()
        for give in (
            lambda: trainer.fit(wide, Y, verbose=0),
            lambda: trainer.evaluate(wide, Y, verbose=0),
            lambda: trainer.predict(wide, verbose=0),
            lambda: trainer.fit(np.stack([X, X], 2), Y, verbose=0),
        ):
            with pytest.raises(FeedError) as info:
                give()
            width = "7" if "7" in str(info.value) else "6, 2"
            assert str(info.value) == (
                f"'x' has shape (None, {width}), for which the step cannot be done: "
                "it was built for shape (None, 6); give data of that shape"
            )
        assert all(map(np.array_equal, model.get_weights(), before))
        trainer.fit(X, Y, verbose=0)
        assert trainer.session is session


def test_a_step_that_cannot_be_traced_is_not_said_to_have_another_width():
    class Model(keras.Model):
        def call(self, x, training=False):
            return x if training else x.numpy()

    model, wide = compiled(Model()), np.concatenate([X, X[:, :1]], 1)
    with Trainer(model, workers=2, session_options=ONE_PLAN) as trainer:
        with pytest.raises(GraphError, match="cannot be traced"):
            trainer.evaluate(X, Y, verbose=0)
        with pytest.raises(GraphError, match="cannot be traced"):
            trainer.evaluate(wide, Y, verbose=0)
