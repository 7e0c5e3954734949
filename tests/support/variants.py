"""Several plans for one job, and training that changes between them."""

from __future__ import annotations

import dataclasses
from typing import Any

import caramel
from caramel.core.decision import Gate
from caramel.core.plan import Plan
from tests.support.deferring import deferred

STEPS = 8  # two for each of four plans
ALL, SOME, GROUPED, PLAIN = "all deferred", "some deferred", "grouped", "plain"


def grouped(model: caramel.ARModel) -> Plan:
    """One half of the parameters in a group, the other in a deferred one, in several chunks."""
    names = [group.members[0] for group in model.plan.decision.groups]
    half = len(names) // 2
    first, second = (
        dataclasses.replace(
            model.plan.decision.groups[0], name=name, members=tuple(members), depth=depth
        )
        for name, members, depth in (("one", names[:half], 2), ("two", names[half:], 3))
    )
    second = dataclasses.replace(second, deferred=True)
    if not half:
        return model.plan.deciding(groups=(second,))
    return model.plan.deciding(groups=(first, second), gates=(Gate("one", "two"),))


def plans_of(model: caramel.ARModel) -> dict[str, Plan]:
    """Other plans for the job of a model with a plain plan."""
    return {ALL: deferred(model, "every"), SOME: deferred(model, "some"), GROUPED: grouped(model)}


def with_variants(
    context: caramel.Context, workers: Any, *, own: str | None = None, check: bool = True
) -> caramel.ARModel:
    """A model with four plans; the plain one comes first, unless another is named."""
    plain = caramel.ARModel(context, workers, pattern="shuffle", check=check)
    plans = plans_of(plain)
    if own is None:
        model = plain
    else:
        first, plans[PLAIN] = plans.pop(own), plain.plan
        model = caramel.ARModel(context, workers, plan=first, check=check)
    for name, plan in plans.items():
        model.add_variant(plan, name)
    return model


def in_turn(model: caramel.ARModel, step: int, every: int) -> str:
    """The plan of a step when the plans follow each other, each for some steps."""
    names = list(model.variants)
    return names[(step // every) % len(names)]


def plain_training(job, workers, *, steps=STEPS, feeds=None):
    """Losses and variables of training by the plain plan alone."""
    with caramel.ARModel(job.context(), workers, pattern="shuffle").session() as session:
        losses = [session.step(feeds[n] if feeds else job.feed) for n in range(steps)]
        return losses, session.variables()
