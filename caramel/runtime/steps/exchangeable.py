"""Which tensors can be exchanged with the user's program? Not handles of what lives on a worker."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caramel.core import op_types
from caramel.core.errors import FeedError
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.variable_access import handle_of
from caramel.runtime.job import Job
from caramel.runtime.steps.feeds import SplitFeeds

HANDLES = ("resource", "variant")
"""Dtypes of what stands for something on a worker."""

_VARIABLE = "the value of the variable, 'variable.read_value()'"
_TABLE = "what 'table.lookup' or 'table.export' returns"
_ELEMENTS = "its elements, 'array.stack()' or 'array.read(index)'"
_OPTIONAL = "'optional.get_value()' or 'optional.has_value()'"
_ITERATOR = "what 'iterator.get_next()' returns"
_DATASET = "what 'get_next()' of an iterator over the dataset returns"
_QUEUE = "what 'queue.dequeue()' or 'queue.size()' returns"
_RAGGED = "the 'values' and 'row_splits' of the ragged tensor"

# What to fetch in place of a handle, by parts of the kinds of what made it.
_INSTEAD_OF_KIND = (
    (op_types.VARIABLE, _VARIABLE),
    (op_types.TABLE_PREFIX, _TABLE),
    ("HashTable", _TABLE),
    ("TensorArray", _ELEMENTS),
    ("TensorList", _ELEMENTS),
    ("Optional", _OPTIONAL),
    ("Iterator", _ITERATOR),
    ("Dataset", _DATASET),
    ("Queue", _QUEUE),
    ("Ragged", _RAGGED),
)

# The same for the objects that stand for handles in the user's program.
_INSTEAD_OF_OBJECT: tuple[tuple[Any, str], ...] = (
    (tf.TensorArray, _ELEMENTS),
    (tf.experimental.Optional, _OPTIONAL),
    ((tf.data.Iterator, tf.compat.v1.data.Iterator), _ITERATOR),
    (tf.data.Dataset, _DATASET),
    (tf.queue.QueueBase, _QUEUE),
    ((tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable), _TABLE),
)


def check_object(given: Any) -> None:
    """Raise if a fetch is an object that stands for something on a worker.

    Raises:
        FeedError: it is; says what to fetch in its place.
    """
    if isinstance(given, str | tf.Tensor | tf.Operation):
        return
    for kind, instead in _INSTEAD_OF_OBJECT:
        if isinstance(given, kind):
            raise FeedError(
                f"a {type(given).__name__} cannot be fetched: it stands for something that stays "
                f"on its worker; fetch {instead} in its place"
            )


def check_fetched(job: Job, op: str, tensor: TensorRef | None) -> None:
    """Raise unless an op can be run, or the value of its output can be brought to the user.

    Args:
        job: whose graph has them.
        op: what is fetched.
        tensor: its output; None if it is only to be run, or read in its place.

    Raises:
        FeedError: it cannot; says what to fetch in its place.
    """
    if _is_inside(job, op):
        raise FeedError(
            f"'{tensor or op}' cannot be fetched: it is inside a loop or a branch, which may run "
            "many times or not at all; fetch what the loop or the branch returns"
        )
    graph = job.context.op_graph
    if tensor is None:
        return
    dtype = graph.spec(tensor).dtype
    if dtype not in HANDLES:
        return
    kind = graph[handle_of(graph, tensor)].kind
    instead = (text for part, text in _INSTEAD_OF_KIND if part in kind)
    raise FeedError(
        f"'{tensor}' cannot be fetched: it is a {dtype} handle of something that stays on its "
        f"worker ({kind}); fetch {next(instead, 'what is computed from it')} in its place"
    )


def check_own(job: Job, plan: Plan, tensor: TensorRef) -> None:
    """Raise unless each worker has a value of its own of a tensor.

    Args:
        plan: by which the workers compute.

    Raises:
        FeedError: they have none.
    """
    variable = plan.job.variable_of_handle.get(tensor.op)
    is_users = any(each.handle == tensor.op for each in job.context.variables)
    is_split = variable is None and is_users  # by rows, over servers
    is_served = variable is not None and variable.name in plan.job.served
    if is_split or is_served or tensor.op in plan.consequences.serving.absent:
        raise FeedError(
            f"per_worker: '{tensor.op}' has no value of each worker: with parameter servers "
            "there is one for all; fetch it without per_worker"
        )


def check_fed(job: Job, tensor: TensorRef, value: Any) -> None:
    """Raise unless a tensor may be fed, and a value can be fed.

    Raises:
        FeedError: the tensor is a handle, or not feedable, or the value is a tensor of a graph.
    """
    context = job.context
    dtype = context.op_graph.spec(tensor).dtype
    if any(variable.handle == tensor.op for variable in context.variables):
        raise FeedError(
            f"'{tensor}' is a variable and cannot be fed; give it a value by "
            "session.run(variable.assign(...)), or feed a placeholder that is read in its place"
        )
    if dtype in HANDLES:
        raise FeedError(
            f"'{tensor}' cannot be fed: it is a {dtype} handle of something that lives on a worker"
        )
    if _is_inside(job, tensor.op):
        raise FeedError(f"'{tensor}' cannot be fed: it is inside a loop or a branch")
    if not context.is_feedable(tensor):
        raise FeedError(f"'{tensor}' may not be fed, as TensorFlow's graph says")
    if isinstance(value, tf.Tensor | tf.Variable) and hasattr(value, "graph"):
        raise FeedError(
            f"cannot feed '{tensor}' with the tensor '{value.name}' of a graph; feed its value, "
            "which session.run returns"
        )


def _is_inside(job: Job, op: str) -> bool:
    """Whether an op is inside a v1 loop or branch: steps with such fetches would never end."""
    return op in job.context.unfetchable or bool(job.frames.frame.get(op))


def check_one_example(job: Job, feeds: SplitFeeds) -> None:
    """Raise if workers are fed the same single example, and each of them would count it.

    Means over one example are the same on all; sums would be added up.

    Raises:
        FeedError: they would.
    """
    plan = job.plan
    fed = sorted(str(t) for t in feeds.values[0] if t.op in job.state.taken_for_batches)
    if plan.workers == 1 or not fed or job.pipelines.iterators:
        return
    for gradient in plan.job.gradients:
        weight = plan.weight(gradient)
        if weight.examples + len(weight.divisors) != 1:
            raise FeedError(
                f"{', '.join(fed)} are fed scalars, the same for all {plan.workers} workers, and "
                f"the gradient of '{gradient.parameter}' is a sum over the examples, in which each "
                "worker would count; feed batches of at least one example for each"
            )
