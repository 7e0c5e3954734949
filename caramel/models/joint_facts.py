"""What is known of a step that is done together with fetches that write: a *joint* step.

Its train op is the step's together with what is fetched. It is analysed as any other, with the same
proof that replicas cannot drift apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from caramel.analyzers.beside import Beside
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.analyzers.over_steps import StepFacts, differing_of, whole_pipelines, whole_state
from caramel.analyzers.racing import Racing, racing
from caramel.core.errors import AmbiguousGradientError, DriftError
from caramel.core.facts import (
    GradientFrontier,
    InputPipelines,
    LoopFrames,
    Merging,
    RawGradient,
    ReplicaState,
    StateAccess,
    TrainingJob,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.models.facts import KnownStep


def joint_facts(
    step: KnownStep, steps: Collection[KnownStep], joined: Sequence[str], fetched: Sequence[str]
) -> KnownStep:
    """What is known of the step that is done together with what is fetched.

    Scalars that are fetched, too, may tell what a train op minimises. They only help to find
    gradients: how these count is looked at in any case.

    Args:
        step: what is known of it alone.
        steps: all steps of the job.
        joined: the ops that belong to the joint step.
        fetched: these and all others that are fetched.

    Raises:
        GraphError: workers would not do alike what is fetched.
    """
    try:
        return _known(step, steps, joined, ())
    except AmbiguousGradientError:
        scalars = tuple(_scalars(step.context.op_graph, fetched))
        if not scalars:
            raise
    return _known(step, steps, joined, scalars)


def _known(
    step: KnownStep,
    steps: Collection[KnownStep],
    joined: Sequence[str],
    scalars: tuple[TensorRef, ...],
) -> KnownStep:
    base, state = step.context, step.get(ReplicaState)
    graph, train_op = base.op_graph, base.job.train_op
    ran = graph.ancestors([train_op, *joined])
    together = [each for each in steps if each.context.job.train_op in ran]
    trained = [each.context.job for each in together]
    losses = dict.fromkeys(job.loss for job in trained if job.loss != base.job.loss)
    differing = differing_of(state)
    job = dataclasses.replace(
        step.facts.job,
        other_losses=tuple(losses),
        given_gradients=_given(trained),
        told=frozenset(
            cut.gradient.parameter for each in together for cut in each.get(GradientFrontier).cuts
        ),
        forward=scalars,
        differing=differing,
        equal=frozenset(v.name for v in base.job.variables if v.name not in differing),
    )
    context = base.joined(job, [train_op, *joined])
    known = (step.get(StateAccess), step.get(Merging))
    analysis = ordered_analysis(context.op_graph, context.job, known, step.analyzers)
    own = analysis.get(ReplicaState)
    _refuse_differing_tables(own, state)
    whole = (
        whole_state(context.job, own, [own, state]),
        whole_pipelines(analysis.get(InputPipelines), [step.get(InputPipelines)]),
    )
    facts = StepFacts(context.job, analysis, (*known, *whole))
    return KnownStep(context, facts, step.analyzers)


def beside(step: KnownStep) -> Beside:
    """Finds what fetches have to be done together with a step."""
    return Beside(
        step.context.op_graph,
        step.context.job,
        step.get(StateAccess),
        step.get(WorkerInputs),
        step.get(GradientFrontier),
        step.get(ReplicaState),
        step.get(InputPipelines),
    )


def racing_with(step: KnownStep, fetched: Sequence[str]) -> Racing:
    """What of fetches would run in no order with what a step reads and writes."""
    return racing(
        step.context.op_graph,
        step.context.job,
        step.get(StateAccess),
        step.get(LoopFrames),
        step.get(WorkerInputs),
        step.get(GradientFrontier),
        fetched,
    )


def _scalars(graph: OpGraph, ops: Sequence[str]) -> Iterator[TensorRef]:
    """The floating-point scalars that ops put out."""
    for name in ops:
        outputs = graph[name].outputs
        if outputs and outputs[0].shape == () and outputs[0].dtype.startswith(("float", "bfloat")):
            yield TensorRef(name)


def _given(jobs: Sequence[TrainingJob]) -> tuple[RawGradient, ...]:
    """The gradients that the user named for all of the jobs."""
    return tuple(dict.fromkeys(each for job in jobs for each in job.given_gradients))


def _refuse_differing_tables(state: ReplicaState, known: ReplicaState) -> None:
    for table in state.tables:
        if table not in known.tables:
            raise DriftError(
                f"replicas would drift apart: values that differ between workers are put into "
                f"table '{table}', of which each worker has its own"
            )
