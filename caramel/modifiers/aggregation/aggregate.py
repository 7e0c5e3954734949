"""Aggregates the raw gradients between the workers, by ordinary ops.

What post-processes a gradient in the user's graph then reads the aggregated one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.core.decision import ALL_GATHER, FACTORS, Group
from caramel.core.names import (
    ONCE,
    TensorRef,
    in_copy,
    replica_prefix,
    server_at,
    tensor_in_replica,
)
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.modifiers.aggregation.dense import DenseSum
from caramel.modifiers.aggregation.factors import FactorSum, add_checksums
from caramel.modifiers.aggregation.sparse import SparseRows
from caramel.modifiers.aggregation.split import SplitGradients, comes_in_chunks
from caramel.modifiers.aggregation.worker_writer import Desk
from caramel.modifiers.graph_writer import GraphWriter, copy_of, read_instead


def aggregate(graph_def: Any, plan: Plan) -> Any:
    """Let everything behind the raw gradients read the aggregated ones."""
    if not plan.is_distributed:
        return graph_def
    aggregated = copy_of(graph_def)
    nodes = {node.name: node for node in aggregated.node}
    desk = Desk(GraphWriter(aggregated), plan)
    split = SplitGradients(desk, plan)
    for group in plan.decision.groups:
        results = _aggregate_group(desk, plan, group, split, nodes)
        for place, own in results.items():
            for number, member in enumerate(group.members):
                if plan.part(member) is None:
                    _rewire(nodes, place, plan.gradient(member), own[number])
                else:
                    split.arrive(place, group, number, own[number])
    add_checksums(desk, plan)
    for gradient in split.gradients:
        for worker in range(plan.workers):
            _rewire(nodes, worker, gradient, [split.join(worker, gradient)])
    return aggregated


def _rewire(
    nodes: dict[str, Any], place: int, gradient: AggregatedGradient, tensors: Sequence[TensorRef]
) -> None:
    """Let the consumers of a raw gradient read what was aggregated.

    These are on a worker, or, where a server has aggregated it, in the copy that updates once,
    which `replicate` lets read the raw gradient of worker 0.
    """
    is_once = server_at(place) is not None
    prefix = ONCE if is_once else replica_prefix(place)
    worker = 0 if is_once else place
    raw = [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]
    replaced = {
        tensor_in_replica(worker, before): after for before, after in zip(raw, tensors, strict=True)
    }
    for consumer in gradient.consumers:
        read_instead(nodes[in_copy(prefix, consumer)], replaced)


def _aggregate_group(
    desk: Desk, plan: Plan, group: Group, split: SplitGradients, nodes: Mapping[str, Any]
) -> dict[int, list[Sequence[TensorRef]]]:
    """The aggregated tensors of each member at each place that has them; of a part its pieces."""
    first = plan.gradient(group.members[0])
    if first.indices is not None:
        rows = SparseRows(desk, plan, group)
        found = rows.gather(first) if group.pattern == ALL_GATHER else rows.add_up(first)
        return {place: [tensors] for place, tensors in found.items()}
    if group.pattern == FACTORS:
        products = FactorSum(desk, plan, group, nodes).of(first)
        return {worker: [(tensor,)] for worker, tensor in enumerate(products)}
    parts = [[split.raw(worker, name) for name in group.members] for worker in range(plan.workers)]
    specs = [plan.spec(name) for name in group.members]
    if comes_in_chunks(plan, group):
        chunks = DenseSum(desk, plan, group).chunks_of([own[0] for own in parts], specs[0])
        return {place: [pieces] for place, pieces in chunks.items()}
    summed = DenseSum(desk, plan, group).of(parts, specs)
    return {place: [(tensor,) for tensor in tensors] for place, tensors in summed.items()}
