"""One step of a model: what is known of it, its plan, and all plans that stand beside that."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caramel.analyzers.analysis import Analysis, Analyzer
from caramel.analyzers.loss import gradient_weights
from caramel.analyzers.ordered_state import ordered_analysis, tell_lost_overlap, tell_order
from caramel.analyzers.over_steps import StepFacts
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.errors import LossScaleError, PlanError
from caramel.core.facts import (
    MEAN,
    SUM,
    Fusions,
    GradientFactors,
    GradientFrontier,
    InputPipelines,
    LoopFrames,
    LossScales,
    Merging,
    ReplicaState,
    StateAccess,
    StateOrder,
    TrainingJob,
    Weight,
)
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.plan import Plan, SparseMethod
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.disk_cache import kept_plan
from caramel.core.util.fingerprint import this_machine
from caramel.core.util.stopwatch import Stopwatch
from caramel.models.assembly import Assembly
from caramel.models.plan_choice import OWN, PlanChoice
from caramel.models.scalar_scales import ScalarScales, scales_of_tensors
from caramel.models.variants import Variants
from caramel.planning.choose import Decision, choose, known_windows
from caramel.planning.compatibility import DECIDED, check_edges, check_fit, check_fused, kept_apart
from caramel.planning.complete import complete
from caramel.planning.options import Options
from caramel.planning.plain import plain_plan
from caramel.planning.what_if.explain import explain
from caramel.report.shown import ShownExplanation
from caramel.runtime.control.drift import ReplanSettings
from caramel.runtime.job import Job

if TYPE_CHECKING:
    from caramel.models.joint_steps import JointSteps

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Common:
    """What the steps of a model have in common.

    Attributes:
        cluster: the workers.
        devices: where the replica of each is.
        options: how steps are planned.
        analyzers: the built-in ones and the user's.
        sparse: how sparse gradients are aggregated.
        marks: whether steps leave marks.
        again: whether to plan again when steps take much longer than expected.
        assembly: the graph in which the plans of all steps stand.
        watch: told how long each part of the build takes.
    """

    cluster: Cluster
    devices: Sequence[str]
    options: Options
    analyzers: Sequence[Analyzer]
    sparse: SparseMethod
    marks: bool
    again: bool
    assembly: Assembly
    watch: Stopwatch

    def analysis(self, graph: OpGraph, job: TrainingJob, facts: Sequence[Any] = ()) -> Analysis:
        """What follows from a job and some facts."""
        return ordered_analysis(graph, job, facts, self.analyzers)


class StepModel:
    """A training step over many workers.

    Args:
        name: of the step.
        context: the job whose step it is.
        facts: what is known of it.
        common: what the steps of the model have in common.
        joint_steps: finds what does the step together with more.
        plan: the plan to carry out in place of a new one.
        cache_key: under which the plan is kept that proves the fastest; None to keep none.

    Attributes:
        context: the job whose step it is.
        facts: what is known of it.
        state: which variables differ between workers, whichever step is done.
        pipelines: the input pipelines of all steps.
        plan: everything that will happen, as pure data.
        is_given: whether the user gave it.
        plain: the plan that plans nothing.
        plans: which plans are tried.
        job: what sessions are given of it.
        windows: when each parameter can be aggregated; None if nothing is known of times.
        variants: by name, the plans that a session can change between.
        traffic: bytes that a step of `plan` sends between each pair of tasks.

    Raises:
        GraphError, PlanError: as `ARModel`.
    """

    def __init__(
        self,
        name: StepName,
        context: Context,
        facts: StepFacts,
        common: Common,
        joint_steps: JointSteps,
        *,
        plan: Plan | None = None,
        cache_key: str | None = None,
    ) -> None:
        self.context, self.facts, self._common = context, facts, common
        self.is_given = plan is not None
        analysis = facts.analysis
        self.state = facts.get(ReplicaState)
        self.pipelines = facts.get(InputPipelines)
        self._access = analysis.get(StateAccess)
        self._frames = analysis.get(LoopFrames)
        self._fusions = analysis.get(Fusions)
        self._graph = analysis.get(OpGraph)
        tell_order(context.op_graph, analysis.get(StateOrder))
        if len(common.devices) > 1:
            _tell_conditions(facts.get(Merging))
        plain = self._plain_plan(analysis)
        self.windows = known_windows(analysis)
        self.plain = plain
        if plan is None:
            kept = self._kept_plan(cache_key)
            decision = choose(plain, analysis, common.options, kept=kept)
            self.plan: Plan = self._completed(None, decision.plan)
        else:
            self.plan = self._completed(plan, plain)
            unplanned = dataclasses.replace(common.options, planner="plain")
            decision = choose(plain, analysis, unplanned)  # what is known of the job
            decision = dataclasses.replace(decision, plan=self.plan, source="given")
        if common.options.plans and common.options.scheduling and plain.workers > 1:
            tell_lost_overlap(context.op_graph, context.job, analysis, plain.gradients)
        common.watch.tell(f"the plan is {decision.source}")
        common.watch.note("plan")
        own = self.plan
        self.variants = Variants(
            common.assembly, context, lambda each: self._completed(each, own), OWN, own
        )
        self.traffic = self.variants[OWN].traffic
        self.plans = PlanChoice(
            name,
            self.variants,
            decision,
            plain,
            self._graph,
            self.analysis,
            common.options,
            is_given=self.is_given,
            again=common.again,
            cache_key=cache_key,
            cores=_cores(common.cluster),
            scales=ScalarScales(context, facts),
            joint_steps=joint_steps,
        )
        self.job = Job(
            context,
            common.assembly.graph,
            self.variants[OWN],
            self.state,
            self._access,
            self.pipelines,
            self._frames,
            self.plans,
        )

    @property
    def decision(self) -> Decision:
        """Why the plan is what it is, and what else was looked at; if several, the last one."""
        return self.plans.decision

    def analysis(self, facts: Sequence[Any] = ()) -> Analysis:
        """What follows from the job and some facts."""
        return self._common.analysis(
            self.context.op_graph, self.facts.job, [*self.facts.known, *facts]
        )

    def add_variant(self, plan: Plan, name: str) -> Plan:
        """Add another plan for the same step, for sessions to change to: see `ARModel`."""
        return self.plans.add(plan, name)

    def explain(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownExplanation:
        """What bounds a step of the plan, and why each group goes when it goes: see `ARModel`."""
        if self.plain.workers == 1:
            raise PlanError("there is nothing to explain: one worker aggregates nothing")
        if self.decision.outlook is None:
            raise PlanError(
                "nothing can be explained, because nothing is known of times: give "
                "ARModel(profile=...) a file that 'caramel profile' wrote, or explain after some "
                f"{ReplanSettings().first_after} steps of training with planner='search'"
            )
        measured = (measured,) if isinstance(measured, Timeline) else measured
        planner = self._common.options.planner
        explanation = explain(
            self._plan_of(measured),
            self.decision.outlook,
            job=self.context.job.train_op,
            planner="none, the plan was given" if self.is_given else planner,
            deferrable=self.decision.deferrable,
            measured=measured,
            measured_step_s=measured_step_s,
        )
        return ShownExplanation.of(explanation)

    def _plain_plan(self, analysis: Analysis) -> Plan:
        context, common = self.context, self._common
        frontier = analysis.get(GradientFrontier)
        weights = self._weights(analysis, frontier) if len(common.devices) > 1 else {}
        common.watch.note("analyse")
        return plain_plan(
            context.op_graph,
            context.job,
            frontier,
            analysis.get(GradientFactors),
            self.state,
            self.pipelines,
            analysis.get(StateOrder),
            devices=common.devices,
            pattern=common.options.pattern,
            sparse=common.sparse,
            marks=common.marks,
            weights=weights,
        )

    def _weights(self, analysis: Analysis, frontier: GradientFrontier) -> dict[str, Weight]:
        """How much each worker's gradient counts, by parameter.

        Raises:
            LossScaleError: nothing says how to make the whole batch's of the workers'.
        """
        job, scales = self.context.job, analysis.get(LossScales)
        for loss, scale in scales.of.items():
            if scale.doubt:
                _log.warning("%s", scale.doubt)
            if scale.problem and len(scales.of) == 1:
                raise LossScaleError(scale.problem)
            if scale.weight is not None and job.reduction is None and scale.weight != MEAN:
                _log.info("%s", _told(loss, scale.weight))
        return gradient_weights(scales, frontier, job, scales_of_tensors(self.context, self.facts))

    def _kept_plan(self, key: str | None) -> Plan | None:
        """The plan that proved the fastest in an earlier run, if it can be carried out."""
        kept = None if key is None else kept_plan(key)
        if kept is None:
            return None
        try:
            self._completed(kept, self.plain)
        except PlanError:
            return None
        return kept

    def _completed(self, given: Plan | None, own: Plan) -> Plan:
        """The step's own plan, with what the given one decides and all that follows from it."""
        job, graph = self.context.job, self._graph
        completed = complete(_decided(given, own), graph, job, self._access, self._frames)
        if given is not None:
            check_fit(given, completed)
            check_edges(completed, graph, self._frames)
            check_fused(completed, graph, self._fusions)
            for each in kept_apart(completed, graph, self._fusions):
                _log.warning("%s", each)
        return completed

    def _plan_of(self, measured: Sequence[Timeline]) -> Plan:
        """The plan that did traced steps; the decided one if there are none."""
        names = sorted({timeline.plan for timeline in measured if timeline.plan})
        if not names:
            return self.decision.plan
        if len(names) > 1:
            raise PlanError(
                "the traced steps were done by different plans, "
                + ", ".join(f"'{name}'" for name in names)
                + "; explain those of one plan at a time"
            )
        if names[0] not in self.variants:
            raise PlanError(
                f"the traced steps were done by a plan '{names[0]}', which this model does not have"
            )
        return self.variants.plan(names[0])


