"""Lets what is downstream of deferred groups run at the start of the next step.

Moved ops stay where they are in the graph, but read what was kept in the step before in place of
what their own step computes. So the graph falls into two parts that no edge connects: what a step
runs, and what is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caramel.core.decision import ALL_GATHER
from caramel.core.names import (
    ALL_KEPT,
    ONCE,
    TensorRef,
    arrived,
    assigned,
    control_source,
    control_string,
    in_copy,
    in_replica,
    input_string,
    kept_flat,
    kept_in,
    parse_input,
    partial_sum,
    read_back,
    tensor_in_replica,
    token_put,
    token_taken,
    without_prefix,
)
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.results import aggregated_values, arrival
from caramel.modifiers.aggregation.split import kept_pieces
from caramel.modifiers.carry_over import keep
from caramel.modifiers.graph_writer import GraphWriter, copy_of
from caramel.modifiers.progress_marks import marked_parts
from caramel.modifiers.serving.pulls import ahead_ops
from caramel.modifiers.step_tokens import add_put, host_of, token_variables


def defer(graph_def: Any, plan: Plan) -> Any:
    """Cut the moved ops off from the step they belong to."""
    if not plan.consequences.deferral.moved:
        return graph_def
    deferred = copy_of(graph_def)
    nodes = {node.name: node for node in deferred.node}
    for worker, device in enumerate(plan.job.devices):
        part = _Replica(GraphWriter(deferred), nodes, plan, worker, device)
        part.keep()
        part.order()
        part.detour()
        part.wait()
    return deferred


def step_ops(plan: Plan) -> list[str]:
    """What a step runs, of all that is in the replicas and the aggregation.

    With `moved_ops` that gives three programs: *fresh* is the step alone, *steady* both, *flush*
    the moved part alone. Both parts are run at the same time by two calls, the moved part of step t
    beside step t + 1, so that an error in a step does not stop the updates of the step before it.
    """
    workers, serving = range(plan.workers), plan.consequences.serving
    if plan.job.servers:
        once = [in_copy(ONCE, op) for op in serving.results]
        own = [in_replica(worker, op) for op in serving.worker_results for worker in workers]
        return [*once, *own, *ahead_ops(plan), *marked_parts(plan, moved=False)]
    marked = marked_parts(plan, moved=False)
    if not plan.consequences.deferral.moved:
        return [*(in_replica(worker, plan.job.train_op) for worker in workers), *marked]
    kept = [
        name
        for worker in workers
        for name in (
            *(in_replica(worker, op) for op in plan.consequences.deferral.stays),
            *(assigned(kept) for kept in kept_by(plan, worker)),
            # also those that nothing of this step waits for: none may be left for the next step
            *(token_taken(worker, variable) for variable in token_variables(plan)),
        )
    ]
    return [*kept, *marked]


def moved_ops(plan: Plan) -> list[str]:
    """What the next step runs besides."""
    if not plan.consequences.deferral.moved:
        return []
    moved = [
        name
        for worker in range(plan.workers)
        for name in (
            *(in_replica(worker, op) for op in plan.consequences.deferral.results),
            *(token_put(worker, variable) for variable in token_variables(plan)),
        )
    ]
    return [*moved, *marked_parts(plan, moved=True)]


def kept_by(plan: Plan, worker: int) -> Iterator[str]:
    """The variables of a worker that keep something."""
    for kept in plan.consequences.deferral.kept:
        yield kept_in(worker, kept.tensor, aggregated=kept.aggregated)
    for group in plan.decision.groups:
        if not group.deferred:
            continue
        if group.pattern == ALL_GATHER:
            yield kept_flat(group.name, worker, "values")
            yield kept_flat(group.name, worker, "indices")
            continue
        yield kept_flat(group.name, worker)
        if plan.gradient(group.members[0]).indices is not None:
            yield kept_flat(group.name, worker, "rows")
    yield from kept_pieces(plan, worker)


class _Replica:
    """The rewrite of one replica."""

    def __init__(
        self, writer: GraphWriter, nodes: dict[str, Any], plan: Plan, worker: int, device: str
    ) -> None:
        self._writer, self._nodes, self._plan, self._worker = writer, nodes, plan, worker
        self._host = host_of(device)
        self._moved = frozenset(plan.consequences.deferral.moved)

    def keep(self) -> None:
        """Let moved ops read what was kept."""
        worker = self._worker
        sums = aggregated_values(self._plan, worker)
        replaced = {}
        for kept in self._plan.consequences.deferral.kept:
            own = tensor_in_replica(worker, kept.tensor)
            source = sums.get(kept.tensor, own) if kept.aggregated else own
            name = kept_in(worker, kept.tensor, aggregated=kept.aggregated)
            # Where the tensor is, so that keeping it copies nothing.
            device = self._nodes[own.op].device
            replaced[source] = keep(self._writer, name, worker, source, kept.spec, device)
        for op in self._plan.consequences.deferral.moved:
            for node in self._nodes_of(op):
                self._read_kept(node, replaced)

    def _nodes_of(self, op: str) -> Iterator[Any]:
        """The nodes of an op; more than one if it was a sum."""
        yield self._nodes[in_replica(self._worker, op)]
        number = 0
        while node := self._nodes.get(in_replica(self._worker, partial_sum(op, number))):
            yield node
            number += 1

    def _read_kept(self, node: Any, replaced: dict[TensorRef, TensorRef]) -> None:
        inputs = []
        for text in node.input:
            tensor = parse_input(text)
            if tensor is not None:
                inputs.append(input_string(replaced.get(tensor, tensor)))
            # Control edges from ops that stay are of another step.
            elif without_prefix(control_source(text)) in self._moved:
                inputs.append(text)
        del node.input[:]
        node.input.extend(inputs)

    def order(self) -> None:
        """Let moved ops follow each other as they did."""
        for edge in self._plan.consequences.deferral.orders:
            node = self._nodes[in_replica(self._worker, edge.after)]
            text = control_string(in_replica(self._worker, edge.before))
            if text not in node.input:
                node.input.append(text)

    def detour(self) -> None:
        """Let ops that stay wait for what the moved ops before them waited for."""
        for detour in self._plan.consequences.deferral.detours:
            node = self._nodes[in_replica(self._worker, detour.op)]
            lost = {control_string(in_replica(self._worker, op)) for op in detour.moved}
            kept = [text for text in node.input if text not in lost]
            added_inputs = [control_string(in_replica(self._worker, op)) for op in detour.before]
            del node.input[:]
            node.input.extend([*kept, *(text for text in added_inputs if text not in kept)])

    def wait(self) -> None:
        """Let ops of the next step wait for the tokens of moved ones.

        A token is in a queue on their worker (`step_tokens`): the moved part puts it, the step
        takes it. With nothing pending the tokens are already there.
        """
        worker = self._worker
        reads = [read_back(kept) for kept in kept_by(self._plan, worker)]
        add_put(self._writer, worker, ALL_KEPT, self._host, reads)
        for barrier in self._plan.consequences.deferral.barriers:
            moved = [in_replica(worker, op) for op in barrier.moved]
            add_put(self._writer, worker, barrier.variable, self._host, moved)
            taken = control_string(token_taken(worker, barrier.variable))
            for op in barrier.waiting:
                self._nodes[in_replica(worker, op)].input.append(taken)
        for group in dict.fromkeys(gate.after for gate in self._plan.gates_between_steps):
            after = arrival(self._plan, group, worker)
            add_put(self._writer, worker, arrived(group), self._host, [after])
