"""Planning without a graph: from the outline of a job (`core.workload`) in a profile.

It is enough to search plans for any number of workers, but no graph can be rewritten with them.
"""

from __future__ import annotations

from collections.abc import Callable

from caramel.analyzers import ANALYZERS
from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.analyzers.workload import workload_of
from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.decision import Decided
from caramel.core.facts import (
    Factors,
    GradientFactors,
    GradientFrontier,
    LoopFrames,
    StateAccess,
    TimingTable,
    TrainingJob,
)
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.workload import Gradient, JobOutline
from caramel.planning.candidate import Outlook
from caramel.planning.choose import edges_of
from caramel.planning.plain import aggregated, plain_groups
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
    outlined = tuple(_gradient(each, deferrals) for each in gradients)
    return JobOutline(free, ordered, outlined, timing.on_processor)


def _gradient(gradient: AggregatedGradient, deferrals: Deferrals) -> Gradient:
    is_sparse = gradient.indices is not None
    stays = deferrals.reason_against(frozenset([gradient.parameter]))
    if is_sparse:
        stays = f"rows of '{gradient.parameter}' are gathered"
    return Gradient(gradient.parameter, gradient.elements, gradient.spec.dtype, is_sparse, stays)


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
