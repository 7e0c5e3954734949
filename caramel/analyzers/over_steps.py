"""Facts of a job with several steps, which hold whichever step is done when."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from caramel.analyzers.analysis import Analysis, Analyzer
from caramel.analyzers.gradients.regions import served_parameters
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.core.errors import CaramelError
from caramel.core.facts import (
    GradientFrontier,
    InputPipelines,
    Merging,
    ReplicaState,
    StateAccess,
    TrainingJob,
)
from caramel.core.graph import OpGraph
from caramel.core.train_steps import StepName

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class StepFacts:
    """What is known of one step.

    Attributes:
        job: what it trains.
        analysis: what follows from that.
        known: facts that hold for all steps, in place of those that follow from this one alone.
    """

    job: TrainingJob
    analysis: Analysis
    known: tuple[Any, ...] = ()

    def get(self, fact: type[Fact]) -> Fact:
        """A fact of the step, or the one that holds for all steps."""
        return next((k for k in self.known if isinstance(k, fact)), None) or self.analysis.get(fact)


def over_steps(
    graph: OpGraph,
    jobs: Mapping[StepName, TrainingJob],
    measured: Mapping[StepName, Sequence[Any]],
    analyzers: Sequence[Analyzer],
) -> dict[StepName, StepFacts]:
    """The facts of each step, by its name.

    Args:
        graph: the single-device graph.
        jobs: what each step trains.
        measured: facts that are known of each step already.
        analyzers: what finds the others.

    Raises:
        GraphError: a step cannot be distributed; the message begins with its name.
    """

    def analysis_of(name: StepName, job: TrainingJob, known: Sequence[Any]) -> Analysis:
        return ordered_analysis(graph, job, [*measured[name], *known], analyzers)

    if len(jobs) == 1:
        return {name: StepFacts(job, analysis_of(name, job, ())) for name, job in jobs.items()}
    first, *others = jobs.values()
    losses = dict.fromkeys(job.loss for job in others if job.loss != first.loss)
    every = dataclasses.replace(first, other_losses=tuple(losses))
    name = next(iter(jobs))
    whole = analysis_of(name, every, ())
    access = whole.get(StateAccess)
    # The cuts of all steps: what any of them aggregates is the same on all workers.
    cuts = [
        cut
        for name, job in jobs.items()
        for cut in _of_step(name, analysis_of(name, job, (access,)), GradientFrontier).cuts
    ]
    whole_cuts = GradientFrontier(tuple(cuts))
    merged = analysis_of(name, every, (access, whole_cuts)).get(Merging)
    common = (access, merged)
    serves = served_parameters(whole.get(OpGraph), every, whole.get(StateAccess))
    jobs = {name: dataclasses.replace(job, serves=serves) for name, job in jobs.items()}
    differing: frozenset[str] = frozenset()
    # What one step makes differ between workers, such as a moving average, differs for all steps:
    # none may let it reach a parameter. Each round may find more, so repeat until nothing changes.
    while True:
        jobs = {n: dataclasses.replace(job, differing=differing) for n, job in jobs.items()}
        analyses = {name: analysis_of(name, job, common) for name, job in jobs.items()}
        states = [_of_step(name, each, ReplicaState) for name, each in analyses.items()]
        found = differing.union(*(differing_of(state) for state in states))
        if found == differing:
            break
        differing = found
    # An input pipeline is the same for all steps, so it is sharded for all.
    pipelines = [_of_step(name, each, InputPipelines) for name, each in analyses.items()]
    return {
        name: StepFacts(
            jobs[name],
            analyses[name],
            (
                *common,
                whole_state(jobs[name], analyses[name].get(ReplicaState), states),
                whole_pipelines(analyses[name].get(InputPipelines), pipelines),
            ),
        )
        for name in jobs
    }


def differing_of(state: ReplicaState) -> frozenset[str]:
    """What differs between workers: names of variables, and the ops of tables' handles."""
    return frozenset((*state.local, *state.tables))


def whole_state(
    job: TrainingJob, own: ReplicaState, states: Iterable[ReplicaState]
) -> ReplicaState:
    """What a step knows of state, with what becomes of it in others."""
    states = list(states)
    local = {name for state in states for name in state.local}
    generators = {name for state in states for name in state.generators}
    seeds = {name for state in states for name in state.seeds}
    parameters = {name for state in states for name in state.parameters}
    others = [v.name for v in job.variables if not v.trainable]
    return dataclasses.replace(
        own,
        parameters=tuple(v.name for v in job.variables if v.name in parameters),
        shared=tuple(name for name in others if name not in local),
        local=tuple(name for name in others if name in local),
        generators=tuple(v.name for v in job.variables if v.name in generators),
        seeds=tuple(v.name for v in job.variables if v.name in seeds),
        tables=tuple(dict.fromkeys(table for state in states for table in state.tables)),
    )


def whole_pipelines(own: InputPipelines, every: Iterable[InputPipelines]) -> InputPipelines:
    """What a step knows of input pipelines, with those of others."""
    every = list(every)
    return dataclasses.replace(
        own,
        pipelines=tuple({p.op: p for each in every for p in each.pipelines}.values()),
        iterators=tuple(dict.fromkeys(name for each in every for name in each.iterators)),
    )


def _of_step(name: StepName, analysis: Analysis, fact: type[Any]) -> Any:
    try:
        return analysis.get(fact)
    except CaramelError as error:
        raise type(error)(f"step {name!r}: {error}") from error