def _decided(plan: Plan | None, own: Plan) -> Plan:
    """The step's own plan with what the given one, if any, decides."""
    if plan is None:
        return own
    return dataclasses.replace(own, **{name: getattr(plan, name) for name in DECIDED})


def _tell_conditions(merging: Merging) -> None:
    """Warn of variables that each worker writes or not as its own examples say."""
    for name, ops in merging.conditions.items():
        _log.warning(
            "whether variable '%s' is written depends on each worker's own examples (by %s), so "
            "that no worker has the value of one device; the workers' values are %s",
            name,
            ", ".join(f"'{op}'" for op in ops),
            "added up" if name in merging.summed else "averaged",
        )


def _told(loss: TensorRef, weight: Weight) -> str:
    """How gradients are made one, for people."""
    if weight == SUM:
        return f"loss '{loss}' is a sum over the examples: gradients are added up"
    by = " and ".join(f"'{divisor.tensor}'" for divisor in weight.divisors) or "their number"
    return f"loss '{loss}' is divided by {by}: each worker's gradients count by its own"


def _cores(cluster: Cluster) -> int | None:
    """How many cores each worker has; None if this process does not know.

    Workers that were started on this machine share its cores. Where this process is one of several,
    the others are taken for alike. Of those within this process it is not told: they send nothing.
    """
    if cluster.kind == "local":
        return max(1, this_machine().cores // cluster.size)
    return None if cluster.task is None else this_machine().cores
