"""Splits what is fed to a step over the workers, and refuses what does not fit before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caramel.capture import rows
from caramel.core.errors import FeedError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.util.sizes import counted


@dataclass(frozen=True, slots=True)
class Feed:
    """One fed tensor: what is known of it, and whether every worker gets all of it."""

    tensor: TensorRef
    spec: TensorSpec
    dtype: Any  # the NumPy dtype, which also exists for bfloat16
    value: Any
    whole: bool = False
    must_be_scalar: bool = False
    undeclared: bool = False  # whether it would be a batch if its shape were declared


@dataclass(frozen=True, slots=True)
class Rows:
    """Tensors that are fed together and have rows together: the parts of a composite value."""

    kind: rows.Kind
    feeds: tuple[Feed, ...]

    @property
    def entries(self) -> Feed:
        """The one with the entries."""
        return self.feeds[1 if self.kind == "sparse" else -1]

    @property
    def structure(self) -> tuple[Feed, ...]:
        """Those that tell to which row an entry belongs; of ragged values the outermost splits."""
        return (self.feeds[0], self.feeds[2]) if self.kind == "sparse" else self.feeds[:1]


@dataclass(frozen=True, slots=True)
class SplitFeeds:
    """The values of each worker, and how many examples each has (None if no batch was fed)."""

    values: tuple[Mapping[TensorRef, np.ndarray], ...]
    examples: tuple[int, ...] | None

    @property
    def repeats(self) -> bool:
        """Whether workers without an example have got that of another one."""
        return self.examples is not None and 0 in self.examples


def split_feeds(feeds: Sequence[Feed | Rows], workers: int, *, repeats: bool = False) -> SplitFeeds:
    """Split batches on their first dimension, as evenly as possible; the first get one more.

    Of sparse and ragged values that is the first dimension of what they stand for.

    Args:
        repeats: whether workers for which there is no example get the first one.

    Raises:
        FeedError: a value does not fit its tensor, batches have different sizes, or there are
            fewer examples than workers.
    """
    given = [_Given.of(feed) for feed in feeds]
    split = [each for each in given if each.is_split]
    for each in given:
        for feed, part in zip(each.feeds, each.parts, strict=True):
            _check_rank(feed, part)
            if feed.spec.shape is not None and len(feed.spec.shape) != part.ndim:
                check_whole(feed, part)  # else its length counts as a number of examples
    sizes = {each.feeds[0].tensor: each.examples for each in split}
    examples = _examples_per_worker(sizes, workers, repeats=repeats)
    bounds = [0, *itertools.accumulate(examples or ())]
    values: list[dict[TensorRef, np.ndarray]] = [{} for _ in range(workers)]
    for each in given:
        for worker, own in enumerate(values):
            parts = each.parts
            if each.is_split:
                begin, end = bounds[worker], bounds[worker + 1]
                parts = each.take(begin, end) if begin < end else each.take(0, 1)
            for feed, part, whole in zip(each.feeds, parts, each.parts, strict=True):
                _check_shape(feed, part.shape, whole.shape, workers)
                own[feed.tensor] = part
    return SplitFeeds(tuple(values), examples)


@dataclass(frozen=True, slots=True)
class _Given:
    """A feed with its arrays: one, or those of a composite."""

    kind: rows.Kind | None
    feeds: tuple[Feed, ...]
    parts: rows.Parts

    @classmethod
    def of(cls, feed: Feed | Rows) -> _Given:
        if isinstance(feed, Feed):
            return cls(None, (feed,), (to_array(feed),))
        return cls(feed.kind, feed.feeds, to_parts(feed))

    @property
    def is_split(self) -> bool:
        entries = self.feeds[0] if self.kind is None else Rows(self.kind, self.feeds).entries
        return bool(self.parts[0].ndim) and not entries.whole

    @property
    def examples(self) -> int:
        return len(self.parts[0]) if self.kind is None else rows.number(self.kind, self.parts)

    def take(self, begin: int, end: int) -> rows.Parts:
        """The examples from `begin` up to `end`."""
        if self.kind is None:
            return (self.parts[0][begin:end],)
        return rows.take(self.kind, self.parts, begin, end)


def single_feeds(feed: Feed | Rows) -> tuple[Feed, ...]:
    """The tensors that are fed."""
    return (feed,) if isinstance(feed, Feed) else feed.feeds


def to_parts(feed: Rows) -> rows.Parts:
    """The fed arrays of a composite value.

    Raises:
        FeedError: one cannot be converted, or they do not fit each other.
    """
    parts = tuple(to_array(each) for each in feed.feeds)
    try:
        rows.check(feed.kind, parts)
    except FeedError as error:
        raise FeedError(f"'{feed.feeds[0].tensor}': {error}") from None
    return parts


def to_array(feed: Feed) -> np.ndarray:
    """The fed value as an array of the tensor's dtype.

    Raises:
        FeedError: it cannot be converted, or not without loss of kind (float to integer, say), or
            an integer is out of the dtype's range.
    """
    try:
        if feed.spec.dtype == "string":
            return _strings(feed.value)
        array = np.asarray(feed.value)
        if array.dtype.kind in "OUS" or not _castable(array, feed.dtype):
            raise TypeError(_what(feed.value, array))
        with np.errstate(over="ignore"):  # what is too large is infinite, as in TensorFlow
            return array.astype(feed.dtype, copy=False)
    except Exception as error:  # whatever an object does when it is asked for its values
        raise FeedError(
            f"cannot feed '{feed.tensor}': it takes {feed.spec.dtype}, got {error}"
        ) from error


def check_whole(feed: Feed, array: np.ndarray) -> None:
    """Raise unless a value that is not split fits its tensor's static shape.

    Raises:
        FeedError: it does not.
    """
    _check_shape(feed, array.shape, array.shape, 1)


def _strings(value: Any) -> np.ndarray:
    """An array of strings or bytes; NumPy's own strings would lose zeros at the end."""
    array = np.asarray(value, dtype=object)
    for each in array.flat:
        if not isinstance(each, str | bytes):
            raise TypeError(f"a {type(each).__name__}")
    return array


