"""Aggregates the raw gradients between the workers, by ordinary ops.

What post-processes a gradient in the user's graph then reads the aggregated one. How a group is
aggregated is in `dense` and `sparse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caramel.modifiers.dense import DenseSum
from caramel.modifiers.desk import Desk
from caramel.modifiers.nodes import GraphWriter, copy_of
from caramel.modifiers.sparse import SparseRows
from caramel.names import (
    TensorRef,
    in_replica,
    input_string,
    parse_input,
    tensor_in_replica,
)
from caramel.plan import ALL_GATHER, AggregatedGradient, Group, Plan


def aggregate(graph_def: Any, plan: Plan) -> Any:
    """Let everything behind the raw gradients read the aggregated ones."""
    if plan.workers == 1:
        return graph_def
    aggregated = copy_of(graph_def)
    nodes = {node.name: node for node in aggregated.node}
    desk = Desk(GraphWriter(aggregated), plan)
    for group in plan.groups:
        results = _aggregate_group(desk, plan, group)
        for worker in range(plan.workers):
            for parameter, tensors in zip(group.members, results[worker], strict=True):
                _rewire(nodes, worker, plan.gradient(parameter), tensors)
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
        node = nodes[in_replica(worker, consumer)]
        for position, text in enumerate(node.input):
            tensor = parse_input(text)
            if tensor in replaced:
                node.input[position] = input_string(replaced[tensor])


def _aggregate_group(desk: Desk, plan: Plan, group: Group) -> list[list[tuple[TensorRef, ...]]]:
    """The aggregated tensors of each member, for each worker."""
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        return [[tensors] for tensors in SparseRows(desk, plan, group).gather(first)]
    if first.indices is not None:
        return [[tensors] for tensors in SparseRows(desk, plan, group).add_up(first)]
    parts = [
        [tensor_in_replica(worker, plan.gradient(name).values) for name in group.members]
        for worker in range(plan.workers)
    ]
    specs = [plan.gradient(name).spec for name in group.members]
    summed = DenseSum(desk, plan, group).of(parts, specs)
    return [[(tensor,) for tensor in tensors] for tensors in summed]
