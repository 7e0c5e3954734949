"""Keeps what a session has apart from that of other sessions.

TensorFlow can isolate a session, but then its state ends with the worker that drives it, and nobody
else reads it: not agents, and not whoever goes on after a loss. So all state is in two of
TensorFlow's *containers*: what is on parameter servers, and what is on the workers. The graph has
marks in place of their names; a session puts its own names there, of the same length, before it
sends the graph.

Of the containers that a user has set, only the names are left, in those of what was shared in them:
what a session drops in the end are its own two.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from caramel.core.devices import task_of
from caramel.core.names import ON_SERVERS, ON_WORKERS
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import copy_of

_CONTAINER, _SHARED = "container", "shared_name"


def contain(graph_def: Any, plan: Plan) -> Any:
    """Give each op with state its container."""
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
        users, shared = node.attr[_CONTAINER].s, node.attr[_SHARED].s
        node.attr[_CONTAINER].s = container.encode()
        if users and shared:  # without a name it is not shared
            node.attr[_SHARED].s = shared + b":" + users  # which has no colon


@cache
def _has_container(kind: str) -> bool:
    """Whether ops of a kind have a container, also where the graph does not say which."""
    try:
        definition = tf.Graph().op_def_for_type(kind)
    except (KeyError, tf.errors.NotFoundError):  # a function of the graph
        return False
    return any(attr.name == _CONTAINER for attr in definition.attr)
