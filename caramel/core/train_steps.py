"""The training steps that a user gives for one job: one, or several by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from caramel.core.errors import FeedError, GraphError

StepName = str | int
"""What a step is called: a user's name, or its index where the user gave a list."""


def given_steps(train_op: Any, loss: Any, steps: Any) -> dict[StepName, tuple[Any, Any]]:
    """Train op and loss of each step, by its name, in the order in which they are given.

    Args:
        train_op, loss: of the only step; or mappings by name, or lists, of which the loss may be
            one for all.
        steps: in place of both, pairs of a train op and a loss: a mapping by name, or a list.

    Raises:
        GraphError: something is missing, given twice, or no pair.
    """
    if steps is not None:
        if train_op is not None or loss is not None:
            raise GraphError("give either steps, or train_op and loss, not both")
        named = _named(steps)
        if not named:
            raise GraphError(
                'steps must be a mapping such as {"d": (d_train, d_loss), "g": (g_train, g_loss)}, '
                f"or a list of such pairs, not {type(steps).__name__} {steps!r:.60}"
            )
        return {name: _pair(name, pair) for name, pair in named.items()}
    if train_op is None and loss is None:
        raise GraphError("nothing says what to train: give train_op and loss, or steps")
    train_ops, losses = _named(train_op), _named(loss)
    if train_ops is None:
        if losses is not None:
            raise GraphError("there are several losses, but one train_op; give one for each")
        return {0: (train_op, loss)}
    if losses is None:
        losses = dict.fromkeys(train_ops, loss)
    if not train_ops or train_ops.keys() != losses.keys():
        raise GraphError(
            f"train_op has the steps {told(train_ops)}, but loss {told(losses)}; give one of each "
            "for every step"
        )
    return {name: (each, losses[name]) for name, each in train_ops.items()}


def chosen(step: StepName | None, steps: Iterable[StepName]) -> StepName:
    """The step that is meant: the only one, unless one is named.

    Raises:
        FeedError: there are several and none is named, or there is none of that name.
    """
    known = list(steps)
    if step is None and len(known) == 1:
        return known[0]
    if step is None:
        raise FeedError(
            f"the job has the steps {told(known)}: say which one is meant, by step={known[0]!r}"
        )
    for name in known:
        # The step 0 of a list is not one that is called "0".
        if name == step and isinstance(name, str) == isinstance(step, str):
            return name
    if known == [0]:
        raise FeedError(f"the job has one step, which has no name: leave out step={step!r}")
    raise FeedError(f"the job has no step {step!r}; its steps are {told(known)}")


def told(steps: Iterable[StepName]) -> str:
    """Names of steps, for people."""
    return ", ".join(repr(step) for step in steps)


def _named(given: Any) -> dict[StepName, Any] | None:
    """What is given for several steps, by name; None if it is one thing."""
    if isinstance(given, Mapping):
        for name in given:
            if not isinstance(name, str) or not name:
                raise GraphError(f"a step is named by a string, not {name!r}")
        return dict(given)
    if isinstance(given, list | tuple):
        return dict(enumerate(given))
    return None


def _pair(name: StepName, given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise GraphError(f"step {name!r} must be a pair (train op, loss), not {given!r:.60}")
    return given[0], given[1]
