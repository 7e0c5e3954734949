"""Sparse and ragged values as the tensors they consist of: taken apart by rows, and put together.

A sparse value is its ``indices`` (one row for each entry), ``values`` and ``dense_shape``; a ragged
one its ``row_splits``, the outermost first, and then its flat values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from caramel.core.errors import FeedError

Kind = Literal["sparse", "ragged"]
Parts = tuple[np.ndarray, ...]


def check(kind: Kind, parts: Parts) -> None:
    """Raise unless arrays are the parts of one value.

    Raises:
        FeedError: they are not; says why.
    """
    reason = _sparse_mistake(*parts) if kind == "sparse" else _ragged_mistake(parts)
    if reason:
        raise FeedError(f"a {kind} value is fed whose {reason}")


def number(kind: Kind, parts: Parts) -> int:
    """How many rows a value has."""
    return int(parts[2][0]) if kind == "sparse" else len(parts[0]) - 1


def take(kind: Kind, parts: Parts, begin: int, end: int) -> Parts:
    """The rows from `begin` up to `end`, which are numbered from 0 then."""
    if kind == "ragged":
        flat, splits = parts[-1], []
        for split in parts[:-1]:
            # The splits of each level say which rows of the next one these are.
            own = split[begin : end + 1]
            begin, end = int(own[0]), int(own[-1])
            splits.append(own - own[0])
        return *splits, flat[begin:end]
    indices, values, dense_shape = parts
    own = (indices[:, 0] >= begin) & (indices[:, 0] < end)
    first = np.zeros(indices.shape[1], indices.dtype)
    first[0] = begin
    shape = dense_shape.copy()
    shape[0] = end - begin
    return indices[own] - first, values[own], shape


def join(kind: Kind, several: Sequence[Parts]) -> Parts:
    """One value with the rows of several, one after the other."""
    if kind == "ragged":
        levels = zip(*(parts[:-1] for parts in several), strict=True)
        splits = [_joined_splits(each) for each in levels]
        return *splits, np.concatenate([parts[-1] for parts in several])
    before, indices = 0, []
    for own, _, shape in several:
        first = np.zeros(own.shape[1], own.dtype)
        first[0] = before
        indices.append(own + first)
        before += int(shape[0])
    # Parts may differ in the other dimensions; the largest has room for all.
    shape = np.max([shape for _, _, shape in several], axis=0)
    shape[0] = before
    return np.concatenate(indices), np.concatenate([values for _, values, _ in several]), shape


def _joined_splits(several: Sequence[np.ndarray]) -> np.ndarray:
    joined = [several[0]]
    for splits in several[1:]:
        # Row splits go on where those before ended; the first one, which is 0, is left out.
        joined.append(splits[1:] + joined[-1][-1])
    return np.concatenate(joined)


def _sparse_mistake(indices: np.ndarray, values: np.ndarray, dense_shape: np.ndarray) -> str | None:
    if indices.ndim != 2 or dense_shape.shape != indices.shape[1:] or not dense_shape.size:
        return (
            f"indices have shape {indices.shape} and whose dense_shape has shape "
            f"{dense_shape.shape}; they must be (entries, dimensions) and (dimensions,)"
        )
    if values.shape != indices.shape[:1]:
        return f"values have shape {values.shape}, for {len(indices)} rows of indices"
    if np.any(indices < 0) or np.any(indices >= dense_shape):
        return f"indices lie outside of its dense_shape {dense_shape.tolist()}"
    return None


def _ragged_mistake(parts: Parts) -> str | None:
    ends = [*(len(splits) - 1 for splits in parts[1:-1]), len(parts[-1])]
    for splits, end in zip(parts[:-1], ends, strict=True):
        is_whole = splits.ndim == 1 and splits.size and splits[0] == 0 and splits[-1] == end
        if not is_whole or np.any(np.diff(splits) < 0):
            return f"row_splits {splits.tolist()} do not go from 0 up to the {end} rows within"
    return None
