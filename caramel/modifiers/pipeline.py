"""Carries out a plan: an explicit list of modifiers and the loop that runs them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.core.errors import InvariantError
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.aggregate import aggregate
from caramel.modifiers.await_inputs import await_inputs
from caramel.modifiers.batch_weights import weigh
from caramel.modifiers.containers import contain
from caramel.modifiers.control_edges import serialize
from caramel.modifiers.count_once import count_once
from caramel.modifiers.defer import defer
from caramel.modifiers.fixed_sum_order import order_sums
from caramel.modifiers.place import place
from caramel.modifiers.positions import tell_positions
from caramel.modifiers.progress_marks import mark
from caramel.modifiers.replicate import replicate
from caramel.modifiers.serving.pulls import pull
from caramel.modifiers.serving.remote import read_rows
from caramel.modifiers.shard import shard
from caramel.modifiers.step_tokens import add_tokens
from caramel.modifiers.variable_ops import synchronise

Modifier = Callable[[Any, Plan], Any]
Check = Callable[[Any, Plan], None]

MODIFIERS: tuple[Modifier, ...] = (
    # First: all others work on the copies.
    replicate,
    count_once,
    serialize,
    order_sums,
    shard,
    await_inputs,
    # Before `aggregate`, which reads shares and lets gates wait for tokens.
    weigh,
    add_tokens,
    aggregate,
    pull,
    read_rows,
    defer,
    mark,
    # When all is there that is between ops of a step.
    place,
    synchronise,
    tell_positions,
    # Last: all that has state is there.
    contain,
)

STEP_MODIFIERS: tuple[Modifier, ...] = tuple(
    m for m in MODIFIERS if m not in (synchronise, tell_positions)
)
"""For a plan that stands beside another, whose ops do what is no training step."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The distributed GraphDef, and how long each modifier took, in seconds."""

    graph_def: Any
    seconds: tuple[tuple[str, float], ...]


def rewrite(
    graph_def: Any,
    plan: Plan,
    *,
    modifiers: Sequence[Modifier] = MODIFIERS,
    check: Check | None = None,
) -> Rewritten:
    """Apply modifiers in order to a copy of the graph.

    Args:
        check: called with what came out; where that is broken, or a modifier failed, all are
            applied once more with a check after each, to name the one that broke the graph.

    Raises:
        InvariantError: `check` found the graph broken. The message has the names of the modifiers
            that had run by then.
    """
    changed, seconds = graph_def, list[tuple[str, float]]()
    try:
        for modifier in modifiers:
            begin = time.perf_counter()
            changed = modifier(changed, plan)
            seconds.append((modifier.__name__, time.perf_counter() - begin))
            _log.debug("%s: %d nodes, %.3f s", modifier.__name__, len(changed.node), seconds[-1][1])
        if check is not None:
            check(changed, plan)
    except Exception:
        if check is not None:
            # A check takes as long as all modifiers, so usually there is only the one at the end.
            _check_each(check, graph_def, plan, modifiers[: len(seconds)])
        raise
    return Rewritten(changed, tuple(seconds))


def _check_each(check: Check, graph_def: Any, plan: Plan, modifiers: Sequence[Modifier]) -> None:
    """Raise what is wrong after the first modifier that breaks the graph."""
    for number, modifier in enumerate(modifiers, start=1):
        graph_def = modifier(graph_def, plan)
        _check(check, graph_def, plan, [each.__name__ for each in modifiers[:number]])


def _check(check: Check, graph_def: Any, plan: Plan, applied: list[str]) -> None:
    try:
        check(graph_def, plan)
    except InvariantError as error:
        raise type(error)(f"{error} (after {' -> '.join(applied)})") from error
