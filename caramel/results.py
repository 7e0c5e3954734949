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
    add_up: bool = False,
) -> Any:
    """The result of one fetch.

    Args:
        values: what each worker returned.
        examples: how many examples each worker had; None if all had as many.
        is_batch: whether the tensor may have one entry for each example.
        add_up: sum floating scalars instead of averaging them.

    Returns:
        floating scalars: their mean, weighted by the numbers of examples. Arrays with one entry
        for each of the worker's examples: concatenated in worker order. Anything else: a list with
        one value for each worker.
    """
    arrays = [np.asarray(value) for value in values]
    if all(array.ndim == 0 and _is_floating(array) for array in arrays):
        return _mean(values, examples, add_up)
    if is_batch and _are_batches(arrays, examples):
        return np.concatenate(arrays)
    return list(values)


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _mean(values: Sequence[Any], examples: Sequence[int] | None, add_up: bool) -> Any:
    if add_up:
        weights = np.ones(len(values))
    elif examples is None:
        weights = np.full(len(values), 1 / len(values))
    else:
        weights = np.asarray(examples) / np.sum(examples)
    total = np.dot(weights, np.asarray(values, np.float64))
    return np.asarray(values[0]).dtype.type(total)


def _are_batches(arrays: Sequence[np.ndarray], examples: Sequence[int] | None) -> bool:
    if examples is None or any(array.ndim == 0 for array in arrays):
        return False
    lengths = [len(array) for array in arrays]
    return lengths == list(examples) and len({array.shape[1:] for array in arrays}) == 1
