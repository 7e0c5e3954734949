"""In which order the parts of a step are called."""

from __future__ import annotations

import dataclasses

from networks import network

import caramel
from caramel.modifiers.defer import moved_ops
from caramel.pending import Pending


class Called:
    """In place of a runner: which part was called, in order."""

    def __init__(self, plan):
        self.parts, self._moved = [], moved_ops(plan)

    def run(self, tensors, targets, fed, what):
        return []

    def call(self, function, what):
        return function()

    def compile(self, tensors, targets, fed):
        part = "moved" if list(targets) == self._moved else "step"

        def call():
            self.parts.append(part)
            return []

        return call


def test_what_is_pending_is_called_before_the_step_beside_it():
    """What it sends is needed first. Threads promise no order, so that of most steps counts."""
    plan = caramel.ARModel(network("adam").context(), 2).plan
    groups = tuple(dataclasses.replace(group, deferred=True) for group in plan.groups)
    model = caramel.ARModel(
        network("adam").context(), 2, plan=dataclasses.replace(plan, groups=groups)
    )
    called = Called(model.plan)
    pending = Pending(called, model.plan)
    for _ in range(101):
        pending.step([], ["train"], {}, "a step")
    pending.close()
    assert called.parts[0] == "step"
    pairs = list(zip(called.parts[1::2], called.parts[2::2], strict=True))
    assert len(pairs) == 100
    assert sum(pair == ("moved", "step") for pair in pairs) >= 90
