"""What a step is called with: the dtypes and shapes for which it is lowered.

A signature has for each argument a `tf.TensorSpec`, or a structure of them. Truth values and texts
stand for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.errors import FeedError

Signature = list[Any]


def is_traced(value: Any) -> bool:
    """Whether a value is part of the graph, as it is with `tf.function`: another makes another."""
    return value is None or isinstance(value, bool | str)


def dtype_and_shape(value: Any) -> Any:
    """What tells whether a value fits a step, but for the size of the batch; cheaply."""
    if isinstance(value, tf.Tensor | np.ndarray):
        return value.dtype, tuple(value.shape[1:]), len(value.shape)
    return _spec(value)


def signature_of(arguments: Sequence[Any], before: Sequence[Any] | None = None) -> Signature:
    """The signature of arguments, and of what was given in their place before, if anything was.

    Raises:
        FeedError: a step takes no such arguments.
    """
    return [_merged(*each) for each in zip(before or repeat(None), arguments)]  # noqa: B905


def same(signature: Any, before: Any) -> bool:
    """Whether two signatures, or what may be none, are equal."""
    try:
        tf.nest.assert_same_structure(signature, before)
    except (TypeError, ValueError):
        return False
    return tf.nest.flatten(signature) == tf.nest.flatten(before)


def misfit(
    signature: Signature,
    known: Sequence[Signature],
    name_of: Callable[[Signature], Any],
    can_be_lowered: Callable[[Signature], bool],
) -> str | None:
    """Why a step cannot be lowered, if the reason is the shape of what it is called with.

    It is if the step can be lowered for a shape of before.

    Args:
        signature: for which it cannot be.
        known: for which it, or another step of the same model, was lowered; the newest first.
        name_of: gives a signature in the structure in which its parts have names: a mapping.
        can_be_lowered: tries it.
    """
    given = dict(_named(name_of(signature)))
    for each in known:
        shapes = {name: spec.shape for name, spec in _named(name_of(each))}
        other = {
            name: shapes[name]
            for name, spec in given.items()
            if name in shapes and shapes[name].as_list() != spec.shape.as_list()
        }
        # By identity, as the parts of one signature are told apart.
        instead = {
            id(given[name]): tf.TensorSpec(shape, given[name].dtype)
            for name, shape in other.items()
        }
        if other and can_be_lowered(_replaced(signature, instead)):
            shapes_given = " and ".join(f"'{n}' has shape {_shape(given[n].shape)}" for n in other)
            return (
                f"{shapes_given}, for which the step cannot be done: it was built for shape "
                f"{' and '.join(map(_shape, other.values()))}; give data of that shape"
            )
    return None


def _replaced(signature: Signature, instead: Mapping[int, Any]) -> Signature:
    replaced: Signature = tf.nest.map_structure(lambda own: instead.get(id(own), own), signature)
    return replaced


def _shape(shape: tf.TensorShape) -> str:
    return str(tuple(shape.as_list()))


def _named(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The specs of a structure, each by its name."""
    if isinstance(structure, tf.TensorSpec):
        yield name, structure
    elif isinstance(structure, Mapping):
        for key, part in structure.items():
            yield from _named(part, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(structure, list | tuple):
        for number, part in enumerate(structure):
            yield from _named(part, f"{name}[{number}]")


def _merged(before: Any, argument: Any) -> Any:
    """The spec of an argument, and of what was given in its place before."""
    if before is None:
        return tf.nest.map_structure(_spec, argument)
    return tf.nest.map_structure(lambda spec, value: _wider(spec, _spec(value)), before, argument)


def _spec(value: Any) -> Any:
    """What is known of a value: all but the size of the batch.

    Raises:
        FeedError: it is no dense tensor, and cannot become one.
    """
    if is_traced(value):
        return value
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise FeedError(
            f"a step takes dense tensors only, not a {type(value).__name__}; make it dense in the "
            "dataset, as by .to_tensor(), with a mask"
        )
    if not isinstance(value, tf.Tensor | np.ndarray):
        try:
            value = tf.convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            raise FeedError(
                "a step takes tensors, arrays and numbers, in tuples, lists and dicts, not a "
                f"{type(value).__name__}; a dataset is iterated outside of the step"
            ) from error
    shape = list(value.shape)
    return tf.TensorSpec([None, *shape[1:]] if shape else [], value.dtype)


def _wider(spec: Any, other: Any) -> Any:
    """The spec that both fit, where only the sizes of dimensions differ."""
    if is_traced(spec) or is_traced(other) or spec.dtype != other.dtype:
        return other
    if spec.shape.rank != other.shape.rank:
        return other
    pairs = zip(spec.shape, other.shape, strict=True)
    return tf.TensorSpec([a if a == b else None for a, b in pairs], spec.dtype)
