"""Holds updates back until every worker has read its inputs.

A step in which one worker's pipeline has ended must update nothing, on any worker. Updates that
wait for an aggregated gradient keep to that by themselves, since an aggregation needs all workers.
The others (moving averages, counters) get a control edge from the reads of all workers, over which
nothing but the fact travels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from caramel import kinds
from caramel.access import state_access
from caramel.facts import TrainingJob
from caramel.graph import OpGraph
from caramel.modifiers.nodes import GraphWriter, copy_of
from caramel.names import (
    TensorRef,
    added,
    all_inputs_read,
    control_string,
    in_replica,
    inputs_read,
    is_in_replica,
    without_prefix,
)
from caramel.plan import Plan


def await_inputs(graph_def: Any, plan: Plan) -> Any:
    """Add control edges from the reads of all workers to the updates that no gradient reaches."""
    if not plan.pipelines or plan.workers == 1:
        return graph_def
    reads, updates = _reads_and_updates(_first_replica(graph_def), plan)
    if not reads or not updates:
        return graph_def
    held = copy_of(graph_def)
    nodes = {node.name: node for node in held.node}
    writer = GraphWriter(held)
    for worker, device in enumerate(plan.devices):
        controls = [in_replica(worker, read) for read in reads]
        writer.add(inputs_read(worker), "NoOp", device=device, controls=controls)
    for worker, device in enumerate(plan.devices):
        controls = [inputs_read(source) for source in range(plan.workers)]
        writer.add(all_inputs_read(worker), "NoOp", device=device, controls=controls)
        for update in updates:
            nodes[in_replica(worker, update)].input.append(control_string(all_inputs_read(worker)))
    return held


def _first_replica(graph_def: Any) -> OpGraph:
    """Worker 0's replica alone; the others are the same."""
    part = tf.compat.v1.GraphDef()
    part.library.CopyFrom(graph_def.library)
    part.node.extend(
        node
        for node in graph_def.node
        if is_in_replica(0, node.name) or node.name.startswith(added(0))
    )
    return OpGraph.from_graph_def(part, {})


def _reads_and_updates(graph: OpGraph, plan: Plan) -> tuple[list[str], list[str]]:
    """Reads of the step's pipelines, and updates that could run before all of them are done."""
    step = graph.ancestors([in_replica(0, plan.train_op), in_replica(0, plan.loss)])
    reads = [op.name for op in graph if op.name in step and op.kind in kinds.ITERATOR_READS]
    reads = [name for name in reads if not _is_conditional(graph, name)]
    variables = tuple(replace(v, handle=in_replica(0, v.handle)) for v in plan.variables)
    job = TrainingJob(plan.train_op, TensorRef(plan.loss), variables=variables)
    writes = state_access(graph, job).writes
    reached = _behind_gradients(graph, plan) | graph.ancestors(reads)
    updates = [name for name in writes if name in step - reached and not _is_in_loop(graph, name)]
    return [without_prefix(n) for n in reads], [without_prefix(n) for n in updates]


def _behind_gradients(graph: OpGraph, plan: Plan) -> set[str]:
    """Everything that waits for an aggregated gradient."""
    waiting = [in_replica(0, name) for cut in plan.gradients for name in cut.consumers]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.consumers[name])
    return seen


def _is_conditional(graph: OpGraph, name: str) -> bool:
    return any(graph[source].kind == "Switch" for source in graph.ancestors([name]))


def _is_in_loop(graph: OpGraph, name: str) -> bool:
    """Whether an op gets a variable's handle through the border of a loop."""
    return any(graph[source.op].kind == "Enter" for source in graph[name].inputs)
