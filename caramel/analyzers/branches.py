"""In which branches of v1 conditionals is each op?

A ``Switch`` opens a branch and a ``Merge`` of both closes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef


def predicates_around(graph: OpGraph) -> Mapping[str, frozenset[str]]:
    """For each op, the ops that put out the predicates of the conditionals it is inside."""
    around = branches_around(graph)
    return {name: frozenset(op for op, _ in branches) for name, branches in around.items()}


def branches_around(graph: OpGraph) -> Mapping[str, frozenset[tuple[str, int]]]:
    """For each op, the branches it is inside: the op of the predicate, and 1 where that is true.

    Loops are not conditionals here; `loop_frames` says what is inside them.
    """
    around: dict[str, frozenset[tuple[str, int]]] = {}

    def of_tensor(tensor: TensorRef) -> frozenset[tuple[str, int]]:
        op = graph[tensor.op]
        if op.kind != "Switch" or graph[op.inputs[1].op].kind == "LoopCond":
            return around[op.name]
        # On another worker, for which the predicate says otherwise, there is no value.
        return around[op.name] | {(op.inputs[1].op, tensor.index)}

    for name in graph.topological_order():
        op = graph[name]
        found = [of_tensor(tensor) for tensor in op.inputs if tensor.op in around]
        if op.kind == "Merge":
            # Whichever branch ran: only conditionals around both of them are still open.
            around[name] = frozenset.intersection(*found) if found else frozenset()
            continue
        found += [around[source] for source in op.control_inputs if source in around]
        around[name] = frozenset().union(*found)
    return around
