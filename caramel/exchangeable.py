"""Which tensors can be exchanged with the user's program? Not handles of what lives on a worker."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caramel import kinds
from caramel.access import handle_of
from caramel.context import Context
from caramel.errors import FeedError
from caramel.graph import OpGraph
from caramel.names import TensorRef

_HANDLES = ("resource", "variant")

# What to fetch in place of a handle, by parts of the kinds of what made it.
_INSTEAD = (
    (kinds.VARIABLE, "the value of the variable, 'variable.read_value()'"),
    (kinds.TABLE_PREFIX, "what 'table.lookup' or 'table.export' returns"),
    ("HashTable", "what 'table.lookup' or 'table.export' returns"),
    ("TensorArray", "its elements, 'array.stack()' or 'array.read(index)'"),
    ("TensorList", "its elements, 'array.stack()' or 'array.read(index)'"),
    ("Optional", "'optional.get_value()' or 'optional.has_value()'"),
    ("IteratorGetNextAsOptional", "'optional.get_value()' or 'optional.has_value()'"),
    ("Iterator", "what 'iterator.get_next()' returns"),
    ("Dataset", "what 'get_next()' of an iterator over the dataset returns"),
    ("Queue", "what 'queue.dequeue()' or 'queue.size()' returns"),
    ("Ragged", "the 'values' and 'row_splits' of the ragged tensor"),
)


def check_fetched(graph: OpGraph, tensor: TensorRef) -> None:
    """Raise unless the value of a tensor can be brought to the user's program.

    Raises:
        FeedError: it cannot; says what to fetch in its place.
    """
    dtype = graph.spec(tensor).dtype
    if dtype not in _HANDLES:
        return
    kind = graph[handle_of(graph, tensor)].kind
    instead = (text for part, text in _INSTEAD if part in kind)
    raise FeedError(
        f"'{tensor}' cannot be fetched: it is a {dtype} handle of something that stays on its "
        f"worker ({kind}); fetch {next(instead, 'what is computed from it')} in its place"
    )


def check_fed(context: Context, tensor: TensorRef, value: Any) -> None:
    """Raise unless a tensor may be fed, and a value can be fed.

    Raises:
        FeedError: the tensor is a handle, or not feedable, or the value is a tensor of a graph.
    """
    handle = tensor.op
    if any(variable.handle == handle for variable in context.job.variables):
        raise FeedError(
            f"'{tensor}' is a variable and cannot be fed; give it a value by "
            "session.run(variable.assign(...)), or feed a placeholder that is read in its place"
        )
    dtype = context.op_graph.spec(tensor).dtype
    if dtype in _HANDLES:
        raise FeedError(
            f"'{tensor}' cannot be fed: it is a {dtype} handle of something that lives on a worker"
        )
    if not context.is_feedable(tensor):
        raise FeedError(f"'{tensor}' may not be fed, as TensorFlow's graph says")
    if isinstance(value, tf.Tensor | tf.Variable) and hasattr(value, "graph"):
        raise FeedError(
            f"cannot feed '{tensor}' with the tensor '{value.name}' of a graph; feed its value, "
            "which session.run returns"
        )
