"""Lets workers receive the variables that they read, in the planned order.

Each worker has a variable of its own under the user's handle, to which what it has received is
assigned: so loops and functions that take handles read it as before. Nothing is copied by that.

TicTac changes the order in which TensorFlow's server hands tensors to the network (2018, section
5.1). A chain of control edges between the reads on the server changes nothing, since all sends
are queued at once. Here a read waits until what is before it in the order has *arrived at the
worker*, by a control edge that crosses back to the server.
"""

from __future__ import annotations

from typing import Any

from caramel.core.consequences import Reading
from caramel.core.names import (
    ONCE,
    TensorRef,
    answer,
    control_string,
    in_copy,
    in_replica,
    pulled,
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
            _pull(writer, nodes, plan, worker, reading)
    _read_before_writes(nodes, plan)
    return extended


def _pull(
    writer: GraphWriter, nodes: dict[str, Any], plan: Plan, worker: int, reading: Reading
) -> None:
    """Let one worker receive one variable."""
    name = reading.variable
    variable, server = plan.job.variable_of[name], plan.decision.server_of[name]
    planned = plan.decision.pull_of.get(name)
    value = writer.add(
        pulled_from(server, worker, name),
        "ReadVariableOp",
        [TensorRef(in_copy(ONCE, variable.handle))],
        device=plan.job.servers[server],
        controls=[pulled(worker, before) for before in (planned.after if planned else ())],
        outputs=[variable.spec],
        dtype=variable.spec.dtype,
    )
    own = nodes[in_replica(worker, variable.handle)]
    arrived = pulled(worker, name)
    writer.add(
        arrived,
        "AssignVariableOp",
        [TensorRef(own.name), value],
        device=own.device,
        dtype=variable.spec.dtype,
    )
    for op in reading.waiting:
        node = nodes.get(in_replica(worker, op))
        if node is not None:  # `replicate` leaves out what only checks whether variables are there
            node.input.append(control_string(arrived))


def _read_before_writes(nodes: dict[str, Any], plan: Plan) -> None:
    """Let a step's writes wait until its reads for workers have been done, all on one server."""
    serving, server_of = plan.consequences.serving, plan.decision.server_of
    workers = range(plan.workers)
    reads: dict[str, list[str]] = {}
    for reading in serving.readings:
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
