"""Completes a plan with what follows from its groups and the job."""

from __future__ import annotations

import dataclasses

from caramel.analyzers.deferral import Deferrals
from caramel.core.facts import LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.planning.held_updates import with_held_updates


def complete(
    plan: Plan, graph: OpGraph, job: TrainingJob, access: StateAccess, frames: LoopFrames
) -> Plan:
    """The plan with all that moves with its deferred groups, and the updates that are held back.

    Where something moves, an evaluation copy is needed: reading a variable in a replica takes the
    token that the next step waits for.

    Raises:
        PlanError: a group cannot be deferred; says why.
    """
    deferral = Deferrals(graph, job, access, frames, plan.gradients).of(plan.deferred)
    evaluation = plan.evaluation or bool(deferral.moved)
    completed = dataclasses.replace(plan, deferral=deferral, evaluation=evaluation)
    return with_held_updates(completed, graph, job, access, frames)
