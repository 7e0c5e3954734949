"""The steps of a model, and what they become together with fetches that write.

A step whose fetches write what has to be aggregated or ordered, or read what has to be ordered, is
a step of its own, a *joint* one: its train op is the step's together with what is fetched. It is
analysed as any other, with the same proof that replicas cannot drift apart, and has a plan of its
own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence

from caramel.analyzers.beside import Beside
from caramel.analyzers.over_steps import StepFacts, differing_of, whole_pipelines, whole_state
from caramel.analyzers.racing import Racing, racing
from caramel.core.errors import AmbiguousGradientError, CaramelError, DriftError
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
from caramel.core.train_steps import StepName
from caramel.core.util.gc_pause import held_back
from caramel.models.step_model import Common, StepModel

_log = logging.getLogger(__name__)

_ADVICE = (
    "in session.step each worker runs what is fetched on its own part of the batch; do it in a "
    "call of its own, as one of several steps (Context(steps={...}), session.step(..., step=...)) "
    "or by session.run (on worker 0, with what is fed whole), or name its gradients "
    "(Context(gradients=...))"
)


class JointSteps:
    """Finds the step that does what is fetched; new ones are made once.

    Args:
        steps: the steps of the job by name.
        common: what they have in common.
    """

    def __init__(self, steps: Mapping[StepName, StepModel], common: Common) -> None:
        self._steps, self._common = steps, common
        self._beside: dict[StepName, Beside] = {}
        self._joint: dict[tuple[StepName, frozenset[str]], StepModel | None] = {}

    def joint(self, name: StepName, fetched: Sequence[str]) -> StepModel | None:
        """The joint step that does a step and what is fetched; None if the step itself can.

        Args:
            name: of the step.
            fetched: the ops that are fetched.

        Raises:
            GraphError: workers would not do alike what is fetched, or it cannot be distributed.
            FeedError: it reads an input pipeline that is no step's.
        """
        step = self._steps[name]
        in_order = _racing(step, fetched)
        only = in_order.reading  # may be done without, if need be
        if len(self._common.devices) == 1:
            joined = only = (*in_order.writing, *in_order.reading)
        else:
            joined = (*self._to_join(name, fetched), *in_order.reading)
        key = (name, frozenset(joined))
        if not joined:
            return None
        if key not in self._joint:
            told = ", ".join(f"'{op}'" for op in sorted(key[1]))
            try:
                self._joint[key] = self._found(name, sorted(key[1]), fetched)
            except CaramelError as error:
                if key[1] != set(only):
                    raise type(error)(
                        f"cannot fetch {told} in a step: {error}; {_ADVICE}"
                    ) from None
                _log.warning("%s may run before or behind what the step does: %s", told, error)
                self._joint[key] = None
        return self._joint[key]

    def _to_join(self, name: StepName, fetched: Sequence[str]) -> tuple[str, ...]:
        if name not in self._beside:
            self._beside[name] = _beside(self._steps[name])
        return self._beside[name].to_join(fetched)

    @held_back()
    def _found(self, name: StepName, joined: Sequence[str], fetched: Sequence[str]) -> StepModel:
        """The joint step. Scalars that are fetched, too, may tell what a train op minimises.

        They only help to find gradients: how these count is looked at in any case.
        """
        try:
            return self._joined(name, joined)
        except AmbiguousGradientError:
            scalars = tuple(_scalars(self._steps[name].context.op_graph, fetched))
            if not scalars:
                raise
        return self._joined(name, joined, scalars)

    def _joined(
        self, name: StepName, fetched: Sequence[str], scalars: tuple[TensorRef, ...] = ()
    ) -> StepModel:
        step = self._steps[name]
        base, known_job = step.context, step.facts.job
        graph, train_op = base.op_graph, base.job.train_op
        ran = graph.ancestors([train_op, *fetched])
        steps = [each for each in self._steps.values() if each.context.job.train_op in ran]
        trained = [each.context.job for each in steps]
        losses = dict.fromkeys(job.loss for job in trained if job.loss != base.job.loss)
        differing = differing_of(step.state)
        job = dataclasses.replace(
            known_job,
            other_losses=tuple(losses),
            given_gradients=_given(trained),
            told=frozenset(
                cut.gradient.parameter
                for each in steps
                for cut in each.facts.get(GradientFrontier).cuts
            ),
            forward=scalars,
            differing=differing,
            equal=frozenset(v.name for v in base.job.variables if v.name not in differing),
        )
        context = base.joined(job, [train_op, *fetched])
        known = (step.facts.get(StateAccess), step.facts.get(Merging))
        analysis = self._common.analysis(context.op_graph, context.job, known)
        state = analysis.get(ReplicaState)
        _refuse_differing_tables(state, step.state)
        whole = (
            whole_state(context.job, state, [state, step.state]),
            whole_pipelines(analysis.get(InputPipelines), [step.pipelines]),
        )
        options = self._common.options
        if step.is_given:
            options = dataclasses.replace(options, planner="plain")
        common = dataclasses.replace(self._common, options=options)
        facts = StepFacts(context.job, analysis, (*known, *whole))
        return StepModel(name, context, facts, common, self)


def _beside(step: StepModel) -> Beside:
    facts = step.facts
    return Beside(
        step.context.op_graph,
        step.context.job,
        facts.get(StateAccess),
        facts.get(WorkerInputs),
        facts.get(GradientFrontier),
        step.state,
        step.pipelines,
    )


def _racing(step: StepModel, fetched: Sequence[str]) -> Racing:
    facts = step.facts
    return racing(
        step.context.op_graph,
        step.context.job,
        facts.get(StateAccess),
        facts.get(LoopFrames),
        facts.get(WorkerInputs),
        facts.get(GradientFrontier),
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
