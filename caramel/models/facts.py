"""The first stage of a model: what is known of the job, its workers, and each of its steps."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis, Analyzer
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.analyzers.over_steps import StepFacts, over_steps
from caramel.analyzers.whole_feeds import whole_feeds
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.devices import replica_devices
from caramel.core.errors import CaramelError, GraphError, UnsupportedOpError
from caramel.core.facts import GradientFrontier, LossScales, ReplicaState
from caramel.core.graph import OpGraph
from caramel.core.op_types import PYTHON_CALLS
from caramel.core.profile import Profile
from caramel.core.row_split import RowSplits
from caramel.core.train_steps import StepName
from caramel.core.util.fingerprint import graph_hash, this_machine
from caramel.core.util.progress import working
from caramel.models.in_parts import in_parts
from caramel.models.options import GivenProfile, ModelOptions, by_step

_log = logging.getLogger(__name__)

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class KnownStep:
    """One step of a job, and what is known of it.

    Attributes:
        context: the job with this step alone.
        facts: what follows from it, or holds for all steps.
        analyzers: what finds facts.
        measured: the facts among these that were measured before.
    """

    context: Context
    facts: StepFacts
    analyzers: Sequence[Analyzer]
    measured: tuple[Any, ...] = ()

    def get(self, fact: type[Fact]) -> Fact:
        """A fact of the step, or the one that holds for all steps."""
        return self.facts.get(fact)

    @property
    def graph(self) -> OpGraph:
        """The single-device graph, with the order that was found for what reads and writes."""
        return self.facts.analysis.get(OpGraph)

    def analysis(self, facts: Sequence[Any] = ()) -> Analysis:
        """What follows from the step and some more facts, such as measured ones."""
        graph, job = self.context.op_graph, self.facts.job
        return ordered_analysis(graph, job, [*self.facts.known, *facts], self.analyzers)


@dataclass(frozen=True)
class JobFacts:
    """What is known of a job.

    Attributes:
        context: the single-device job.
        cluster: the workers, and the parameter servers if there are any.
        devices: where the replica of each worker is.
        steps: its steps by name.
    """

    context: Context
    cluster: Cluster
    devices: tuple[str, ...]
    steps: Mapping[StepName, KnownStep]

    @property
    def cores(self) -> int | None:
        """How many cores each worker has; None if this process does not know.

        Workers that were started on this machine share its cores. Where this process is one of
        several, the others are taken for alike. Of those within this process it is not told: they
        send nothing.
        """
        if self.cluster.kind == "local":
            return max(1, this_machine().cores // self.cluster.size)
        return None if self.cluster.task is None else this_machine().cores


@working("analysing the job")
def find_facts(context: Context, cluster: Cluster, options: ModelOptions) -> JobFacts:
    """What is known of a job and its workers.

    Args:
        context: the single-device job.
        cluster: the workers, and the parameter servers if there are any.
        options: what the user has chosen.

    Raises:
        GraphError: the job cannot be distributed.
        ClusterError: devices are named that the workers do not have.
        ProfileError: a profile cannot be read, or is about another job or number of workers.
    """
    context = context.feeding_whole(_told_whole_feeds(context))
    facts = _facts(context, cluster, options)
    divided = in_parts(context, {name: each.facts for name, each in facts.steps.items()}, cluster)
    if divided is context or not divided.row_splits.splits:
        return _about(facts, divided)
    try:
        found = _facts(divided, cluster, options)
        _check_alike(facts, found)
    except CaramelError as error:  # what is whole is always right
        splits = divided.row_splits
        reasons = {split.parameter.name: str(error) for split in splits.splits}
        return _about(facts, context.in_parts(RowSplits(reasons=reasons | dict(splits.reasons))))
    return found


def _about(facts: JobFacts, context: Context) -> JobFacts:
    """The same facts, of a job whose context says something more."""
    own = context.steps
    steps = {n: dataclasses.replace(step, context=own[n]) for n, step in facts.steps.items()}
    return dataclasses.replace(facts, context=context, steps=steps)


def _check_alike(facts: JobFacts, found: JobFacts) -> None:
    """Raise unless as much is known of a job whose parameters are split as of the job itself."""
    for name, step in facts.steps.items():
        own = found.steps[name]
        own.get(GradientFrontier)
        if own.get(LossScales) != step.get(LossScales):
            raise GraphError("how the loss counts would not be known if it were split")
        if own.get(ReplicaState).local != step.get(ReplicaState).local:
            raise GraphError("what workers have themselves would be another if it were split")


def _facts(context: Context, cluster: Cluster, options: ModelOptions) -> JobFacts:
    devices = replica_devices(cluster.devices, options.device_list, may_share=options.may_share)
    _refuse_remote_python(context.op_graph, cluster)
    own = context.steps
    profiles: Mapping[StepName, GivenProfile] = by_step(options.profile, list(own), "profile")
    measured = {name: _measured(profiles.get(name), context, len(devices)) for name in own}
    analyzers: tuple[Analyzer, ...] = (*ANALYZERS, *options.analyzers)
    jobs = {name: step.job for name, step in own.items()}
    facts = over_steps(context.op_graph, jobs, measured, analyzers)
    steps = {
        name: KnownStep(step, facts[name], analyzers, measured[name]) for name, step in own.items()
    }
    return JobFacts(context, cluster, devices, steps)


def _measured(profile: GivenProfile | None, context: Context, workers: int) -> tuple[Any, ...]:
    """The facts of a profile that are about this job.

    Raises:
        ProfileError: it cannot be read, or is about another job or another number of workers.
    """
    if profile is None:
        return ()
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    timing = known.timing_of(graph_hash(context.captured.graph_def))
    if workers == 1:  # its link is as fast as that of one among several
        return (timing, *known.networks[:1], known.calibration)
    return (timing, known.network(workers), known.calibration)


def _told_whole_feeds(context: Context) -> frozenset[str]:
    """The placeholders that do not go with the examples, which are logged with the reason."""
    jobs = [step.job for step in context.steps.values()]
    found = whole_feeds(context.op_graph, jobs)
    for name, reason in found.items():
        _log.warning("'%s' is fed whole to every worker: %s", name, reason)
    return frozenset(found)


def _refuse_remote_python(graph: OpGraph, cluster: Cluster) -> None:
    """Python functions run only in the process that defined them."""
    if cluster.kind == "embedded":
        return
    for op in graph:
        if op.kind in PYTHON_CALLS:
            raise UnsupportedOpError(
                f"'{op.name}' ({op.kind}) calls a Python function, which exists in this process "
                "only; workers in other processes cannot run it: write it with TensorFlow's ops, "
                "or call it in the dataset"
            )
