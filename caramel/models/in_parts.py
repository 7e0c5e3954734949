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
        The same context if nothing is to be split, or if that was decided before, for more servers:
        its variables are the same with fewer.
    """
    if context.row_splits != RowSplits():
        return context
    servers = len(cluster.servers)
    parameters = {v.name: v.spec for v in context.job.variables if v.trainable}
    large = larger_than_a_share(parameters, servers) if servers > 1 else []
    if not large:
        return context
    first, *_ = steps.values()
    cuts = {name: step.get(GradientFrontier).cuts for name, step in steps.items()}
    known = [(step.job, cuts[name]) for name, step in steps.items()]
    reasons = {name: _TOO_FEW for name in large if not is_divisible(parameters[name])}
    while True:
        left = [name for name in large if name not in reasons]
        rows = rows_of_parts(parameters, servers, left)
        splits = row_splits(context.op_graph, known, first.get(StateAccess), rows)
        whole = {**dict.fromkeys(set(left) - rows.keys(), _TOO_FEW), **splits.reasons}
        reasons.update(whole)
        if not whole:
            break
        # What stays whole leaves the others less room, so these are divided again.
    splits = RowSplits(splits.splits, reasons)
    if not splits.splits:
        return context.in_parts(splits)
    own = {
        n: [c.gradient for c in each if c.gradient.parameter in splits.of]
        for n, each in cuts.items()
    }
    graph_def = split_rows(context.graph_def, context.op_graph, splits.splits)
    return context.in_parts(splits, graph_def, own)


_TOO_FEW = "it has too few rows"
