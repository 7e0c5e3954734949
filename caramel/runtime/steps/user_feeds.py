"""What a user feeds, by tensor or name: found in the graph, with what is known of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.capture.structures import fed_pairs, kind_of, parts_of, tensors_of
from caramel.core.errors import FeedError
from caramel.core.names import TensorRef
from caramel.runtime.job import Job
from caramel.runtime.steps.exchangeable import check_fed
from caramel.runtime.steps.feeds import Feed, Rows, check_whole, single_feeds, to_array, to_parts


def feeds_of(job: Job, feed_dict: Mapping[Any, Any] | None) -> list[Feed | Rows]:
    """What the user feeds, with what is known of each tensor.

    Raises:
        FeedError: a tensor cannot be fed, or is fed twice, or `feed_dict` is no mapping.
    """
    check_mapping(feed_dict)
    feeds = [
        _composite(job, given, value)
        if kind_of(given) is not None
        else [_one_feed(job, given, value)]
        for given, value in fed_pairs(feed_dict or {})
    ]
    flat = [feed for each in feeds for feed in each]
    tensors = [feed.tensor for each in flat for feed in single_feeds(each)]
    if len(set(tensors)) < len(tensors):
        twice = next(tensor for tensor in tensors if tensors.count(tensor) > 1)
        raise FeedError(f"feed_dict has two values for '{twice}'")
    return flat


def check_mapping(feed_dict: Any) -> None:
    """Raise unless what is fed is a mapping, or nothing.

    Raises:
        FeedError: it is something else.
    """
    if feed_dict is not None and not isinstance(feed_dict, Mapping):
        raise FeedError(
            f"feed_dict maps tensors or names to values; it is a {type(feed_dict).__name__} "
            "(step takes first what is fed, then what is fetched; run the other way round)"
        )


def whole_feeds_of(job: Job, feed_dict: Mapping[Any, Any] | None) -> dict[TensorRef, np.ndarray]:
    """What the user feeds, none of it split.

    Raises:
        FeedError: as `feeds_of`, or a value does not fit its tensor.
    """
    arrays = {}
    for given in feeds_of(job, feed_dict):
        parts = to_parts(given) if isinstance(given, Rows) else (to_array(given),)
        for feed, part in zip(single_feeds(given), parts, strict=True):
            check_whole(feed, part)
            arrays[feed.tensor] = part
    return arrays


def _composite(job: Job, given: Any, value: Any) -> list[Feed | Rows]:
    """What is fed for a sparse or ragged tensor, or for slices, whose rows are no examples."""
    tensors, parts = tensors_of(given), parts_of(given, value)
    feeds = [_one_feed(job, *pair) for pair in zip(tensors, parts, strict=True)]
    kind = kind_of(given)
    if kind == "sparse" or kind == "ragged":
        return [Rows(kind, tuple(feeds))]
    return [dataclasses.replace(feed, whole=True) for feed in feeds]


def _one_feed(job: Job, given: Any, value: Any) -> Feed:
    """A tensor that is fed."""
    context, state = job.context, job.state
    tensor = context.tensor(given, "feed_dict")
    check_fed(job, tensor, value)
    spec = context.op_graph.spec(tensor)
    is_input = context.op_graph[tensor.op].kind.startswith("Placeholder")
    differs = tensor.op in state.worker_dependent
    return Feed(
        tensor,
        spec,
        tf.as_dtype(spec.dtype).as_numpy_dtype,
        value,
        whole=tensor.op in context.job.replicated_feeds,
        undeclared=tensor.op in state.undeclared,
        must_be_scalar=tensor.op in state.scalar_only or not (is_input or differs),
    )
