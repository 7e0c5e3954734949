"""What users feed and fetch, as `tf.compat.v1.Session.run` takes it: structures and composites.

Lists, tuples, named tuples, mappings and classes of attrs are structures. A `SparseTensor`, a
`RaggedTensor` and `IndexedSlices` are composites: a value of several tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from caramel.capture import rows
from caramel.core.errors import FeedError

tf1 = tf.compat.v1

Kind = rows.Kind | Literal["slices"]

COMPOSITES: Mapping[type, Kind] = {
    tf.SparseTensor: "sparse",
    tf.RaggedTensor: "ragged",
    tf.IndexedSlices: "slices",
}


class IndexedSlicesValue(NamedTuple):
    """The value of `tf.IndexedSlices`, with the fields of TensorFlow's own, which is not public."""

    values: Any
    indices: Any
    dense_shape: Any = None


def kind_of(given: Any) -> Kind | None:
    """Whether something is "sparse", "ragged" or "slices"; None if it is no composite."""
    return next((kind for cls, kind in COMPOSITES.items() if isinstance(given, cls)), None)


def tensors_of(given: Any) -> list[Any]:
    """The tensors that a composite consists of; of anything else the thing itself."""
    kind = kind_of(given)
    if kind == "sparse":
        return [given.indices, given.values, given.dense_shape]
    if kind == "ragged":
        return [*given.nested_row_splits, given.flat_values]
    if kind == "slices":
        return [t for t in (given.values, given.indices, given.dense_shape) if t is not None]
    return [given]


def value_of(kind: Kind, parts: Sequence[Any]) -> Any:
    """The value of a composite, from those of its tensors."""
    if kind == "sparse":
        return tf1.SparseTensorValue(*parts)
    if kind == "slices":
        return IndexedSlicesValue(*parts)
    value = parts[-1]
    for splits in reversed(parts[:-1]):
        value = tf1.ragged.RaggedTensorValue(value, splits)
    return value


def value_of_workers(
    kind: Kind, parts: Sequence[Sequence[Any]], examples: Sequence[int] | None
) -> Any:
    """The rows of all workers if each row is an example; else a list with each worker's value.

    Args:
        parts: for each tensor of the composite its value on each worker.
        examples: the workers' numbers of examples; None if the rows are none, or it is unknown.
    """
    own = [tuple(map(np.asarray, of_worker)) for of_worker in zip(*parts, strict=True)]
    # Rows of slices are about rows of a variable, not about examples.
    if kind == "slices" or examples is None:
        return [value_of(kind, each) for each in own]
    if [rows.number(kind, each) for each in own] == list(examples):
        return value_of(kind, rows.join(kind, own))
    return [value_of(kind, each) for each in own]


# Feeds ------------------------------------------------------------------------------------------


