"""The plain plan: every gradient is aggregated by itself when it appears.

The baseline of everything that plans more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from caramel.core.decision import ALL_GATHER, Decided, Group
from caramel.core.facts import (
    MEAN,
    SUM,
    Cut,
    Factors,
    GradientFactors,
    GradientFrontier,
    InputPipelines,
    RawGradient,
    Reduction,
    ReplicaState,
    TrainingJob,
    Weight,
)
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob, SharedInput, SparseMethod
from caramel.planning.pattern_choice import AUTO, usual_pattern

# A message costs more processor time than the wire needs for this much.
SMALLEST_CHUNK_BYTES = 4096


def plain_plan(
    graph: OpGraph,
    job: TrainingJob,
    frontier: GradientFrontier,
    factors: GradientFactors,
    state: ReplicaState,
    pipelines: InputPipelines,
    *,
    devices: Sequence[str],
    pattern: str,
    sparse: SparseMethod = "gather",
    marks: bool = False,
    weights: Mapping[str, Weight] | None = None,
) -> Plan:
    """One group for each gradient, in one pattern or each in the usual one.

    Groups are numbered in the order of the variables.

    Args:
        devices: where the replica of each worker is.
        pattern: one of `core.patterns.PATTERNS`, or "auto" for `usual_pattern`.
        sparse: whether rows of sparse gradients are gathered, or whole matrices added up (where
            that gives the same).
        marks: whether steps leave marks of how far groups have come.
        weights: how much each worker's gradient counts, by parameter; as means if not given.
    """
    weights = weights or {}
    of_all = set(weights.values())
    reduction: Reduction = "sum" if of_all == {SUM} else "mean"
    gradients = tuple(
        _weighed(
            aggregated(graph, job, cut, factors.of.get(cut.gradient.parameter)),
            cut,
            weights.get(cut.gradient.parameter, MEAN),
            reduction,
        )
        for cut in frontier.cuts
    )
    made_for_each = {*state.generators, *state.seeds, *state.summed}  # not the same on all workers
    planned = PlannedJob(
        devices=tuple(devices),
        reduction=reduction,
        variables=job.variables,
        gradients=gradients,
        weights=tuple(sorted(of_all - {MEAN, SUM}, key=lambda weight: weight.name)),
        local=frozenset(state.local),
        summed=frozenset(state.summed),
        generators=frozenset(state.generators),
        seeds=frozenset(state.seeds),
        constant=frozenset(state.constant) - made_for_each,
        pipelines=pipelines.pipelines,
        examples=pipelines.examples,
        train_op=job.train_op,
        loss=job.loss.op,
        marks=marks,
    )
    return Plan(planned, Decided(plain_groups(gradients, len(devices), pattern, sparse)))


def _weighed(
    gradient: AggregatedGradient, cut: Cut, weight: Weight, reduction: Reduction
) -> AggregatedGradient:
    """The gradient with what says how much each worker's counts."""
    by_one_count = weight.examples + len(weight.divisors) == 1
    sums_up = by_one_count and not any(divisor.ops for divisor in weight.divisors)
    shared = () if sums_up else cut.shared  # else the workers' parts do not add up to one
    return dataclasses.replace(
        gradient,
        weight="" if weight.name == reduction else weight.name,
        shared=tuple(SharedInput(op, tensor) for op, tensor in shared),
    )


def plain_groups(
    gradients: Sequence[AggregatedGradient],
    workers: int,
    pattern: str,
    sparse: SparseMethod = "gather",
) -> tuple[Group, ...]:
    """A group for each gradient; none for one worker."""
    if workers == 1:
        return ()
    return tuple(
        Group(
            name=f"group_{number}",
            members=(gradient.parameter,),
            pattern=_pattern(gradient, workers, pattern, sparse),
            # The first chunks of a pattern, which are the only ones of a tiny tensor, fall to
            # another worker for each group.
            shift=number % workers,
            smallest_chunk_bytes=SMALLEST_CHUNK_BYTES,
        )
        for number, gradient in enumerate(gradients)
    )


def _pattern(gradient: AggregatedGradient, workers: int, pattern: str, sparse: SparseMethod) -> str:
    """How a gradient is aggregated, by itself."""
    if _is_gathered(gradient, sparse):
        return ALL_GATHER
    if pattern == AUTO:
        return usual_pattern(gradient.bytes, workers)
    return pattern


def _is_gathered(gradient: AggregatedGradient, sparse: SparseMethod) -> bool:
    """Whether the rows of a gradient are gathered."""
    if gradient.indices is None:
        return False
    # Adding up whole matrices merges rows of equal number. Where something tells them apart (a norm
    # over the rows, say), the result would not be that of one device.
    return sparse == "gather" or not gradient.merge_duplicates


def aggregated(
    graph: OpGraph, job: TrainingJob, cut: Cut, factors: Factors | None = None
) -> AggregatedGradient:
    """The gradient that is cut there, with its factors if it has some."""
    gradient = cut.gradient
    return AggregatedGradient(
        parameter=gradient.parameter,
        values=gradient.values,
        spec=_spec(graph, job, gradient),
        consumers=cut.consumers,
        indices=gradient.indices,
        index_dtype=graph.spec(gradient.indices).dtype if gradient.indices else "int32",
        merge_duplicates=cut.merge_duplicates,
        factors=factors,
    )


def _spec(graph: OpGraph, job: TrainingJob, gradient: RawGradient) -> TensorSpec:
    """What travels of a gradient, as a whole: mostly it is as its parameter is."""
    spec, own = job.variable(gradient.parameter).spec, graph.spec(gradient.values)
    # That of a sum over the rows of a table is one row, which is repeated behind the cut.
    if gradient.indices is None and own.elements is not None and own.shape != spec.shape:
        return TensorSpec(spec.dtype, own.shape)
    return spec
