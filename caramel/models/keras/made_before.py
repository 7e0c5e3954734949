"""Variables that the first step of a model would make are made before it is traced.

TensorFlow traces a step that makes variables a second time, and to trace that of a large model
takes many seconds. What is made here is what Keras would make, so only steps that Keras itself
wrote are known well enough.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import keras
import tensorflow as tf

# Others may assign to variables while they are built, which `fit`, where they are built by the
# step, does not run (ScheduleFreeAdamW).
_USUAL = frozenset(
    getattr(keras.optimizers, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
)
_ASKED = ("compute_loss", "compute_metrics")  # make variables when they are first asked

_log = logging.getLogger(__name__)


def make_variables(model: Any, name: Literal["train_step", "test_step"], data: Any) -> None:
    """Let a model make the variables of its optimizer, its losses and its metrics.

    Args:
        model: compiled. Nothing is done if its step is not Keras's own, or a layer is not built.
        name: of the step.
        data: what the step is given: specs of tensors, in its structure.
    """
    if not model.built or any(
        getattr(type(model), own) is not getattr(keras.Model, own) for own in (name, *_ASKED)
    ):
        return
    if name == "train_step" and type(model.optimizer) in _USUAL and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)

    traced: list[bool] = []

    def tell(y: Any, predicted: Any, weights: Any) -> None:
        if not traced:  # what makes variables, TensorFlow traces a second time
            model.compute_loss(y=y, y_pred=predicted, sample_weight=weights)
            model.compute_metrics(None, y, predicted, weights)
            traced.append(True)

    try:
        output = model.compute_output_spec(tf.nest.map_structure(_keras_tensor, x))
        predicted = tf.nest.map_structure(_spec, output)
        tf.function(tell).get_concrete_function(y, predicted, weights)
    except Exception as error:  # then the step itself makes them, or says what is wrong
        _log.debug("the step makes the variables of metrics, which takes longer: %s", error)


def _keras_tensor(spec: tf.TensorSpec) -> Any:
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
