"""What do values that differ between workers reach?

`spread` follows them along data edges, through stacks and tables, and (if asked) through variables,
and remembers for each op it reaches where it came from, so that an error can name the whole path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from caramel.core import op_types
from caramel.core.facts import GradientFrontier, StateAccess
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import fills_table, handle_of


@dataclass(frozen=True)
class Spread:
    """Ops and variables that depend on the worker.

    `came_from` maps an op to the op before it (None at a source); `variables` maps a variable to
    the op that wrote a value into it that differs.
    """

    came_from: Mapping[str, str | None]
    variables: Mapping[str, str]

    def path_to(self, op: str) -> list[str]:
        """The ops along which a value that differs reaches `op`, beginning at its source."""
        path = [op]
        while (before := self.came_from[path[-1]]) is not None:
            path.append(before)
        return path[::-1]


def cut_by(frontier: GradientFrontier) -> Callable[[TensorRef, str], bool]:
    """Whether an edge, from a tensor to an op, carries an aggregated gradient."""
    aggregated = {
        (tensor, consumer)
        for cut in frontier.cuts
        for tensor in cut.gradient.tensors
        for consumer in cut.consumers
    }
    return lambda tensor, consumer: (tensor, consumer) in aggregated


def spread(
    graph: OpGraph,
    sources: Iterable[str],
    access: StateAccess | None = None,
    *,
    within: Iterable[str] | None = None,
    is_cut: Callable[[TensorRef, str], bool] = lambda tensor, consumer: False,
) -> Spread:
    """Everything that depends on what `sources` put out.

    Args:
        sources: ops whose outputs differ between workers.
        access: given, values also flow through variables.
        within: only these ops are looked at (default: all).
        is_cut: says of a tensor and the op that reads it whether that edge carries an aggregated
            value, which is equal on all workers.
    """
    allowed = set(graph.ops) if within is None else set(within)
    readers: dict[str, list[str]] = {}
    if access is not None:
        for reader, variables in access.reads.items():
            for variable in variables:
                readers.setdefault(variable, []).append(reader)
    pops, tables = _pops_by_stack(graph), _reads_by_table(graph)
    came_from: dict[str, str | None] = {name: None for name in sources if name in allowed}
    tainted_variables: dict[str, str] = {}
    # In a fixed order, so that errors name the same path in every run.
    waiting = deque(sorted(came_from))

    def reach(name: str, before: str) -> None:
        if name in allowed and name not in came_from:
            came_from[name] = before
            waiting.append(name)

    while waiting:
        op = graph[waiting.popleft()]
        for consumer in graph.consumers[op.name]:
            if _reads(graph, graph[consumer], op, is_cut):
                reach(consumer, op.name)
        # No edge connects a push to a stack with its pop; the same holds for tables and variables.
        if op.kind == op_types.STACK_PUSH:
            for pop in pops.get(handle_of(graph, op.inputs[0]), ()):
                reach(pop, op.name)
        if fills_table(op):
            for read in tables.get(handle_of(graph, op.inputs[0]), ()):
                reach(read, op.name)
        for variable in access.writes.get(op.name, ()) if access is not None else ():
            tainted_variables.setdefault(variable, op.name)
            for reader in readers.get(variable, ()):
                reach(reader, op.name)
    return Spread(came_from, tainted_variables)


def _reads(
    graph: OpGraph, consumer: Op, source: Op, is_cut: Callable[[TensorRef, str], bool]
) -> bool:
    """Whether a value of `source` reaches `consumer`.

    By data through an edge that is not cut, or by control from the pivot of a conditional, which
    decides whether its consumer runs at all.
    """
    if any(
        tensor.op == source.name and not is_cut(tensor, consumer.name) for tensor in consumer.inputs
    ):
        return True
    return source.name in consumer.control_inputs and _is_pivot(graph, source)


def _is_pivot(graph: OpGraph, op: Op) -> bool:
    """Whether an op runs in one branch of a v1 conditional only because of its predicate."""
    if op.kind == "Identity":
        return graph[op.inputs[0].op].kind == "Switch"
    return op.kind == "Switch"


def _pops_by_stack(graph: OpGraph) -> dict[str, list[str]]:
    pops: dict[str, list[str]] = {}
    for op in graph:
        if op.kind == op_types.STACK_POP:
            pops.setdefault(handle_of(graph, op.inputs[0]), []).append(op.name)
    return pops


def _reads_by_table(graph: OpGraph) -> dict[str, list[str]]:
    reads: dict[str, list[str]] = {}
    for op in graph:
        if op.kind in op_types.TABLE_READS:
            reads.setdefault(handle_of(graph, op.inputs[0]), []).append(op.name)
    return reads
