"""Which parameters are split over parameter servers, and the job in which they are."""

from __future__ import annotations

from collections.abc import Mapping

from caramel.analyzers.over_steps import StepFacts
from caramel.analyzers.rows import row_splits
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.facts import GradientFrontier, StateAccess
from caramel.core.row_split import RowSplits
from caramel.core.train_steps import StepName
from caramel.modifiers.serving.rows import split_rows
from caramel.planning.serving.rows import is_divisible, larger_than_a_share, rows_of_parts


def in_parts(context: Context, steps: Mapping[StepName, StepFacts], cluster: Cluster) -> Context:
    """The job in which parameters that are larger than a server's share are split by rows.

    Args:
        context: the single-device job.
        steps: what is known of its steps.
        cluster: says how many servers there are.

    Returns:
        The same context if nothing is to be split.
    """
    servers = len(cluster.servers)
    parameters = [variable for variable in context.job.variables if variable.trainable]
    large = larger_than_a_share(parameters, servers) if servers > 1 else []
    reasons = {v.name: "it has too few rows" for v in large if not is_divisible(v)}
    divisible = [v.name for v in large if is_divisible(v)]
    if not divisible:
        return context.in_parts(RowSplits(reasons=reasons)) if reasons else context
    first, *_ = steps.values()
    known = [(step.job, step.get(GradientFrontier).cuts) for step in steps.values()]
    while True:
        rows = rows_of_parts(parameters, servers, divisible)
        found = row_splits(context.op_graph, known, first.get(StateAccess), rows)
        reasons |= {name: "its rows cannot be dealt out better" for name in divisible if name not in rows}
        reasons |= found.reasons
        if rows.keys() == found.of.keys() & rows.keys():
            break
        # What stays whole leaves the others less room, so these are divided again.
        divisible = [name for name in divisible if name not in reasons]
    splits = RowSplits(found.splits, reasons)
    if not splits.splits:
        return context.in_parts(splits)
    gradients = {
        name: [c.gradient for c in cuts if c.gradient.parameter in splits.of]
        for name, (_, cuts) in zip(steps, known, strict=True)
    }
    graph_def = split_rows(context.graph_def, context.op_graph, splits.splits)
    return context.in_parts(splits, graph_def, gradients)
