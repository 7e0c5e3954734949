"""The second stage of a model: the plan of one step, and what of other plans can be carried out."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from caramel.analyzers.loss import gradient_weights
from caramel.analyzers.ordered_state import tell_lost_overlap, tell_order
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
    Weight,
)
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.time_facts import TransferWindows
from caramel.core.util.disk_cache import kept_plan
from caramel.core.util.fingerprint import digest, graph_hash
from caramel.core.util.progress import working
from caramel.core.util.stopwatch import Stopwatch
from caramel.core.version import __version__
from caramel.models.facts import JobFacts, KnownStep
from caramel.models.options import ModelOptions
from caramel.models.scalar_scales import scales_of_tensors
from caramel.planning.choose import Decision, known_windows
from caramel.planning.compatibility import (
    check_edges,
    check_fit,
    check_fused,
    check_placement,
    check_servers,
    kept_apart,
)
from caramel.planning.complete import complete
from caramel.planning.plain import plain_plan

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedStep:
    """One step of a job, and its plan.

    Attributes:
        known: what is known of it.
        plain: the plan that plans nothing.
        plan: the plan to carry out, complete.
        decision: why it is that, and what else was looked at.
        windows: when each parameter can be aggregated; None if nothing is known of times.
        is_given: whether the user gave the plan, so that nothing is to be decided.
        cache_key: under which the plan is kept that proves the fastest; None to keep none.
    """

    known: KnownStep
    plain: Plan
    plan: Plan
    decision: Decision
    windows: TransferWindows | None
    is_given: bool
    cache_key: str | None

    def completed(self, plan: Plan) -> Plan:
        """What is carried out for another plan: what that decides, the rest from the job.

        Raises:
            PlanError: it does not fit the job.
        """
        return _fitted(plan, self.plan, self.known)


@working("planning the transfers")
def plan_step(
    step: KnownStep, job: JobFacts, options: ModelOptions, given: Plan | None, stopwatch: Stopwatch
) -> PlannedStep:
    """Plan a step.

    Args:
        step: what is known of it.
        job: what is known of the whole job.
        options: what the user has chosen.
        given: the plan to carry out in place of a new one.
        stopwatch: told how long each part takes.

    Raises:
        GraphError: the step cannot be distributed.
        PlanError: `given` does not fit the job, or an unknown method is asked for.
    """
    analysis, planner = step.facts.analysis, options.planner
    tell_order(step.context.op_graph, step.get(StateOrder))
    if len(job.devices) > 1:
        _tell_conditions(step.get(Merging))
    plain = planner.plain(
        _plain_plan(step, job, options, stopwatch),
        step.analysis(step.measured),
        options.sparse,
    )
    key = None
    if given is None:
        if step.measured and options.plan is None and not options.analyzers:
            key = _cache_key(step, job, options)
        decision = planner.choose(plain, analysis, _kept_plan(key, plain, step))
        plan = _completed(decision.plan, step)
    else:
        plan = _fitted(given, plain, step)
        decision = planner.unplanned().choose(plain, analysis)  # what is known of the job
        decision = dataclasses.replace(decision, plan=plan, source="given")
    if planner.may_defer and plain.workers > 1:
        tell_lost_overlap(step.context.op_graph, step.context.job, analysis, plain.job.gradients)
    stopwatch.tell(f"the plan is {decision.source}")
    stopwatch.note("plan")
    windows = known_windows(analysis)
    return PlannedStep(step, plain, plan, decision, windows, given is not None, key)


def _plain_plan(
    step: KnownStep, job: JobFacts, options: ModelOptions, stopwatch: Stopwatch
) -> Plan:
    frontier = step.get(GradientFrontier)
    weights = _weights(step, frontier) if len(job.devices) > 1 else {}
    stopwatch.note("analyse")
    return plain_plan(
        step.context.op_graph,
        step.context.job,
        frontier,
        step.get(GradientFactors),
        step.get(ReplicaState),
        step.get(InputPipelines),
        devices=job.devices,
        pattern=options.planner.pattern,
        sparse=options.sparse,
        marks=options.marks,
        weights=weights,
    )


def _weights(step: KnownStep, frontier: GradientFrontier) -> dict[str, Weight]:
    """How much each worker's gradient counts, by parameter.

    Raises:
        LossScaleError: nothing says how to make the whole batch's of the workers'.
    """
    job, scales = step.context.job, step.get(LossScales)
    for loss, scale in scales.of.items():
        if scale.doubt:
            _log.warning("%s", scale.doubt)
        if scale.problem and len(scales.of) == 1:
            raise LossScaleError(scale.problem)
        if scale.weight is not None and job.reduction is None and scale.weight != MEAN:
            _log.info("%s", _told(loss, scale.weight))
    return gradient_weights(scales, frontier, job, scales_of_tensors(step))


def _kept_plan(key: str | None, plain: Plan, step: KnownStep) -> Plan | None:
    """The plan that proved the fastest in an earlier run, if it can be carried out."""
    kept = None if key is None else kept_plan(key)
    if kept is None:
        return None
    try:
        _fitted(kept, plain, step)
    except PlanError:
        return None
    return kept


def _cache_key(step: KnownStep, facts: JobFacts, options: ModelOptions) -> str:
    """Under what the plan of a step is kept that proves the fastest."""
    job = step.context.job
    known = (*step.measured, facts.devices, options.planner, options.sparse, __version__)
    known += (job.train_op, job.loss, job.reduction, job.loss_weight, sorted(job.replicated_feeds))
    return digest(graph_hash(step.context.graph_def), *map(repr, (*known, facts.cluster.where)))


def _completed(plan: Plan, step: KnownStep) -> Plan:
    """A plan with all that follows from what it decides."""
    return complete(
        plan,
        step.graph,
        step.context.job,
        step.get(StateAccess),
        step.get(LoopFrames),
        step.get(StateOrder),
        step.get(InputPipelines),
        step.get(ReplicaState),
    )


def _fitted(given: Plan, own: Plan, step: KnownStep) -> Plan:
    """A step's own plan with what a given one decides, and all that follows from that.

    Raises:
        PlanError: the given one does not fit the job.
    """
    check_servers(given, own)
    check_placement(given, own, step.graph)
    # First: what is decided for another job cannot even be completed.
    check_fit(given, own)
    plan = _completed(Plan(own.job, given.decision), step)
    check_edges(plan, step.graph, step.get(LoopFrames))
    fusions = step.get(Fusions)
    check_fused(plan, step.graph, fusions)
    for each in kept_apart(plan, step.graph, fusions):
        _log.warning("%s", each)
    return plan


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
