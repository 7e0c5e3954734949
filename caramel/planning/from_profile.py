"""Planning without a graph: from the outline of a job (`core.workload`) in a profile.

It is enough to search plans for any number of workers, but no graph can be rewritten with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.analyzers.rows import row_splits
from caramel.analyzers.workload import workload_of
from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.decision import Decided
from caramel.core.facts import (
    Factors,
    GradientFactors,
    GradientFrontier,
    LoopFrames,
    StateAccess,
    TrainingJob,
)
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.time_facts import TimingTable
from caramel.core.workload import Gradient, JobOutline
from caramel.planning.candidate import Outlook
from caramel.planning.choose import edges_of
from caramel.planning.plain import aggregated, plain_groups
from caramel.planning.serving.rows import is_divisible, larger_than_a_share
from caramel.simulation.hardware import Hardware, network_of

_FACTORS = Factors((), (), ())  # made up: what they take is known, not what they are


def outline_of(graph: OpGraph, job: TrainingJob, timing: TimingTable) -> JobOutline:
    """The outline of a job.

    Raises:
        GraphError: the raw gradients cannot be told.
    """
    analysis = ordered_analysis(graph, job, [timing], ANALYZERS)
    graph = analysis.get(OpGraph)
    frames, access = analysis.get(LoopFrames), analysis.get(StateAccess)
    factors = analysis.get(GradientFactors).of
    gradients = [
        aggregated(graph, job, cut, factors.get(cut.gradient.parameter))
        for cut in analysis.get(GradientFrontier).cuts
    ]
    deferrals = Deferrals(graph, job, access, frames, gradients)
    free, ordered = (
        workload_of(graph, job, frames, access, timing, gradients, deferrals, edges)
        for edges in ((), edges_of(analysis))
    )
    rows = _divisible_rows(analysis, gradients)
    outlined = tuple(_gradient(each, deferrals, rows) for each in gradients)
    return JobOutline(free, ordered, outlined, timing.on_processor)


MOST_SERVERS = 64
"""What is smaller than a share of so many parameter servers is not split, and not looked at."""


def _divisible_rows(analysis: Analysis, gradients: Sequence[AggregatedGradient]) -> dict[str, int]:
    """The number of rows of each large parameter that servers may split."""
    job, own = analysis.get(TrainingJob), {gradient.parameter for gradient in gradients}
    specs = {v.name: v.spec for v in job.variables if v.name in own}
    large = [n for n in larger_than_a_share(specs, MOST_SERVERS) if is_divisible(specs[n])]
    rows = {name: (specs[name].shape or (0,))[0] or 0 for name in large}
    steps = [(job, analysis.get(GradientFrontier).cuts)]
    found = dict[str, int]()
    for name, count in rows.items():  # each by itself: two may share an op
        parts = {name: (1, count - 1)}
        if row_splits(analysis.get(OpGraph), steps, analysis.get(StateAccess), parts).splits:
            found[name] = count
    return found


def _gradient(
    gradient: AggregatedGradient, deferrals: Deferrals, rows: Mapping[str, int]
) -> Gradient:
    is_sparse = gradient.indices is not None
    stays = deferrals.reason_against(frozenset([gradient.parameter]))
    if is_sparse:
        stays = f"rows of '{gradient.parameter}' are gathered"
    return Gradient(
        gradient.parameter,
        gradient.elements,
        gradient.spec.dtype,
        is_sparse,
        stays,
        rows.get(gradient.parameter, 0),
    )


def plan_of(outline: JobOutline, workers: int, pattern: str) -> Plan:
    """The plain plan, with made-up names of devices and tensors."""
    gradients = tuple(
        AggregatedGradient(
            parameter=each.parameter,
            values=TensorRef(each.parameter),
            spec=TensorSpec(each.dtype, (each.elements,)),
            consumers=(),
            indices=TensorRef(each.parameter, 1) if each.is_sparse else None,
            factors=_FACTORS if each.parameter in outline.free.products else None,
        )
        for each in outline.gradients
    )
    job = PlannedJob(
        devices=tuple(f"/job:worker/task:{number}" for number in range(workers)),
        reduction="mean",
        variables=(),
        gradients=gradients,
    )
    return Plan(job, Decided(plain_groups(gradients, workers, pattern)))


def outlook_of(
    outline: JobOutline, hardware: Hardware, pattern: str, calibration: Calibration = DEFAULT
) -> Outlook:
    """What is known for planning on some hardware; aggregations cost what it can do.

    Args:
        pattern: of the plain plan.
        calibration: the sizes that suit the machines.
    """
    plain = plan_of(outline, hardware.workers, pattern)
    network = network_of(hardware)
    return Outlook(plain, network, hardware, outline.free, outline.ordered, calibration)


def deferrable(outline: JobOutline) -> Callable[[frozenset[str]], str | None]:
    """A function that says why some gradients cannot be deferred together, or None if they can.

    Here they can if each of them can.
    """
    stays = {each.parameter: each.stays for each in outline.gradients if each.stays is not None}

    def reason_against(parameters: frozenset[str]) -> str | None:
        return next((stays[name] for name in sorted(parameters) if name in stays), None)

    return reason_against
