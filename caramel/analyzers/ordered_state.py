"""What is known of a job whose step reads and writes its variables in one order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from caramel.analyzers.analysis import Analysis, Analyzer
from caramel.analyzers.deferral import Deferrals
from caramel.core.facts import (
    LoopFrames,
    StateAccess,
    StateOrder,
    TrainingJob,
    UnorderedPair,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.planned_job import AggregatedGradient

_log = logging.getLogger(__name__)


def ordered_analysis(
    graph: OpGraph, job: TrainingJob, facts: Sequence[Any], analyzers: Sequence[Analyzer]
) -> Analysis:
    """The facts of a job, with the edges that order what its step reads and writes."""
    analysis = Analysis([graph, job, *facts], analyzers)
    order = analysis.get(StateOrder)
    # All that is found out and planned from here on is of the graph with these edges, as if the
    # user had drawn them.
    ordered = graph.with_edges(order.edges)
    if ordered is graph:
        return analysis
    # Edges change nothing of these.
    same = [analysis.get(StateAccess), analysis.get(LoopFrames), analysis.get(WorkerInputs)]
    return Analysis([*same, ordered, job, *facts, order], analyzers)


def tell_order(graph: OpGraph, order: StateOrder) -> None:
    """Log how each pair is ordered, and warn of those that cannot be."""
    for pair in order.pairs:
        what = f"no edge orders {_described(graph, pair)}"
        if pair.obstacle:
            _log.warning(
                "%s, and none can be added: %s; workers may see different values. Order them "
                "yourself with tf.control_dependencies",
                what,
                pair.obstacle,
            )
        else:
            _log.info("%s: the first runs before the second, on every worker", what)


def tell_lost_overlap(
    graph: OpGraph,
    job: TrainingJob,
    analysis: Analysis,
    gradients: Sequence[AggregatedGradient],
) -> None:
    """Warn of gradients that could be aggregated beside the next step but for the added edges.

    Args:
        graph: the graph without these.
        analysis: what is known of the graph with them.
        gradients: everything that is aggregated.
    """
    order = analysis.get(StateOrder)
    if not order.edges:
        return
    access, frames = analysis.get(StateAccess), analysis.get(LoopFrames)
    before = Deferrals(graph, job, access, frames, gradients)
    after = Deferrals(analysis.get(OpGraph), job, access, frames, gradients)
    for gradient in gradients:
        parameters = frozenset([gradient.parameter])
        reason = after.reason_against(parameters)
        if reason is not None and before.reason_against(parameters) is None:
            pairs = "; ".join(_described(graph, pair) for pair in _near(order, after, parameters))
            _log.warning(
                "the order of %s costs an overlap: %s. Where the order does not matter, read the "
                "variable first and let the write wait for that",
                pairs,
                reason,
            )


def _near(
    order: StateOrder, deferrals: Deferrals, parameters: frozenset[str]
) -> Iterator[UnorderedPair]:
    """The pairs of which an op moves with some gradients; all if there is none."""
    moved = set(deferrals.moves.of(parameters))
    near = [pair for pair in order.pairs if pair.second in moved or pair.first in moved]
    yield from near or order.pairs


def _described(graph: OpGraph, pair: UnorderedPair) -> str:
    first, second = (f"'{name}' ({graph[name].kind})" for name in (pair.first, pair.second))
    return f"{first} and {second}, which touch variable '{pair.variable}'"
