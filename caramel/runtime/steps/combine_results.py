"""Makes one result of what the workers of a step returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def combine(
    values: Sequence[Any],
    *,
    examples: Sequence[int] | None,
    is_batch: bool,
    parts: Sequence[float] | None = None,
    shared: float = 0.0,
) -> Any:
    """The result of one fetch.

    Args:
        values: what each worker returned.
        examples: how many examples each worker had; None if all had as many.
        is_batch: whether the tensor may have one entry for each example.
        parts: by what floating scalars are multiplied before they are added, in place of the
            worker's part of the examples. A worker whose part is 0 may have got no number.
        shared: what of a floating scalar is the same on every worker, and counts once.

    Returns:
        floating scalars: their mean, weighted by the numbers of examples, or their sum by `parts`.
        Arrays with one entry for each of the worker's examples: concatenated in worker order.
        Anything else: a list with one value for each worker.
    """
    arrays = [np.asarray(value) for value in values]
    if all(array.ndim == 0 and _is_floating(array) for array in arrays):
        return _mean(values, examples, parts, shared)
    if examples is not None and 0 in examples:
        # A worker without an example has repeated that of another one.
        counting = [number for number, count in enumerate(examples) if count]
        values, arrays = [values[n] for n in counting], [arrays[n] for n in counting]
        examples = [examples[n] for n in counting]
    if is_batch and _are_batches(arrays, examples):
        return np.concatenate(arrays)
    return list(values)


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _mean(
    values: Sequence[Any],
    examples: Sequence[int] | None,
    parts: Sequence[float] | None,
    shared: float,
) -> Any:
    if parts is not None:
        weights = np.asarray(parts)
    elif examples is None:
        weights = np.full(len(values), 1 / len(values))
    else:
        weights = np.asarray(examples) / np.sum(examples)
    counting = weights != 0
    own = np.asarray(values, np.float64)[counting] - shared
    total = np.dot(weights[counting], own) + shared
    return np.asarray(values[0]).dtype.type(total)


def _are_batches(arrays: Sequence[np.ndarray], examples: Sequence[int] | None) -> bool:
    if examples is None or any(array.ndim == 0 for array in arrays):
        return False
    lengths = [len(array) for array in arrays]
    return lengths == list(examples) and len({array.shape[1:] for array in arrays}) == 1
