"""Keras models that several workers evaluate and run: as `model.evaluate` and `predict` do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from caramel.core.errors import GraphError
from caramel.models.keras import Trainer
from tests.support.keras_jobs import FEATURES, ONE_PLAN, X, Y, assert_close, classifier, values

layers = keras.layers
pytestmark = pytest.mark.usefixtures("float64")


def two_headed():
    """Two inputs, two outputs by name, metrics of all kinds."""
    keras.utils.set_random_seed(1)
    inputs = {name: keras.Input((FEATURES,), name=name) for name in "ab"}
    hidden = layers.Dense(8, "relu")(layers.Concatenate()(list(inputs.values())))
    hidden = layers.BatchNormalization()(layers.Dropout(0.5)(hidden))
    outputs = {"c": layers.Dense(1, "sigmoid")(hidden), "d": layers.Dense(1)(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"c": "binary_crossentropy", "d": "mse"},
        metrics={"c": [keras.metrics.AUC(name="auc")], "d": ["mae", keras.metrics.R2Score()]},
    )
    return model


DATA = {"a": X, "b": X[::-1]}
LABELS = {"c": Y[:, None] % 2, "d": X[:, :1]}


def assert_same_logs(logs, expected):
    assert logs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-12, err_msg=name)


def steps_of(trainer):
    """What evaluates and what predicts."""
    return trainer._testing, trainer._predicting


def test_evaluation_and_prediction_before_and_behind_training():
    """Batches of 15, 15 and 1 examples; weights change between the calls."""
    model = two_headed()
    labelled, data = (
        tf.data.Dataset.from_tensor_slices(each).batch(15) for each in ((DATA, LABELS), (DATA,))
    )
    own_function = model.test_function
    with Trainer(model, 3, session_options={"trials": None}) as trainer:

        def assert_alike():
            expected = model.evaluate(labelled, verbose=0, return_dict=True)
            model.test_function = own_function
            for _ in range(2):  # metrics begin anew
                logs = trainer.evaluate(labelled, verbose=0, return_dict=True)
                assert_same_logs(logs, expected)
            own, alone = (each.predict(data, verbose=0) for each in (trainer, model))
            assert own.keys() == alone.keys()
            for name, value in alone.items():
                np.testing.assert_allclose(own[name], value, rtol=1e-12)

        assert_alike()
        trainer.fit(DATA, LABELS, batch_size=16, verbose=0)
        assert_alike()
        model.set_weights([0.5 * value for value in model.get_weights()])
        assert_alike()
        steps = [each.remote.session.metrics().steps for each in steps_of(trainer)]
    assert steps == [3 * 2 * 3, 3 * 3]  # of three batches each
    assert model.test_function is own_function


def test_weights_and_several_steps_in_one_call():
    model = classifier("sgd", weighted_metrics=["accuracy"], steps_per_execution=2)
    weights = np.random.RandomState(1).rand(len(X))
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(7)
    with Trainer(model, 2) as trainer:
        logs = trainer.evaluate(data, verbose=0, return_dict=True)
        predicted = trainer.predict(data.map(lambda x, y, w: x), verbose=0)
    assert_same_logs(logs, model.evaluate(data, verbose=0, return_dict=True))
    np.testing.assert_allclose(predicted, model.predict(X, verbose=0), rtol=1e-12)


class Evaluating(keras.callbacks.Callback):
    """Changes the model at the end of an epoch, and evaluates it."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[0].kernel.assign(0.9 * self.model.layers[0].kernel)
        self.logs.append(self.model.evaluate(X[:9], Y[:9], verbose=0, return_dict=True))


def test_validation_and_callbacks_that_evaluate_are_done_by_workers():
    options = {
        "batch_size": 12,
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        "validation_split": 0.3,
        "validation_batch_size": 4,
    }
    alone, model = classifier(run_eagerly=True), classifier()
    expected, evaluating = Evaluating(), Evaluating()
    history = alone.fit(X, Y, callbacks=[expected], **options).history
    with Trainer(model, 2, session_options={"trials": None}) as trainer:
        own = trainer.fit(X, Y, callbacks=[evaluating], **options).history
        steps = trainer._testing.remote.session.metrics().steps
    assert_same_logs(own, history)
    for logs, others in zip(evaluating.logs, expected.logs, strict=True):
        assert_same_logs(logs, others)
    assert_close(values(model), values(alone))
    assert steps == 2 * (3 + 1)


class Counting(keras.Model):
    """A model with a test step of its own, which writes more than metrics."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.tests = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, y = data
        self.tests.assign_add(1)
        return {"error": tf.reduce_mean(tf.abs(self(x)[:, 0] - tf.cast(y, x.dtype)))}


def counting(**options):
    keras.utils.set_random_seed(1)
    model = Counting()
    model.compile("sgd", "mse", **options)
    model(X)
    return model


def test_a_test_step_of_ones_own():
    alone, model = counting(), counting()
    with Trainer(model, 2) as trainer:
        assert_same_logs(
            trainer.evaluate(X, Y, batch_size=31, verbose=0, return_dict=True),
            alone.evaluate(X, Y, batch_size=31, verbose=0, return_dict=True),
        )
    assert model.tests.numpy() == alone.tests.numpy() == 1


def test_what_a_test_step_has_read_does_not_come_back_after_more_training():
    """The last epoch is not validated."""
    options = {"epochs": 3, "validation_data": (X, Y), "validation_freq": 2, "verbose": 0}
    alone, model = counting(run_eagerly=True), counting()
    alone.fit(X, Y, shuffle=False, **options)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(X, Y, shuffle=False, **options)
        assert_close(values(model), values(alone))


def test_variables_that_cannot_be_brought_here_come_with_the_next_call(monkeypatch):
    options = {"validation_data": (X, Y), "verbose": 0, "shuffle": False}
    alone, model = counting(run_eagerly=True), counting()
    alone.fit(X, Y, epochs=2, **options)
    with Trainer(model, 2, session_options=ONE_PLAN) as trainer:
        trainer.fit(X, Y, **options)
        before = model.get_weights()
        testing = trainer._testing.remote.session
        with monkeypatch.context() as patched:
            patched.setattr(testing, "variables", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                trainer.fit(X, Y, **options)
            assert (model.train_function, model.test_function) == (None, None)
            # What training has made is here.
            assert_close([model.dense.kernel.numpy()], [alone.dense.kernel.numpy()])
            assert model.tests.numpy() == 1
            with pytest.raises(ZeroDivisionError):
                trainer.predict(X, verbose=0)
        predicted = trainer.predict(X, verbose=0)
        assert_close([predicted], [alone.predict(X, verbose=0)])
        assert model.tests.numpy() == alone.tests.numpy() == 2
        assert not np.array_equal(model.dense.kernel.numpy(), before[0])
        trainer.fit(X, Y, **options)
        alone.fit(X, Y, **options)
        assert_close(values(model), values(alone))


class Summing(keras.Sequential):
    def predict_step(self, data):
        return tf.reduce_sum(super().predict_step(data))


def test_predictions_of_whole_batches_are_refused():
    model = classifier(kind=Summing)
    with Trainer(model, 2) as trainer, pytest.raises(GraphError, match="number for a whole batch"):
        trainer.predict(X, verbose=0)


def test_one_batch_with_fewer_examples_than_workers():
    model = classifier()
    with Trainer(model, 3) as trainer:
        predicted = trainer.predict(X[:2], verbose=0)
    np.testing.assert_allclose(predicted, model.predict(X[:2], verbose=0), rtol=1e-12)