def fed_pairs(feed_dict: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Keys and values, with structures of keys taken apart.

    Raises:
        FeedError: a value has not the structure of its key.
    """
    for key, value in feed_dict.items():
        yield from _pairs(key, value)


def single_pairs(feed_dict: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Tensors and their values, with structures of keys and composites taken apart.

    Raises:
        FeedError: a value does not fit its key.
    """
    for key, value in fed_pairs(feed_dict):
        if kind_of(key) is None:
            yield key, value
        else:
            yield from zip(tensors_of(key), parts_of(key, value), strict=True)


def _pairs(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(key, tuple):  # what else can be a key has no structure
        yield key, value
        return
    if isinstance(value, Mapping) or not hasattr(value, "__len__") or len(value) != len(key):
        raise FeedError(
            f"feed_dict: {_names(key)} are fed together, but their value is no sequence of "
            f"{len(key)} values"
        )
    for own_key, own_value in zip(key, value, strict=True):
        yield from _pairs(own_key, own_value)


def _names(key: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(getattr(each, "name", each)) for each in key) + ")"


def parts_of(given: Any, value: Any) -> list[Any]:
    """What is fed to each tensor of a composite.

    Raises:
        FeedError: the value is none for such a composite.
    """
    kind = kind_of(given)
    parts: Sequence[Any] = ()
    if kind == "ragged" and hasattr(value, "nested_row_splits"):
        parts = [*value.nested_row_splits, value.flat_values]
    elif kind == "slices" and isinstance(value, IndexedSlicesValue | tf.IndexedSlices):
        parts = [
            part for part in (value.values, value.indices, value.dense_shape) if part is not None
        ]
    elif kind == "sparse" and isinstance(value, tf.SparseTensor):
        parts = [value.indices, value.values, value.dense_shape]
    # `SparseTensorValue` is a named tuple.
    elif kind != "ragged" and isinstance(value, tuple | list):
        parts = value
    wanted = tensors_of(given)
    if len(parts) != len(wanted):
        raise FeedError(
            f"cannot feed the composite '{wanted[0].name}' belongs to with a "
            f"{type(value).__name__}; feed a {_VALUES[str(kind)]}"
        )
    return list(parts)


_VALUES = {
    "sparse": "tf.compat.v1.SparseTensorValue",
    "ragged": "tf.compat.v1.ragged.RaggedTensorValue of as many dimensions",
    "slices": "tuple of values, indices and, if it has one, dense_shape",
}

# Fetches ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PerWorker:
    """A fetch of which each worker's own value is wanted: what `per_worker` makes."""

    fetch: Any


def per_worker(fetches: Any) -> Any:
    """Marks what is to come back of each worker, apart from that of the others.

    It is for `fetches` of `Session.step` and `Session.run`, and for what a step of `distribute`
    returns.

    Each result is a tuple with one value for each worker, in their order: what the worker has
    computed of its own part of the batch, before anything is averaged, put together or aggregated.
    (Of a gradient it is the worker's own.) In `Session.run`, which splits nothing that is fed, it
    is what the worker computes of all of it, by what it has for itself: its moving averages, say.
    A worker without an example of its own (`Session.step(repeat=True)`) has computed the first one.
    A model that is spread over several devices (`PlacedModel`) has one replica, so its tuples have
    one value.

    Args:
        fetches: a tensor or its name, or a structure of them.
    """
    fetched = Fetched.of(fetches)
    return fetched.pack([PerWorker(leaf) for leaf in fetched.leaves])


@dataclass(frozen=True, slots=True)
class Fetched:
    """A structure of what is fetched, and its leaves in order.

    Attributes:
        structure: as it was given.
        leaves: what is in it.
        apart: for each of them whether every worker's own value is wanted.
    """

    structure: Any
    leaves: tuple[Any, ...]
    apart: tuple[bool, ...]

    @classmethod
    def of(cls, structure: Any) -> Fetched:
        """The structure with its leaves."""
        leaves = tuple(_leaves(structure))
        apart = tuple(isinstance(leaf, PerWorker) for leaf in leaves)
        own = (leaf.fetch if isinstance(leaf, PerWorker) else leaf for leaf in leaves)
        return cls(structure, tuple(own), apart)

    def by_leaf(self, values: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Each leaf with the values of its tensors, from those of all tensors."""
        position = 0
        for leaf in self.leaves:
            number = len(tensors_of(leaf))
            yield leaf, values[position : position + number]
            position += number

    def pack(self, results: Sequence[Any]) -> Any:
        """The same structure with the results of its leaves."""
        remaining = iter(results)
        packed = _packed(self.structure, remaining)
        assert next(remaining, None) is None, "there is a result for each leaf"
        return packed


def _leaves(structure: Any) -> Iterator[Any]:
    if kind_of(structure) is not None:
        yield structure
    elif isinstance(structure, list | tuple):
        for each in structure:
            yield from _leaves(each)
    elif isinstance(structure, Mapping):
        for each in structure.values():
            yield from _leaves(each)
    elif _is_attrs(structure):
        for name in _attributes(structure):
            yield from _leaves(getattr(structure, name))
    else:
        yield structure


def _packed(structure: Any, results: Iterator[Any]) -> Any:
    cls = type(structure)
    if kind_of(structure) is not None:
        return next(results)
    if isinstance(structure, list | tuple):
        packed = [_packed(each, results) for each in structure]
        # Named tuples take their fields one by one.
        return cls(*packed) if hasattr(structure, "_fields") else cls(packed)
    if isinstance(structure, Mapping):
        pairs = [(key, _packed(each, results)) for key, each in structure.items()]
        if isinstance(structure, defaultdict):
            return cls(structure.default_factory, pairs)
        return cls(pairs)
    if _is_attrs(structure):
        return cls(*[_packed(getattr(structure, name), results) for name in _attributes(structure)])
    return next(results)


def _is_attrs(structure: Any) -> bool:
    # Without importing attrs, which need not be installed.
    return hasattr(type(structure), "__attrs_attrs__")


def _attributes(structure: Any) -> list[str]:
    return [attribute.name for attribute in type(structure).__attrs_attrs__]
