"""Completes a plan with what follows from its groups and the job."""

from __future__ import annotations

import dataclasses

from caramel.facts import LoopFrames, StateAccess, TrainingJob
from caramel.graph import OpGraph
from caramel.plan import Plan
from caramel.planning.deferral import Deferrals
from caramel.planning.hold import with_held_updates


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
