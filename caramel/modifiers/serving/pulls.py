"""Lets workers receive the variables that they read, in the planned order.

Each worker has a variable of its own under the user's handle, to which what it has received is
assigned: so loops and functions that take handles read it as before. Nothing is copied by that.

TicTac changes the order in which TensorFlow's server hands tensors to the network (2018, section
5.1). A chain of control edges between the reads on the server changes nothing, since all sends
are queued at once. Here a read waits until what is before it in the order has *arrived at the
worker*, by a control edge that crosses back to the server.

A variable that is pulled *ahead* is sent for the next step as soon as it was updated, while other
gradients are still on their way: the two directions of a link are used at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caramel.core.consequences import Reading
from caramel.core.decision import Pull
from caramel.core.names import (
    ONCE,
    TensorRef,
    ahead_from,
    answer,
    control_string,
    in_copy,
    in_replica,
    pulled,
    pulled_ahead,
    pulled_from,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of


def pull(graph_def: Any, plan: Plan) -> Any:
    """Send variables from their servers to the workers that read them."""
    readings = plan.consequences.serving.readings
    if not plan.job.servers:
        return graph_def
    extended = copy_of(graph_def)
    nodes = {node.name: node for node in extended.node}
    writer = GraphWriter(extended)
    for worker in range(plan.workers):
        for reading in readings:
            _Pull(writer, nodes, plan, worker, reading).write()
    _read_before_writes(nodes, plan)
    return extended


class _Pull:
    """Writes what a worker receives of one variable."""

    def __init__(
        self, writer: GraphWriter, nodes: dict[str, Any], plan: Plan, worker: int, reading: Reading
    ) -> None:
        self._writer, self._nodes, self._plan, self._worker = writer, nodes, plan, worker
        self._reading = reading
        name = reading.variable
        self._variable, self._server = plan.job.variable_of[name], plan.decision.server_of[name]
        self._planned = plan.decision.pull_of.get(name, Pull(name))

    def write(self) -> None:
        """What is sent when a step begins; ahead, also what is sent at its end."""
        worker, name = self._worker, self._variable.name
        after = [pulled(worker, before) for before in self._planned.after]
        arrived = pulled(worker, name)
        self._send(pulled_from(self._server, worker, name), after, arrived, [])
        if self._planned.ahead:  # then it is there, and what reads it need not wait
            self._write_ahead()
            return
        for op in self._reading.waiting:
            node = self._nodes.get(in_replica(worker, op))
            if node is not None:  # `replicate` leaves out what only checks whether variables exist
                node.input.append(control_string(arrived))

    def _write_ahead(self) -> None:
        """Send it once more when it was written, to where all that read it have run."""
        worker, name, serving = self._worker, self._variable.name, self._plan.consequences.serving
        writers = [in_copy(ONCE, op) for op in serving.writers_of.get(name, ())]
        readers = [in_replica(worker, op) for op in self._reading.readers or ()]
        if writers:
            sent = ahead_from(self._server, worker, name)
            self._send(sent, writers, pulled_ahead(worker, name), readers)

    def _send(self, sent: str, after: Sequence[str], arrived: str, then: Sequence[str]) -> None:
        """Read on the server after some ops, and assign on the worker after others."""
        variable, plan = self._variable, self._plan
        value = self._writer.add(
            sent,
            "ReadVariableOp",
            [TensorRef(in_copy(ONCE, variable.handle))],
            device=plan.job.servers[self._server],
            controls=after,
            outputs=[variable.spec],
            dtype=variable.spec.dtype,
        )
        own = self._nodes[in_replica(self._worker, variable.handle)]
        self._writer.add(
            arrived,
            "AssignVariableOp",
            [TensorRef(own.name), value],
            device=own.device,
            controls=then,
            dtype=variable.spec.dtype,
        )


def _read_before_writes(nodes: dict[str, Any], plan: Plan) -> None:
    """Let a step's writes wait until its reads for workers have been done, all on one server."""
    serving, server_of = plan.consequences.serving, plan.decision.server_of
    workers = range(plan.workers)
    reads: dict[str, list[str]] = {}
    ahead = {pull.variable for pull in plan.decision.pulls if pull.ahead}
    for reading in serving.readings:
        if reading.variable in ahead:  # a step does not read it for itself
            continue
        server = server_of[reading.variable]
        reads[reading.variable] = [pulled_from(server, w, reading.variable) for w in workers]
    for remote in serving.remote:
        server = server_of[remote.variable]
        own = [answer(server, worker, remote.op) for worker in workers]
        reads.setdefault(remote.variable, []).extend(own)
    for written in serving.written:
        controls = [control_string(read) for read in reads.get(written.variable, ())]
        for op in written.ops:
            nodes[in_copy(ONCE, op)].input.extend(controls)


def ahead_ops(plan: Plan) -> list[str]:
    """What a step runs so that workers have what is pulled ahead for the next one."""
    written = plan.consequences.serving.writers_of
    return [
        pulled_ahead(worker, each.variable)
        for each in plan.decision.pulls
        if each.ahead and each.variable in written
        for worker in range(plan.workers)
    ]


def first_pulls(plan: Plan) -> list[str]:
    """What sends workers all that is pulled ahead, where no step of the plan was done before."""
    return [
        pulled(worker, each.variable)
        for each in plan.decision.pulls
        if each.ahead
        for worker in range(plan.workers)
    ]
