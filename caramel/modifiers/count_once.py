"""Lets what is the same on every worker count once in gradients that are added up.

A weight decay in a loss that is a sum over the examples is added to the gradient of each worker's
part. Only worker 0 adds it; the others add zeros in its place.
"""

from __future__ import annotations

from typing import Any

from caramel.modifiers.nodes import GraphWriter, copy_of
from caramel.names import (
    TensorRef,
    added,
    in_replica,
    input_string,
    parse_input,
    tensor_in_replica,
)
from caramel.plan import Plan, SharedInput


def count_once(graph_def: Any, plan: Plan) -> Any:
    """Let workers other than worker 0 read zeros in place of what is to count once."""
    shared = dict.fromkeys(each for gradient in plan.gradients for each in gradient.shared)
    if plan.workers == 1 or not shared:
        return graph_def
    changed = copy_of(graph_def)
    nodes = {node.name: node for node in changed.node}
    writer = GraphWriter(changed)
    for worker in range(1, plan.workers):
        zeros: dict[TensorRef, TensorRef] = {}
        for each in shared:
            node = nodes[in_replica(worker, each.op)]
            if each.tensor not in zeros:
                zeros[each.tensor] = _zeros(writer, plan, worker, each, node)
            _replace(node, tensor_in_replica(worker, each.tensor), zeros[each.tensor])
    return changed


def _zeros(
    writer: GraphWriter, plan: Plan, worker: int, shared: SharedInput, reader: Any
) -> TensorRef:
    name = added(worker, "counts_once", f"{shared.tensor.op}-{shared.tensor.index}")
    own = tensor_in_replica(worker, shared.tensor)
    zeros = writer.add(name, "ZerosLike", [own], device=plan.devices[worker])
    writer.last.attr["T"].CopyFrom(reader.attr["T"])
    return zeros


def _replace(node: Any, before: TensorRef, after: TensorRef) -> None:
    for position, text in enumerate(node.input):
        if parse_input(text) == before:
            node.input[position] = input_string(after)
