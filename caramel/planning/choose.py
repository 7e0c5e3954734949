"""Chooses a plan from the facts that are there."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.analysis import Analysis
from caramel.errors import MissingFactError, PlanError
from caramel.facts import (
    ActivationOrder,
    GradientFrontier,
    LoopFrames,
    NetworkModel,
    StateAccess,
    TimingTable,
    TrainingJob,
    TransferWindows,
)
from caramel.graph import OpGraph
from caramel.patterns import check_pattern
from caramel.plan import ALL_GATHER, Plan
from caramel.planning.contention import stretched
from caramel.planning.deferral import Deferrals
from caramel.planning.gates import IN_FLIGHT_BYTES
from caramel.planning.paper import paper_plan
from caramel.planning.pattern import AUTO
from caramel.planning.serialize import serialize

DEFAULT_PATTERN = "shuffle"


@dataclass(frozen=True)
class Options:
    """Which optimizations of the Caramel paper are used, each if the facts for it are known.

    Attributes:
        serialization: control edges let gradients get ready in one order (section 4.1).
        batching: small gradients are aggregated together (4.2).
        scheduling: transfers are planned, some of them for the next forward pass (4.3).
        adaptive_depth: large groups are split (4.4).
        pattern: one of `caramel.patterns.PATTERNS`, or "auto" for the fastest of each group.
        in_flight_bytes: of groups that may be on their way at a time (`caramel.planning.gates`).

    Raises:
        PlanError: an unknown pattern, or less than no bytes.
    """

    serialization: bool = True
    batching: bool = True
    scheduling: bool = True
    adaptive_depth: bool = True
    pattern: str = AUTO
    in_flight_bytes: int = IN_FLIGHT_BYTES

    def __post_init__(self) -> None:
        if self.in_flight_bytes < 0:
            raise PlanError(f"in_flight_bytes must be at least 0, not {self.in_flight_bytes}")
        if self.pattern != AUTO:
            check_pattern(self.pattern)

    @property
    def plain_pattern(self) -> str:
        """The pattern of a plain plan."""
        return DEFAULT_PATTERN if self.pattern == AUTO else self.pattern

    @property
    def needs_network(self) -> bool:
        """Whether anything is planned that depends on the network."""
        flags = (self.batching, self.scheduling, self.adaptive_depth)
        return any(flags) or self.pattern == AUTO


def known_windows(analysis: Analysis) -> TransferWindows | None:
    """When each parameter can be aggregated, if times of ops are known."""
    try:
        return analysis.get(TransferWindows)
    except MissingFactError:
        return None


def choose(plain: Plan, analysis: Analysis, options: Options) -> tuple[Plan, str]:
    """The plan of the paper, as far as facts are known, and a word on what it is made from.

    Without times of ops and a model of the network it is the plain plan.
    """
    if plain.workers == 1 or not (options.serialization or options.needs_network):
        return plain, "plain"
    try:
        timing = analysis.get(TimingTable)
        network = analysis.get(NetworkModel)
    except MissingFactError as error:
        return plain, f"plain, because nothing is known of times: {error}"
    if network.workers != plain.workers:
        raise PlanError(f"the network model is of {network.workers} workers, not {plain.workers}")
    graph, job = analysis.get(OpGraph), analysis.get(TrainingJob)
    frames, order = analysis.get(LoopFrames), analysis.get(ActivationOrder)
    edges = (
        serialize(graph, job, analysis.get(GradientFrontier), frames, order)
        if options.serialization
        else ()
    )
    deferrals = Deferrals(graph, job, analysis.get(StateAccess), frames, plain.gradients)
    plan = paper_plan(
        plain,
        order=order,
        windows=stretched(
            analysis.get(TransferWindows), cores=timing.cores, sent_bytes=_sent_bytes(plain)
        ),
        network=network,
        edges=edges,
        batching=options.batching,
        scheduling=options.scheduling,
        adaptive_depth=options.adaptive_depth,
        pattern=options.pattern,
        deferrable=deferrals.reason_against,
        moved_updates=deferrals.updated_with,
        in_flight_bytes=options.in_flight_bytes,
    )
    return plan, f"from the times of {len(timing.seconds)} ops"


def _sent_bytes(plan: Plan) -> float:
    """What each worker sends in a step, if nothing is gathered: 2 S (N - 1) / N."""
    summed = sum(plan.bytes(group) for group in plan.groups if group.pattern != ALL_GATHER)
    return 2 * summed * (plan.workers - 1) / plan.workers
