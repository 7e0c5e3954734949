"""In which order the parts of a step are called, and what is pending when one of them fails."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from networks import network

import caramel
from caramel.modifiers.defer import moved_ops
from caramel.pending import Pending


class Called:
    """In place of a runner: which part was called, in order."""

    def __init__(self, plan):
        self.parts, self._moved = [], moved_ops(plan)
        self.fails = None  # the part that does

    def run(self, tensors, targets, fed, what):
        return []

    def call(self, function, what):
        return function()

    def compile(self, tensors, targets, fed):
        part = "moved" if list(targets) == self._moved else "step" if targets else "counts"

        def call():
            if part == "counts":  # of tokens, as if all were there
                return [1] * len(tensors)
            self.parts.append(part)
            if part == self.fails:
                raise tf.errors.InvalidArgumentError(None, None, f"the {part} part failed")
            return []

        return call


@pytest.fixture(name="plan", scope="module")
def fixture_plan():
    """One that defers everything."""
    plan = caramel.ARModel(network("adam").context(), 2).plan
    groups = tuple(dataclasses.replace(group, deferred=True) for group in plan.groups)
    return caramel.ARModel(
        network("adam").context(), 2, plan=dataclasses.replace(plan, groups=groups)
    ).plan


def test_what_is_pending_is_called_before_the_step_beside_it(plan):
    """What it sends is needed first. Threads promise no order, so that of most steps counts."""
    called = Called(plan)
    pending = Pending(called, plan)
    for _ in range(101):
        pending.step([], ["train"], {}, "a step")
    pending.close()
    assert called.parts[0] == "step"
    pairs = list(zip(called.parts[1::2], called.parts[2::2], strict=True))
    assert len(pairs) == 100
    assert sum(pair == ("moved", "step") for pair in pairs) >= 90


@pytest.mark.parametrize("fails", ["moved", "step"])
def test_after_a_failure_nothing_is_pending(fails, plan):
    """What was computed from parameters whose updates have failed is dropped."""
    called = Called(plan)
    pending = Pending(called, plan)
    pending.step([], ["train"], {}, "a step")
    called.fails = fails
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"the {fails} part failed"):
        pending.step([], ["train"], {}, "a step")
    assert sorted(called.parts[1:]) == ["moved", "step"]
    called.fails, called.parts = None, []
    pending.flush("the rest")
    assert called.parts == []
    pending.step([], ["train"], {}, "a step")
    pending.close()
    assert called.parts == ["step"]
