"""Gives the user's sums of three and more tensors a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from caramel.core.dtypes import dtype_number
from caramel.core.names import partial_sum
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import copy_of

_OUTPUT_BEFORE, _OUTPUT_AFTER = "sum", "z"  # what functions call the outputs of AddN and AddV2


def order_sums(graph_def: Any, plan: Plan) -> Any:
    """Replace every sum of three or more tensors, also in functions, by a chain of additions.

    ``AddN`` begins with whichever operand's buffer it can take over, which differs from run to run
    and between workers, and with it the last bits of the sum. A chain of ``AddV2`` adds from left
    to right.
    """
    if not any(_is_open_sum(node) for node in _all_nodes(graph_def)):
        return graph_def
    ordered = copy_of(graph_def)
    _order(ordered.node, suffix="")
    for function in ordered.library.function:
        renamed = {
            f"{name}:{_OUTPUT_BEFORE}:0": f"{name}:{_OUTPUT_AFTER}:0"
            for name in _order(function.node_def, suffix=f":{_OUTPUT_AFTER}:0")
        }
        for node in function.node_def:
            for position, text in enumerate(node.input):
                node.input[position] = renamed.get(text, text)
        for key in list(function.ret):
            function.ret[key] = renamed.get(function.ret[key], function.ret[key])
    return ordered


def _all_nodes(graph_def: Any) -> Iterable[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _is_open_sum(node: Any) -> bool:
    """Whether a sum has no fixed order yet; those of variants (lists of tensors) are left alone."""
    return (
        node.op == "AddN"
        and node.attr["N"].i > 2
        and node.attr["T"].type != dtype_number("variant")
    )


def _order(nodes: Any, *, suffix: str) -> list[str]:
    """Replace the sums among `nodes`; returns their names.

    Args:
        suffix: what follows a node's name where another node reads its first output.
    """
    sums = [node for node in nodes if _is_open_sum(node)]
    for node in sums:
        operands = [text for text in node.input if not text.startswith("^")]
        controls = [text for text in node.input if text.startswith("^")]
        total = operands[0]
        for number, operand in enumerate(operands[1:-1]):
            partial = nodes.add(name=partial_sum(node.name, number), op="AddV2")
            partial.device = node.device
            partial.input.extend([total, operand])
            partial.attr["T"].CopyFrom(node.attr["T"])
            total = f"{partial.name}{suffix}"
        # In place of the sum, under its name: whoever reads it reads the chain's end.
        node.op = "AddV2"
        del node.input[:]
        node.input.extend([total, operands[-1], *controls])
        del node.attr["N"]
    return [node.name for node in sums]
