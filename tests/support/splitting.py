"""Plans in which large gradients are split."""

from __future__ import annotations

import dataclasses

from caramel.core.decision import Gate
from caramel.planning.search.split import split_gradients

ALL, SOME, NONE = "all", "some", "none"
CHOICES = {
    ALL: lambda number: True,
    SOME: lambda number: number % 2 == 0,
    NONE: lambda number: False,
}


def split_plan(plan, choice, *, most_bytes=3000, depth=1, gated=False):
    """A plan in which large gradients are split, and some or all groups deferred."""
    plan = split_gradients(plan, most_bytes)
    assert plan.decision.parts
    groups = [
        dataclasses.replace(group, deferred=CHOICES[choice](number), depth=depth)
        for number, group in enumerate(plan.decision.groups)
    ]
    gates = ()
    if gated:
        groups.sort(key=lambda group: not group.deferred)
        pairs = zip(groups[1:], groups, strict=False)
        gates = tuple(Gate(later.name, earlier.name) for later, earlier in pairs)
    return plan.deciding(groups=tuple(groups), gates=gates)
