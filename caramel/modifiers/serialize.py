"""Adds the plan's control edges to every replica. Caramel paper, section 4.1, stage 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caramel.errors import InvariantError, PlanError
from caramel.graph import OpGraph
from caramel.modifiers.nodes import copy_of
from caramel.names import control_string, in_replica, without_prefix, worker_of
from caramel.plan import Plan


def serialize(graph_def: Any, plan: Plan) -> Any:
    """Let the `after` of every edge wait for its `before`, on each worker for its own.

    Raises:
        PlanError: an edge names an op that a replica does not have, or the edges close a cycle.
    """
    if not plan.edges:
        return graph_def
    serialized = copy_of(graph_def)
    nodes = {node.name: node for node in serialized.node}
    for worker in range(plan.workers):
        for edge in plan.edges:
            before, after = in_replica(worker, edge.before), in_replica(worker, edge.after)
            for name in (before, after):
                if name not in nodes:
                    raise PlanError(
                        f"an edge of the plan, '{edge.before}' -> '{edge.after}', names "
                        f"'{without_prefix(name)}', which worker {worker} does not have"
                    )
            if control_string(before) not in nodes[after].input:
                nodes[after].input.append(control_string(before))
    _check_acyclic(serialized)
    return serialized


def _check_acyclic(graph_def: Any) -> None:
    """Raise if what is on worker 0 has a cycle; the other workers are the same."""
    part = tf.compat.v1.GraphDef()
    part.node.extend(node for node in graph_def.node if worker_of(node.name) == 0)
    graph = OpGraph.from_graph_def(part, {}, outputs_of=lambda name: False)
    try:
        graph.topological_order()
    except InvariantError as error:
        raise PlanError(f"the edges of the plan do not fit the graph: {error}") from error
