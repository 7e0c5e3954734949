"""In which order the parts of a step are called, and what is pending when one of them fails."""

from __future__ import annotations

import dataclasses
from unittest.mock import Mock

import pytest
import tensorflow as tf

import caramel
from caramel.core.names import token_filled
from caramel.modifiers.defer import moved_ops
from caramel.modifiers.step_tokens import token_variables
from caramel.native.session import UnreadError
from caramel.runtime.steps.deferred import Pending
from tests.support.networks import network


class Called:
    """In place of a runner: which part was called, in order."""

    def __init__(self, plan):
        self.parts, self._moved = [], moved_ops(plan)
        self.fails = None  # the part that does
        self.failure = None  # how; by default an op has failed
        self.counts = []  # of each token, the next times they are counted; then all are there

    def run(self, tensors, targets, fed, what, options=None):
        return []

    def call(self, function, what, options=None):
        return function()

    def compile(self, tensors, targets, fed, options=None):
        part = {(): "counts", ("train",): "step"}.get(tuple(targets), "tokens")
        part = "moved" if list(targets) == self._moved else part

        def call():
            if part == "counts":
                return self.counts.pop(0) if self.counts else [1] * len(tensors)
            if part != "tokens":
                self.parts.append(part)
            if part == self.fails:
                raise self.failure or tf.errors.InvalidArgumentError(
                    None, None, f"the {part} part failed"
                )
            return []

        return call


@pytest.fixture(name="plan", scope="module")
def fixture_plan():
    """One that defers everything."""
    plan = caramel.ARModel(network("adam").context(), 2).plan
    groups = tuple(dataclasses.replace(group, deferred=True) for group in plan.decision.groups)
    return caramel.ARModel(network("adam").context(), 2, plan=plan.deciding(groups=groups)).plan


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


def test_a_token_that_is_taken_after_the_failure_was_told_is_put_back(plan):
    """A worker may begin a call that has failed on another one already."""
    called = Called(plan)
    pending = Pending(called, plan)
    tokens = len(token_variables(plan)) * plan.workers
    called.fails, called.counts = "step", [[1] * tokens, [1] * (tokens - 1) + [0]]
    filled = token_filled(plan.workers - 1, token_variables(plan)[-1])
    called.compile = Mock(side_effect=called.compile)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the step part failed"):
        pending.step([], ["train"], {}, "a step")
    pending.close()
    asked = [list(call.args[1]) for call in called.compile.call_args_list]
    assert asked == [["train"], [], [], [filled], []]


def test_a_step_whose_results_cannot_be_read_was_done(plan):
    called = Called(plan)
    pending = Pending(called, plan)
    pending.step([], ["train"], {}, "a step")
    called.fails, called.failure = "step", UnreadError("no memory")
    with pytest.raises(UnreadError):
        pending.step([], ["train"], {}, "a step")
    assert pending.parts_done == 1
    called.fails = None
    pending.flush("the rest")
    pending.close()
    assert pending.parts_done == 2
    assert called.parts[3:] == ["moved"]


def test_who_prepares_again_after_an_interruption_puts_no_token_twice(plan):
    """With two tokens a step would not wait for the one before."""
    called = Called(plan)
    called.compile = Mock(side_effect=called.compile)
    pending = Pending(called, plan)

    def interrupted(function, what):
        function()
        raise KeyboardInterrupt

    called.call = interrupted
    with pytest.raises(KeyboardInterrupt):
        pending.begin()
    called.call = lambda function, what: function()
    pending.begin()
    pending.close()
    asked = [list(call.args[1]) for call in called.compile.call_args_list]
    assert asked == [pending.preparation]


def test_who_prepares_again_after_a_failure_puts_what_is_missing(plan):
    called = Called(plan)
    called.compile = Mock(side_effect=called.compile)
    pending = Pending(called, plan)
    called.fails = "tokens"
    with pytest.raises(tf.errors.InvalidArgumentError):
        pending.begin()
    called.fails = None
    pending.begin()
    pending.close()
    asked = [list(call.args[1]) for call in called.compile.call_args_list]
    assert asked == [pending.preparation, [], pending.marks.clears]
