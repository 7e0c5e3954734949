"""Gives each worker its own shard of every input pipeline of the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from caramel.modifiers.nodes import GraphWriter, copy_of
from caramel.names import (
    TensorRef,
    added,
    in_replica,
    input_string,
    parse_input,
    tensor_in_replica,
)
from caramel.plan import Plan


def shard(graph_def: Any, plan: Plan) -> Any:
    """Splice a ``ShardDataset`` behind each place where the plan splits a pipeline."""
    if not plan.pipelines or plan.workers == 1:
        return graph_def
    sharded = copy_of(graph_def)
    nodes = {node.name: node for node in sharded.node}
    writer = GraphWriter(sharded)
    for worker in range(plan.workers):
        for number, pipeline in enumerate(plan.pipelines):
            source = nodes[in_replica(worker, pipeline.op)]
            whole = tensor_in_replica(worker, TensorRef(pipeline.op))
            part = _add_shard(writer, plan, worker, number, source)
            for consumer in pipeline.consumers:
                _redirect(nodes[in_replica(worker, consumer)], whole, part)
    return sharded


def _add_shard(writer: GraphWriter, plan: Plan, worker: int, number: int, source: Any) -> TensorRef:
    def place(part: str) -> str:
        return added(worker, "shard", str(number), part)

    count = np.array(plan.workers, np.int64)
    index = np.array(worker, np.int64)
    shard_op = writer.add(
        place("dataset"),
        "ShardDataset",
        [
            TensorRef(source.name),
            writer.constant(place("count"), count, device=source.device),
            writer.constant(place("index"), index, device=source.device),
        ],
        device=source.device,
        require_non_empty=False,
    )
    return _with_attributes(writer, shard_op, source)


def _with_attributes(writer: GraphWriter, shard_op: TensorRef, source: Any) -> TensorRef:
    """Give the shard the element types and shapes of the dataset it is taken from."""
    node = writer.last
    types = "output_types" if "output_types" in source.attr else "Toutput_types"
    node.attr["output_types"].CopyFrom(source.attr[types])
    node.attr["output_shapes"].CopyFrom(source.attr["output_shapes"])
    return shard_op


def _redirect(node: Any, before: TensorRef, after: TensorRef) -> None:
    """Let a node read `after` wherever it reads `before`."""
    for position, text in enumerate(node.input):
        if parse_input(text) == before:
            node.input[position] = input_string(after)
