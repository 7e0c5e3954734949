"""What users name when they give a job: its loss, the count behind it, its raw gradients.

Found in the graph, and looked at: a loss is a number, a gradient has the shape of its variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from caramel.capture.graph_names import GraphNames, describe, name_of
from caramel.core.errors import (
    AmbiguousGradientError,
    GraphError,
    NotTensorFlowError,
    UnknownNameError,
)
from caramel.core.facts import RawGradient, Variable
from caramel.core.names import TensorRef, parse_tensor
from caramel.core.train_steps import StepName, told
from caramel.core.util.suggestion import suggestion

Gradients = Iterable[tuple[Any, Any]]


def scalar_loss(names: GraphNames, loss: Any) -> TensorRef:
    """The loss of a step.

    Raises:
        GraphError: it is no floating-point scalar.
    """
    tensor = names.tensor(loss, "loss")
    if not tensor.dtype.is_floating or tensor.shape.rank not in (0, None):
        raise GraphError(
            f"loss '{tensor.name}' must be a floating-point scalar, but is {tensor.dtype.name} of "
            f"shape {tensor.shape}; reduce it over the examples with tf.reduce_mean"
        )
    return parse_tensor(tensor.name)


def scalar_weight(names: GraphNames, weight: Any) -> TensorRef | None:
    """The count by which the user says that a loss is divided; None for none.

    Raises:
        GraphError: it is no number.
    """
    if weight is None:
        return None
    tensor = names.tensor(weight, "loss_weight")
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    if tensor.shape.rank not in (0, None) or not is_number:
        raise GraphError(
            f"loss_weight '{tensor.name}' must be a scalar number, but is {tensor.dtype.name} of "
            f"shape {tensor.shape}; give the count of the worker's own part, such as "
            "tf.reduce_sum(mask)"
        )
    return parse_tensor(tensor.name)


def by_step(given: Any, steps: Iterable[StepName]) -> Mapping[StepName, Any]:
    """What is given for each step, or for all.

    Raises:
        GraphError: something is given for a step that there is not.
    """
    known = list(steps)
    if not isinstance(given, Mapping):
        return dict.fromkeys(known, given)
    if unknown := [name for name in given if name not in known]:
        raise GraphError(f"there is no step {unknown[0]!r:.100}; the steps are {told(known)}")
    return given


def gradients_by_step(
    names: GraphNames, gradients: Any, variables: Sequence[Variable], steps: Iterable[StepName]
) -> dict[StepName, tuple[RawGradient, ...]]:
    """The raw gradients that the user named; those that are given for no step for each of them.

    Raises:
        GraphError: a name, a step or a shape is wrong, or a variable is named twice.
    """
    if isinstance(gradients, Mapping):
        unknown = [name for name in gradients if name not in steps]
        if unknown:
            raise UnknownNameError(
                f"gradients: there is no step {unknown[0]!r}; the steps are {told(steps)}"
            )
        return {
            name: tuple(_given_gradients(names, gradients.get(name, ()), variables))
            for name in steps
        }
    return dict.fromkeys(steps, tuple(_given_gradients(names, gradients, variables)))


def _given_gradients(
    names: GraphNames, gradients: Gradients, variables: Sequence[Variable]
) -> Iterator[RawGradient]:
    """The raw gradients that the user named."""
    known = {variable.name: variable for variable in variables}
    handles = {variable.handle: variable for variable in variables}
    seen: set[str] = set()
    for pair in gradients:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise NotTensorFlowError(
                f"gradients must be pairs (gradient, variable), not {describe(pair)}"
            )
        gradient, variable = pair
        # `compute_gradients` gives None for variables on which the loss does not depend.
        if gradient is None:
            continue
        given = variable.name if isinstance(variable, tf.Variable) else variable
        name = name_of(given, "gradients").partition(":")[0]
        found = known.get(name) or handles.get(name)
        if found is None:
            raise UnknownNameError(
                f"gradients: '{name}' is not a variable of the graph" + suggestion(name, known)
            )
        if found.name in seen:
            raise AmbiguousGradientError(f"gradients: '{found.name}' is given twice")
        seen.add(found.name)
        yield _given_gradient(names, gradient, found)


def _given_gradient(names: GraphNames, gradient: Any, variable: Variable) -> RawGradient:
    """One raw gradient that the user named, of the dtype and shape of its variable."""
    sparse = isinstance(gradient, tf.IndexedSlices)
    values = names.tensor(gradient.values if sparse else gradient, "gradients")
    indices = names.tensor(gradient.indices, "gradients") if sparse else None
    wanted = tf.TensorShape(variable.spec.shape)
    expected = tf.TensorShape([None]).concatenate(wanted[1:]) if sparse else wanted
    if values.dtype.name != variable.spec.dtype or not expected.is_compatible_with(values.shape):
        raise GraphError(
            f"gradients: '{values.name}' ({values.dtype.name} of shape {values.shape}) cannot be "
            f"the gradient of '{variable.name}' ({variable.spec.dtype} of shape {wanted})"
        )
    return RawGradient(
        variable.name,
        parse_tensor(values.name),
        parse_tensor(indices.name) if indices is not None else None,
    )
