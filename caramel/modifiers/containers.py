"""Keeps what a session with parameter servers has apart from that of other sessions.

Such a session is not isolated: what it has on the servers outlives the worker that drives it, and
agents may read it. So all its state is in two of TensorFlow's *containers*: what is on the servers,
and what is on the workers. The graph has marks in place of their names; a session puts its own
names there, of the same length, before it sends the graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from caramel.core.devices import task_of
from caramel.core.names import ON_SERVERS, ON_WORKERS
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import copy_of

_CONTAINER = "container"


def contain(graph_def: Any, plan: Plan) -> Any:
    """Give each op with state its container; nothing is done without servers."""
    if not plan.job.servers:
        return graph_def
    contained = copy_of(graph_def)
    servers = {task_of(device) for device in plan.job.servers}
    for node in contained.node:
        _put(node, ON_SERVERS if task_of(node.device) in servers else ON_WORKERS)
    for function in contained.library.function:  # they run where they are called: on workers
        for node in function.node_def:
            _put(node, ON_WORKERS)
    return contained


def _put(node: Any, container: str) -> None:
    if _CONTAINER in node.attr or _has_container(node.op):
        users = node.attr[_CONTAINER].s.decode()
        node.attr[_CONTAINER].s = (f"{container}/{users}" if users else container).encode()


@cache
def _has_container(kind: str) -> bool:
    """Whether ops of a kind have a container, also where the graph does not say which."""
    try:
        definition = tf.Graph().op_def_for_type(kind)
    except (KeyError, tf.errors.NotFoundError):  # a function of the graph
        return False
    return any(attr.name == _CONTAINER for attr in definition.attr)
