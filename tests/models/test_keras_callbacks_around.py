"""What stands around the callbacks of users, without a model and workers."""

from __future__ import annotations

import logging

import keras
import pytest

from caramel.models.keras import callbacks
from caramel.models.keras.callbacks import around


class Remote:
    """Notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def pull(self):
        self.asked.append("pull")

    def push(self):
        self.asked.append("push")


class Checkpoint(keras.callbacks.ModelCheckpoint):
    """Writes no file."""

    def _save_model(self, epoch, batch, logs):
        pass


Checkpoint.__module__ = "keras.of_this_test"


class Looking(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


def epoch(given):
    """What is asked for in the batches of an epoch, and in it."""
    remote = Remote()
    every = keras.callbacks.CallbackList(around(remote, given))
    every.on_epoch_begin(0)
    begun = len(remote.asked)
    for batch in range(2):
        every.on_train_batch_begin(batch)
        every.on_train_batch_end(batch)
    in_batches = remote.asked[begun:]
    every.on_epoch_end(0)
    return in_batches, remote.asked


@pytest.mark.parametrize(
    "given",
    [
        None,
        keras.callbacks.EarlyStopping(),
        [Checkpoint("{epoch}.keras")],
        [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)],
    ],
)
def test_variables_stay_with_the_workers_while_an_epoch_lasts(given):
    in_batches, everything = epoch(given)
    assert in_batches == []
    assert everything == ["push", "pull", "push"]


@pytest.mark.parametrize(
    "given",
    [
        Looking(),
        [Checkpoint("{epoch}.keras", save_freq=2)],
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
    ],
)
def test_they_come_here_after_each_batch_that_is_looked_at(given):
    in_batches, _ = epoch(given)
    assert in_batches == ["push", "pull", "push"] * 2


@pytest.mark.parametrize(("pull_s", "is_told"), [(1.0, True), (0.01, False)])
def test_the_log_tells_what_that_costs_if_it_is_much(monkeypatch, caplog, pull_s, is_told):
    """An epoch of 10 s with two pulls of so many seconds."""
    times = iter([0.0, 1.0, 1.0 + pull_s, 3.0, 3.0 + pull_s, 10.0])
    monkeypatch.setattr(callbacks, "perf_counter", lambda: next(times))
    with caplog.at_level(logging.WARNING, "caramel"):
        epoch(Looking())
    assert ("20 % of this epoch's time" in caplog.text and "Looking" in caplog.text) == is_told
