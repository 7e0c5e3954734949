"""Gives each worker its own shard of every input pipeline of the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from caramel.core.graph import TensorSpec
from caramel.core.names import (
    TensorRef,
    added,
    in_replica,
    input_string,
    is_in_replica,
    parse_input,
    tensor_in_replica,
    without_prefix,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of, read_instead

_CACHES = frozenset({"CacheDataset", "CacheDatasetV2"})


def shard(graph_def: Any, plan: Plan) -> Any:
    """Splice a ``ShardDataset`` behind each place where the plan splits a pipeline."""
    if not plan.job.pipelines or plan.workers == 1:
        return graph_def
    sharded = copy_of(graph_def)
    nodes = {node.name: node for node in sharded.node}
    writer = GraphWriter(sharded)
    for worker in range(plan.workers):
        for number, pipeline in enumerate(plan.job.pipelines):
            source = nodes[in_replica(worker, pipeline.op)]
            whole = tensor_in_replica(worker, TensorRef(pipeline.op))
            part = _add_shard(writer, plan, worker, number, source)
            for consumer in pipeline.consumers:
                read_instead(nodes[in_replica(worker, consumer)], {whole: part})
            # All workers have to see the same elements in the same order where the shard is taken.
            _keep_order(nodes, source)
        _separate_caches(writer, nodes, worker, plan)
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


def _keep_order(nodes: dict[str, Any], dataset: Any) -> None:
    """Let a dataset, and all it is made of, put its elements out in a fixed order."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
        if "sloppy" in node.attr:
            node.attr["sloppy"].b = False
        sources = [tensor for text in node.input if (tensor := parse_input(text)) is not None]
        waiting += [nodes[source.op] for source in sources if "Dataset" in nodes[source.op].op]


def _separate_caches(writer: GraphWriter, nodes: dict[str, Any], worker: int, plan: Plan) -> None:
    """Add the worker's number to the names of files that hold a cache."""
    for name, cache in nodes.items():
        if cache.op not in _CACHES or not is_in_replica(worker, name):
            continue
        file = parse_input(cache.input[1])
        values = nodes[file.op].attr["value"].tensor.string_val if file is not None else []
        # Without a name the cache is in memory, which no two workers share.
        if values and values[0]:
            own = writer.add(
                added(worker, "cache", without_prefix(name)),
                "Const",
                device=cache.device,
                outputs=[TensorSpec("string", ())],
                value=np.array(values[0] + f"-{worker}-of-{plan.workers}".encode()),
                dtype="string",
            )
            cache.input[1] = input_string(own)


def _with_attributes(writer: GraphWriter, shard_op: TensorRef, source: Any) -> TensorRef:
    """Give the shard the element types and shapes of the dataset it is taken from."""
    node = writer.last
    # Sources from tensors call them otherwise.
    types = "output_types" if "output_types" in source.attr else "Toutput_types"
    node.attr["output_types"].CopyFrom(source.attr[types])
    node.attr["output_shapes"].CopyFrom(source.attr["output_shapes"])
    return shard_op