def _what(value: Any, array: np.ndarray) -> str:
    """What is wrong with a value that cannot be converted."""
    if value is None:
        return "None"
    if array.dtype.kind == "O":
        kinds = sorted({type(each).__name__ for each in array.flat})
        return f"values of type {', '.join(kinds)}"
    if array.dtype.kind in "US":
        return "strings"
    if array.dtype.kind in "iu":
        return f"{array.dtype.name} values from {array.min()} to {array.max()}"
    return f"{array.dtype.name} values"


def _castable(array: np.ndarray, dtype: Any) -> bool:
    if array.size == 0 or array.dtype == dtype:
        return True
    wanted = np.dtype(dtype)
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        if np.can_cast(array.dtype, wanted):
            return True
        limits = np.iinfo(wanted)
        return bool(array.min() >= limits.min and array.max() <= limits.max)
    if array.dtype.kind == "V" or wanted.kind == "V":  # bfloat16 and its like
        return array.dtype.kind in "Vfiu"
    return bool(np.can_cast(array.dtype, dtype, casting="same_kind"))


def _check_rank(feed: Feed, array: np.ndarray) -> None:
    if feed.must_be_scalar and array.ndim and not feed.whole:
        shape = ", None" * (array.ndim - 1)
        advice = (
            f"declare its shape, as tf.compat.v1.placeholder(dtype, [None{shape}]), if it is a "
            "batch that is to be split; "
        )
        raise FeedError(
            f"'{feed.tensor}' has no declared shape and reaches the update of a parameter, so it "
            f"must be a scalar, the same for all workers, but got shape {array.shape}; "
            f"{advice if feed.undeclared else ''}pass replicated_feeds=['{feed.tensor.op}'] to "
            "the Context if every worker is to get all of it"
        )


def _examples_per_worker(
    sizes: Mapping[TensorRef, int], workers: int, *, repeats: bool
) -> tuple[int, ...] | None:
    if not sizes:
        return None
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{tensor}': {size}" for tensor, size in sizes.items())
        raise FeedError(
            f"fed batches have different numbers of examples ({listed}); a feed that is not a "
            "batch belongs into the Context's replicated_feeds"
        )
    total = next(iter(sizes.values()))
    if total < workers and not (repeats and total):
        raise FeedError(
            f"a batch of {counted(total, 'example')} cannot be split over {workers} workers; feed "
            "at least one example for each"
        )
    return tuple(total // workers + (worker < total % workers) for worker in range(workers))


def _check_shape(feed: Feed, part: tuple[int, ...], fed: tuple[int, ...], workers: int) -> None:
    """Raise unless a worker's part fits the tensor's static shape."""
    wanted = feed.spec.shape
    if wanted is None:
        return
    fits = len(wanted) == len(part) and all(
        size in (None, given) for size, given in zip(wanted, part, strict=True)
    )
    if fits:
        return
    shape = "(" + ", ".join("?" if size is None else str(size) for size in wanted) + ")"
    message = f"cannot feed '{feed.tensor}' of shape {shape} with a value of shape {fed}"
    if part != fed and wanted[0] is not None:
        message += (
            f", of which each of the {workers} workers gets {part}; its batch is fixed, so feed "
            f"{wanted[0] * workers} examples"
        )
    raise FeedError(message)
