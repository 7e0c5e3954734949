"""Keras models whose steps workers cannot do: each with a reason and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from caramel.core.errors import GraphError, NotTensorFlowError, UnsupportedOpError

_log = logging.getLogger(__name__)

_NOT_TRACED = "run_eagerly=True runs each op by itself, from Python; compile the model without it"


def check(model: Any) -> None:
    """Raise unless the model's steps can be done by workers.

    Raises:
        GraphError: it cannot; says what to do.
    """
    if not isinstance(model, keras.Model):
        raise NotTensorFlowError(f"a Trainer takes a keras.Model, not {type(model).__name__}")
    if keras.backend.backend() != "tensorflow":
        raise GraphError(
            f"Keras's backend is {keras.backend.backend()}; Caramel distributes graphs of "
            "TensorFlow: set KERAS_BACKEND=tensorflow before Keras is imported"
        )
    if not model.compiled:
        raise GraphError("the model is not compiled: call model.compile(...) before")
    if model.run_eagerly:
        raise GraphError(_NOT_TRACED)
    is_default = model.distribute_strategy is tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or not is_default:
        raise GraphError(
            "the model was made in the scope of a tf.distribute strategy, which has variables of "
            "its own kind; make it outside"
        )
    for layer in _layers(model):
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            raise UnsupportedOpError(
                f"layer '{layer.name}' is stateful: its state has a row for each example of a "
                "whole batch; use stateful=False"
            )
        if getattr(layer, "synchronized", False):
            raise UnsupportedOpError(
                f"layer '{layer.name}' is a synchronized BatchNormalization; without "
                "synchronized=True each worker normalises its own part of the batch"
            )


def tell_uncompiled(model: Any) -> None:
    """Warn if the user asked for XLA, which compiles nothing in the workers.

    Keras keeps "auto" as what it makes of that: `False` on machines without accelerators, so that
    `True` can be told from it there only.
    """
    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    if model.jit_compile and kinds <= {"CPU"}:
        _log.warning("jit_compile=True: XLA compiles nothing in the workers' steps")


def _layers(layer: Any) -> Iterator[Any]:
    """A layer and all within it, whatever attributes they are."""
    waiting, seen = [layer], {id(layer)}
    while waiting:
        found = waiting.pop()
        yield found
        for value in vars(found).values():
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, keras.layers.Layer) and id(each) not in seen:
                    seen.add(id(each))
                    waiting.append(each)
