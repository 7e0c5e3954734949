"""The plain plan of a step with parameter servers: everything travels when it is there.

TensorFlow itself sends parameters in this way, in another order in each step (TicTac 2018, section
2.2). It is the baseline of every order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from caramel.analyzers.serving import serving
from caramel.core.decision import ALL_GATHER, Decided, Group, Pull
from caramel.core.facts import LoopFrames, ReplicaState, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.patterns import SERVER
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob, SparseMethod
from caramel.planning.serving.ownership import owners


def served_plan(
    plain: Plan,
    servers: Sequence[str],
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    state: ReplicaState,
    *,
    sparse: SparseMethod = "gather",
    trains: bool = True,
) -> Plan:
    """The plain plan of the same step with parameter servers.

    Args:
        plain: the plain plan without.
        servers: their devices.
        sparse: whether rows of sparse gradients travel, or whole matrices.
        trains: False for agents that only infer: a step computes the loss and updates nothing.

    Raises:
        PlanError: there are too many servers.
        UnsupportedOpError: a step of this kind cannot be done with servers.
    """
    planned = _served_job(plain.job, servers)
    if not trains:
        planned = dataclasses.replace(planned, gradients=(), weights=(), train_op=planned.loss)
    groups = tuple(
        _pushed(number, gradient, sparse) for number, gradient in enumerate(planned.gradients)
    )
    # Where parameters live does not depend on whether these workers train.
    homes = owners(_served_job(plain.job, servers), access, job.together)
    plan = Plan(planned, Decided(groups, owners=homes))
    found = serving(plan, graph, job, access, frames, state)
    pulls = tuple(Pull(each.variable) for each in found.readings if each.is_of_step)
    return plan.deciding(pulls=pulls)


def _served_job(job: PlannedJob, servers: Sequence[str]) -> PlannedJob:
    served = dataclasses.replace(job, servers=tuple(servers))
    return dataclasses.replace(served, constant=job.constant - served.served)


def _pushed(number: int, gradient: AggregatedGradient, sparse: SparseMethod) -> Group:
    """A gradient that goes to its server by itself."""
    gathers = gradient.indices is not None and (sparse == "gather" or not gradient.merge_duplicates)
    return Group(f"group_{number}", (gradient.parameter,), ALL_GATHER if gathers else SERVER)
