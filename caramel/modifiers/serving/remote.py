"""Lets ops that read rows of a variable run where the variable is.

So an embedding that is larger than all else needs not travel: row numbers go to the server, and
rows come back.
"""

from __future__ import annotations

from typing import Any

from caramel.core.names import (
    ONCE,
    TensorRef,
    answer,
    answered,
    asked,
    in_copy,
    in_replica,
    input_string,
    parse_input,
)
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of


def read_rows(graph_def: Any, plan: Plan) -> Any:
    """Let each worker send row numbers, and read the rows that come back."""
    remote = plan.consequences.serving.remote
    if not remote:
        return graph_def
    extended = copy_of(graph_def)
    nodes = {node.name: node for node in extended.node}
    writer = GraphWriter(extended)
    for worker in range(plan.workers):
        for each in remote:
            server = plan.decision.server_of[each.variable]
            name = answer(server, worker, each.op)
            handle = in_copy(ONCE, plan.job.variable_of[each.variable].handle)
            node = nodes[in_replica(worker, each.op)]
            _ask(writer, node, worker, each.op, name, handle, plan.job.servers[server])
    return extended


def _ask(
    writer: GraphWriter, node: Any, worker: int, op: str, name: str, handle: str, device: str
) -> None:
    """Let a server do what an op of a replica does."""
    _, *read = (tensor for text in node.input if (tensor := parse_input(text)) is not None)
    controls = [text for text in node.input if text.startswith("^")]
    sent = []
    for position, tensor in enumerate(read):
        # Only what Caramel's own ops put out is sent.
        own = writer.add(asked(worker, op, position), "Identity", [tensor], device=node.device)
        writer.last.attr["T"].CopyFrom(node.attr["Tindices"])
        # So the server is asked only when the worker may read.
        writer.last.input.extend(controls)
        sent.append(own)
    writer.add(name, node.op, [TensorRef(handle), *sent], device=device)
    for key, value in node.attr.items():
        if not key.startswith("_"):
            writer.last.attr[key].CopyFrom(value)
    dtype = node.attr["dtype"].type
    received = writer.add(answered(worker, op), "Identity", [TensorRef(name)], device=node.device)
    writer.last.attr["T"].type = dtype
    node.op = "Identity"
    node.attr.clear()
    node.attr["T"].type = dtype
    del node.input[:]
    node.input.extend([input_string(received), *controls])
