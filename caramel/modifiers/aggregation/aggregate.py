"""Aggregates the raw gradients between the workers, by ordinary ops.

What post-processes a gradient in the user's graph then reads the aggregated one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.core.decision import ALL_GATHER, FACTORS, Group
from caramel.core.names import TensorRef, in_replica, tensor_in_replica
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
    if plan.workers == 1:
        return graph_def
    aggregated = copy_of(graph_def)
    nodes = {node.name: node for node in aggregated.node}
    desk = Desk(GraphWriter(aggregated), plan)
    split = SplitGradients(desk, plan)
    for group in plan.decision.groups:
        results = _aggregate_group(desk, plan, group, split, nodes)
        for worker in range(plan.workers):
            for number, member in enumerate(group.members):
                tensors = results[worker][number]
                if plan.part(member) is None:
                    _rewire(nodes, worker, plan.gradient(member), tensors)
                else:
                    split.arrive(worker, group, number, tensors)
    add_checksums(desk, plan)
    for gradient in split.gradients:
        for worker in range(plan.workers):
            _rewire(nodes, worker, gradient, [split.join(worker, gradient)])
    return aggregated


def _rewire(
    nodes: dict[str, Any], worker: int, gradient: AggregatedGradient, tensors: Sequence[TensorRef]
) -> None:
    """Let the consumers of a worker's raw gradient read what was aggregated."""
    raw = [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]
    replaced = {
        tensor_in_replica(worker, before): after for before, after in zip(raw, tensors, strict=True)
    }
    for consumer in gradient.consumers:
        read_instead(nodes[in_replica(worker, consumer)], replaced)


def _aggregate_group(
    desk: Desk, plan: Plan, group: Group, split: SplitGradients, nodes: Mapping[str, Any]
) -> list[list[Sequence[TensorRef]]]:
    """The aggregated tensors of each member, for each worker; of a part its pieces."""
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        return [[tensors] for tensors in SparseRows(desk, plan, group).gather(first)]
    if first.indices is not None:
        return [[tensors] for tensors in SparseRows(desk, plan, group).add_up(first)]
    if group.pattern == FACTORS:
        return [[(tensor,)] for tensor in FactorSum(desk, plan, group, nodes).of(first)]
    parts = [[split.raw(worker, name) for name in group.members] for worker in range(plan.workers)]
    specs = [plan.spec(name) for name in group.members]
    if comes_in_chunks(plan, group):
        chunks = DenseSum(desk, plan, group).chunks_of([own[0] for own in parts], specs[0])
        return [[pieces] for pieces in chunks]
    summed = DenseSum(desk, plan, group).of(parts, specs)
    return [[(tensor,) for tensor in tensors] for tensors in summed]
