"""Completes a plan with what follows from what was decided and the job."""

from __future__ import annotations

import dataclasses

from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.sendings import sendings
from caramel.analyzers.serving import serving
from caramel.core.consequences import Consequences
from caramel.core.decision import Edge
from caramel.core.errors import PlanError
from caramel.core.facts import (
    InputPipelines,
    LoopFrames,
    ReplicaState,
    StateAccess,
    StateOrder,
    TrainingJob,
)
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.planning.held_updates import held_updates


def complete(
    plan: Plan,
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    order: StateOrder,
    pipelines: InputPipelines,
    state: ReplicaState,
) -> Plan:
    """The plan with all that follows from it; what it says of that already is left out.

    Args:
        order: how what the step reads and writes is ordered.
        state: which values differ between workers.

    Raises:
        PlanError: a group cannot be deferred, or a variable not be pulled ahead; says why.
        UnsupportedOpError: parameter servers cannot do the step.
    """
    deferral = Deferrals(graph, job, access, frames, plan.job.gradients).of(plan.deferred)
    # Evaluation needs a copy of its own where variables differ between workers, or an input
    # pipeline would give it a shard only.
    differs = plan.workers > 1 and bool(plan.job.local or pipelines.iterators)
    reads, held = held_updates(plan, deferral, graph, job, access, frames)
    consequences = Consequences(
        orders=tuple(Edge(*edge) for edge in order.edges),
        deferral=deferral,
        input_reads=reads,
        held=held,
        # Also where `order` draws writes in, or updates wait for inputs: evaluation goes without
        # those edges. And where something moves: reading a variable in a replica takes the token of
        # the next step. With servers it also has what is done once.
        evaluation=order.draws_in_writes
        or bool(held)
        or differs
        or bool(deferral.moved)
        or bool(plan.job.servers)
        # Nor should it run what only an order of the step's ops and tensors lets it wait for.
        or (plan.placement is not None and bool(plan.decision.edges or plan.placement.gates)),
        serving=serving(plan, graph, job, access, frames, state),
        sendings=sendings(plan.placement, graph, job),
    )
    _check_ahead(plan, consequences)
    return dataclasses.replace(plan, consequences=consequences)


def _check_ahead(plan: Plan, consequences: Consequences) -> None:
    """Raise if a variable is pulled ahead while something may still read the one before."""
    for pull in plan.decision.pulls:
        reading = consequences.serving.reading_of.get(pull.variable)
        if pull.ahead and (reading is None or reading.readers is None):
            raise PlanError(
                f"'{pull.variable}' cannot be pulled ahead: it is read inside a loop or a "
                "function, whose end nothing can wait for"
            )
