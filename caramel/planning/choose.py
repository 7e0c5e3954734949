"""Chooses a plan from the facts that are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from caramel.analyzers.analysis import Analysis
from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.fusions import find_cycle
from caramel.analyzers.workload import workload_of
from caramel.core.calibration import Calibration
from caramel.core.decision import FACTORS, Edge, Group
from caramel.core.devices import Device
from caramel.core.errors import MissingFactError, PlanError
from caramel.core.facts import Fusions, GradientFrontier, LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.core.time_facts import ActivationOrder, NetworkModel, TimingTable, TransferWindows
from caramel.core.util.sizes import bytes_text
from caramel.core.workload import Product
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.control_edges import serialize
from caramel.planning.gates import split_between_all
from caramel.planning.options import Options
from caramel.planning.paper.plan import paper_plan
from caramel.planning.search.descent import Scored
from caramel.planning.search.factoring import factored
from caramel.planning.search.search import Found, other_sides, search
from caramel.planning.serving.received import WorkerStep
from caramel.simulation.contention import stretched
from caramel.simulation.hardware import hardware_of

_NO_DIFFERENCE_MS = 0.05

UNFACTORED = "without factors"
"""What a plan is called that is like others but sends no factors."""


@dataclass(frozen=True)
class Decision:
    """Which plan was chosen, and from what.

    Attributes:
        plan: the chosen one, not yet completed (`complete`).
        source: a word on what it is made from.
        plain: the plain plan.
        outlook: for predictions; None if nothing is known of times.
        found: what a search has found; None if there was none.
        deferrable: why gradients cannot be deferred together, or None.
        alternatives: further plans that are worth a trial, the most promising first.
        is_kept: whether the plan is one that proved the fastest in an earlier run.
        worker: with parameter servers, a worker's step with its times; None if nothing is known of
            these.
    """

    plan: Plan
    source: str
    plain: Plan
    outlook: Outlook | None = None
    found: Found | None = None
    deferrable: Callable[[frozenset[str]], str | None] = lambda parameters: None
    alternatives: tuple[tuple[str, Plan], ...] = ()
    is_kept: bool = False
    worker: WorkerStep | None = None


def known_windows(analysis: Analysis) -> TransferWindows | None:
    """When each parameter can be aggregated, if times of ops are known."""
    try:
        return analysis.get(TransferWindows)
    except MissingFactError:
        return None


def choose(
    plain: Plan, analysis: Analysis, options: Options, *, kept: Plan | None = None
) -> Decision:
    """The plan that the options ask for, as far as facts are known.

    Without times of ops and a model of the network it is the plain plan.

    Args:
        plain: the plain plan.
        analysis: what is known of the job.
        options: what the user wants.
        kept: the plan that proved the fastest in an earlier run of the same job with the same facts
            and options; there is no search then.

    Raises:
        PlanError: the network model is of another number of workers.
    """
    if plain.workers == 1:
        return Decision(plain, "plain", plain)
    try:
        timing, network = analysis.get(TimingTable), analysis.get(NetworkModel)
    except MissingFactError as error:
        source = f"plain, because nothing is known of times: {error}" if options.plans else "plain"
        return Decision(plain, source, plain)
    if network.workers != plain.workers:
        raise PlanError(f"the network model is of {network.workers} workers, not {plain.workers}")
    graph, job, frames = analysis.get(OpGraph), analysis.get(TrainingJob), analysis.get(LoopFrames)
    deferrals = Deferrals(graph, job, analysis.get(StateAccess), frames, plain.job.gradients)
    edges = edges_of(analysis) if options.serialization else ()
    # One order of transfers needs groups that are split between all workers (`gates`).
    if options.plans and options.scheduling and options.in_flight_bytes == 0:
        plain = split_between_all(plain)
    outlook = _outlook(plain, analysis, deferrals, edges)
    if not options.plans:
        return Decision(plain, "plain", plain, outlook, deferrable=deferrals.reason_against)
    if kept is not None and options.planner == "search":
        plan = Plan(plain.job, kept.decision)
        source = "what proved the fastest in an earlier run"
        return Decision(
            plan, source, plain, outlook, deferrable=deferrals.reason_against, is_kept=True
        )
    paper = _paper(plain, analysis, options, deferrals, edges)
    source = f"from the times of {len(timing.seconds)} ops"
    if options.planner == "paper":
        return Decision(paper, source, plain, outlook, deferrable=deferrals.reason_against)
    searched = outlook
    own = paper.decision
    starts = [Candidate("paper", own.groups, own.gates, options.serialization)]
    if options.sends_factors and _on_processors(timing, plain):
        searched, unfactored = factored(outlook, deferrals.reason_against, options)
        if searched is not outlook:
            # What is left if processors turn out to differ.
            starts.append(dataclasses.replace(unfactored, name=UNFACTORED))
    found = search(
        searched,
        starts,
        deferrable=deferrals.reason_against,
        options=options,
    )
    if searched is not outlook:  # the plain plan has no factors
        unplanned = Candidate("plain", plain.decision.groups, ordered=False)
        scored = Scored(unplanned, outlook.predict(unplanned).step_s)
        found = dataclasses.replace(found, plain=scored)
    sides = _Sides(
        found.best.step_s,
        other_sides(
            found.best.candidate, searched, deferrable=deferrals.reason_against, options=options
        ),
        deferrals.reason_against,
    )
    return Decision(
        _planned(plain, found.best.candidate, edges, outlook, sides),
        f"'{found.best.candidate.name}', {source}",
        plain,
        outlook,
        found,
        deferrals.reason_against,
        tuple(
            (each.candidate.name, _planned(plain, each.candidate, edges, outlook))
            for each in found.others
        ),
    )


def _on_processors(timing: TimingTable, plan: Plan) -> bool:
    """Whether processors compute everything, as far as is known."""
    kinds = {Device.parse(device).kind for device in plan.job.devices}
    return (timing.on_processor or timing.cores is not None) and kinds <= {None, "CPU"}


@dataclass(frozen=True)
class _Sides:
    """Why each group of a plan is on its side: in its step, or deferred.

    Attributes:
        step_s: the plan's.
        other_s: by the name of a group the step if it was on the other side.
        deferrable: why gradients cannot be deferred together, or None.
    """

    step_s: float
    other_s: Mapping[str, float]
    deferrable: Callable[[frozenset[str]], str | None]

    def reason(self, group: Group, parameters: Iterable[str]) -> str:
        """What would be if it was on the other side; nothing if that is not known."""
        against = None
        if not group.deferred:
            against = self.deferrable(frozenset(parameters))
        if against is not None:
            return f"; it cannot be deferred: {against}"
        if group.name not in self.other_s:
            return ""
        side = "in its step" if group.deferred else "deferred"
        longer_ms = (self.other_s[group.name] - self.step_s) * 1e3
        if abs(longer_ms) < _NO_DIFFERENCE_MS:
            return f"; {side} it would make no difference"
        text = "longer" if longer_ms > 0 else "shorter"  # which the search had no budget to try
        return f"; {side} it would make the step {abs(longer_ms):.1f} ms {text}"


def _planned(
    plain: Plan,
    candidate: Candidate,
    edges: tuple[Edge, ...],
    outlook: Outlook,
    sides: _Sides | None = None,
) -> Plan:
    """The plan of a candidate; the reason of each group is what is predicted of it."""
    times = outlook.predict(candidate).groups
    workload = outlook.workload(candidate.ordered)
    ready, needed, end_s = workload.ready_s, workload.needed_s, workload.computation_s
    plan = plain.deciding(
        parts=candidate.parts,
        groups=candidate.groups,
        gates=candidate.gates,
        edges=edges if candidate.ordered else (),
    )
    groups = []
    for group in candidate.groups:
        parameters = [plan.parameter(member) for member in group.members]
        ready_s = max(ready.get(name, 0.0) for name in parameters)
        needed_s = min(needed.get(name, end_s) for name in parameters)
        own = times[group.name]
        place = (
            f"the next step, which needs it at {needed_s * 1e3:.2f} ms"
            if group.deferred
            else "its step"
        )
        reason = (
            f"ready at {ready_s * 1e3:.2f} ms, goes in {place}: predicted from "
            f"{own.begin_s * 1e3:.2f} to {own.end_s * 1e3:.2f} ms"
        )
        if group.pattern == FACTORS:
            reason += _factored(workload.product(group.members[0]), plan.bytes(group))
        elif sides is not None:
            reason += sides.reason(group, parameters)
        groups.append(dataclasses.replace(group, reason=reason))
    return plan.deciding(groups=tuple(groups))


def _factored(product: Product, size_bytes: int) -> str:
    """Why a gradient is sent by its factors."""
    return (
        f"; {bytes_text(product.bytes)} of factors are sent to each other worker, which computes "
        f"the {bytes_text(size_bytes)} of the gradient again, in {product.seconds * 1e3:.1f} ms"
    )


def edges_of(analysis: Analysis) -> tuple[Edge, ...]:
    """The control edges that let gradients get ready in one order.

    There are none where TensorFlow may compute ops as one that would wait for themselves then.
    """
    graph = analysis.get(OpGraph)
    edges = serialize(
        graph,
        analysis.get(TrainingJob),
        analysis.get(GradientFrontier),
        analysis.get(LoopFrames),
        analysis.get(ActivationOrder),
    )
    return edges if find_cycle(graph, analysis.get(Fusions), edges) is None else ()


def _outlook(
    plain: Plan, analysis: Analysis, deferrals: Deferrals, edges: tuple[Edge, ...]
) -> Outlook:
    timing, network = analysis.get(TimingTable), analysis.get(NetworkModel)
    calibration = analysis.get(Calibration)
    free, ordered = (
        workload_of(
            analysis.get(OpGraph),
            analysis.get(TrainingJob),
            analysis.get(LoopFrames),
            analysis.get(StateAccess),
            timing,
            plain.job.gradients,
            deferrals,
            added,
        )
        for added in ((), edges)
    )
    hardware = hardware_of(network, timing, calibration)
    return Outlook(plain, network, hardware, free, ordered, calibration)


def _paper(
    plain: Plan,
    analysis: Analysis,
    options: Options,
    deferrals: Deferrals,
    edges: tuple[Edge, ...],
) -> Plan:
    windows, timing = analysis.get(TransferWindows), analysis.get(TimingTable)
    calibration = analysis.get(Calibration)
    summed = sum(plain.bytes(group) for group in plain.decision.groups if group.is_summed)
    return paper_plan(
        plain,
        order=analysis.get(ActivationOrder),
        windows=stretched(
            windows,
            cores=timing.cores,
            sent_bytes=2 * summed * (plain.workers - 1) / plain.workers,
            calibration=calibration,
        ),
        network=analysis.get(NetworkModel),
        edges=edges,
        batching=options.batching,
        scheduling=options.scheduling,
        adaptive_depth=options.adaptive_depth,
        pattern=options.pattern,
        deferrable=deferrals.reason_against,
        moved_updates=deferrals.updated_with,
        in_flight_bytes=options.gated_bytes(calibration),
        pair_bytes=calibration.pair_bytes,
    )
