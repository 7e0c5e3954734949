"""Makes the graph of another plan for a job ready to stand beside the first one, on the same state.

Variables, slots, iterators, tables and whatever else has a ``shared_name`` are those of the first
plan: `replicate` names them after their worker and the user's node, whatever the plan.
"""

from __future__ import annotations

from typing import Any

from caramel.core import names, op_types
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import copy_of
from caramel.modifiers.replicate import offset_seed


def stand_beside(graph_def: Any, plan: Plan, number: int) -> Any:
    """The graph of a plan as it can be imported under the prefix of variant `number`.

    It goes without the evaluation copy: evaluation uses that of the first plan.
    """
    beside = copy_of(graph_def)
    del beside.node[:]
    beside.node.extend(n for n in graph_def.node if not names.is_for_evaluation(n.name))
    for node in beside.node:
        # A plan's own are the variables in which it keeps tensors of a step, and the queues of its
        # tokens.
        if "shared_name" in node.attr and names.is_added(node.name):
            _prefix(node, "shared_name", number)
        if "frame_name" in node.attr:
            _prefix(node, "frame_name", number)
        # These have their state in their kernels: with the same seed they would draw once more what
        # the first plan's have drawn. (Those in bodies of functions keep theirs.)
        if node.op in op_types.SEEDED_RANDOM:
            offset_seed(node, number * plan.workers)
    return beside


def _prefix(node: Any, key: str, number: int) -> None:
    """Put the variant's prefix before a name in an attribute."""
    own = names.in_variant(number, node.attr[key].s.decode())
    node.attr[key].s = own.encode()
