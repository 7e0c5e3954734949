"""Does a loss average over the entries of a sparse or ragged value, in place of its rows?

Workers get equally many rows, each of which may have any number of entries. A sum over entries is
that of the whole batch when it is added up, and what goes by way of rows is a mean over these; but
a mean over all entries is not the mean of the workers' means. The graph does not tell which
placeholders belong together, so this is asked when such a value is fed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caramel.core import op_types
from caramel.core.errors import FeedError
from caramel.core.facts import TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.runtime.steps.feeds import Rows, SplitFeeds

_DIVISIONS = frozenset({"Div", "DivNoNan", "RealDiv"})


def check_entries(graph: OpGraph, job: TrainingJob, fed: Sequence[Rows], split: SplitFeeds) -> None:
    """Raise if a step would take the mean of the workers' means over unequal numbers of entries.

    Raises:
        FeedError: it would; names the op, and what to write in its place.
    """
    if job.loss_weight is not None or split.examples is None:
        return
    structure = {each.tensor.op for feed in fed for each in feed.structure}
    for feed in fed:
        for inner in feed.feeds:
            more = 0 if inner is feed.entries else 1  # row splits are one more than the rows
            entries = [len(own[inner.tensor]) - more for own in split.values]
            if inner.tensor.op in structure or are_proportional(entries, split.examples):
                continue
            name = mean_over_entries(graph, job.loss, inner.tensor.op, structure)
            if name is not None:
                raise FeedError(
                    f"'{name}' averages over the entries of what is fed to '{inner.tensor}', and "
                    f"workers get different numbers of entries: {entries}; average over rows in "
                    "its place, or say what the loss is divided by: "
                    "Context(loss_weight=number_of_entries)"
                )


def mean_over_entries(
    graph: OpGraph, loss: TensorRef, flat: str, structure: Collection[str]
) -> str | None:
    """An op that the loss is computed from and that averages over entries.

    Args:
        flat: the placeholder of the entries.
        structure: the placeholders that tell to which rows they belong.
    """
    forward = graph.data_ancestors([loss.op])
    forward -= _computed_from(graph, structure, forward)
    of_entries = _computed_from(graph, [flat], forward)
    shapes = {name for name in of_entries if graph[name].kind in op_types.SHAPE_ONLY}
    counts = of_entries - _computed_from(graph, [flat], forward - shapes)
    for name in graph.ops:
        op = graph[name]
        if name not in of_entries:
            continue
        is_mean = op.kind == "Mean" and not op.outputs[0].shape
        if is_mean or (op.kind in _DIVISIONS and op.inputs[1].op in counts):
            return name
    return None


def are_proportional(entries: Sequence[int], examples: Sequence[int]) -> bool:
    """Whether each worker has as large a part of the entries as of the examples."""
    total, all_examples = sum(entries), sum(examples)
    return all(
        own * all_examples == total * rows for own, rows in zip(entries, examples, strict=True)
    )


def _computed_from(graph: OpGraph, names: Collection[str], within: set[str]) -> set[str]:
    """Some ops and what is computed from them."""
    found = set(names)
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for reader in graph.consumers[name]:
            is_read = any(tensor.op == name for tensor in graph[reader].inputs)
            if is_read and reader in within and reader not in found:
                found.add(reader)
                waiting.append(reader)
    return found
