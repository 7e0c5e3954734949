"""Splits large gradients into parts that are aggregated in groups of their own.

In parts, just enough of a gradient can be deferred (compare the splitting of large parameters in
the Caramel paper, section 4.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from caramel.core.decision import FACTORS, Gate, Group, Part
from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import PlanError
from caramel.core.patterns import chunk_sizes
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient

DOMINANT_SHARE = 0.15
"""A gradient with more than this share of all bytes is worth splitting: what takes longer than the
backward pass fits neither its step nor the next forward pass."""

PARTS = (4, 8, 16, 32)
"""Of the largest gradient: the more, the better they fill the forward pass; but each is a group,
whose chunks cost time of their own."""

PART_THRESHOLDS = 8
"""A part has at least so many thresholds of the network: it is cut into a chunk for each worker."""


def worthwhile_parts(plan: Plan, threshold_bytes: int) -> tuple[tuple[Part, ...], ...]:
    """Parts of gradients that may make a step shorter, coarse ones first; none if no gradient
    dominates.

    Args:
        plan: the plain plan.
        threshold_bytes: of the network model.
    """
    summed = {name for group in plan.decision.groups if group.is_summed for name in group.members}
    sizes = {g: g.bytes for g in plan.job.gradients if _may_be_split(g) and g.parameter in summed}
    largest = max(sizes.values(), default=0)
    if largest <= DOMINANT_SHARE * sum(sizes.values()):
        return ()
    found = []
    for count in PARTS:
        most_bytes = max(-(-largest // count), PART_THRESHOLDS * threshold_bytes)
        large = [gradient for gradient, size in sizes.items() if size >= 2 * most_bytes]
        found.append(tuple(p for gradient in large for p in _equal_parts(gradient, most_bytes)))
    return tuple(parts for parts in dict.fromkeys(found) if parts)


def split_gradients(plan: Plan, most_bytes: int) -> Plan:
    """The plan with all dense gradients that are larger split into equal parts.

    Gradients that are joined with others in a group are left as they are.

    Args:
        plan: with no or with some gradients split.
        most_bytes: of a part, but that parts begin at multiples of 64 bytes.

    Raises:
        PlanError: `most_bytes` is not positive.
    """
    if most_bytes < 1:
        raise PlanError(f"parts of gradients must have at least 1 byte, not {most_bytes}")
    alone = {g.members[0] for g in plan.decision.groups if len(g.members) == 1 and g.is_summed}
    large = [g for g in plan.job.gradients if g.parameter in alone and _may_be_split(g)]
    return with_parts(plan, [part for g in large for part in _equal_parts(g, most_bytes)])


def with_parts(plan: Plan, parts: Iterable[Part]) -> Plan:
    """The plan with further gradients split, each part in a group like that of the whole.

    Args:
        parts: of gradients that are groups of their own.

    Raises:
        PlanError: the parts do not make up gradients.
    """
    by_parameter: dict[str, list[Part]] = {}
    further = tuple(parts)
    for part in further:
        by_parameter.setdefault(part.parameter, []).append(part)
    groups: list[Group] = []
    names: dict[str, list[str]] = {}
    for group in plan.decision.groups:
        own = list(_in_parts(group, by_parameter.get(group.members[0], ()), plan.workers))
        groups += own
        names[group.name] = [each.name for each in own]
    gates = (
        Gate(name, after)
        for gate in plan.decision.gates
        for name in names[gate.group]
        for after in names[gate.after]
    )
    return plan.deciding(
        parts=(*plan.decision.parts, *further), groups=tuple(groups), gates=tuple(gates)
    )


def _in_parts(group: Group, parts: Iterable[Part], workers: int) -> Iterator[Group]:
    """A group for each part of its only member, or the group itself."""
    names = [part.name for part in parts]
    if not names:
        yield group
    elif group.pattern == FACTORS:  # a gradient that is split goes itself
        group = dataclasses.replace(group, pattern="shuffle")
    for number, name in enumerate(names):
        yield dataclasses.replace(
            group,
            name=f"{group.name}_{number}",
            members=(name,),
            # As with groups: the first chunks fall to another worker for each part.
            shift=(group.shift + number) % workers,
        )


def _may_be_split(gradient: AggregatedGradient) -> bool:
    return gradient.indices is None and dtype_bytes(gradient.spec.dtype) is not None


def _equal_parts(gradient: AggregatedGradient, most_bytes: int) -> Iterator[Part]:
    """The parts of a gradient; none if it is not larger than `most_bytes`."""
    size = dtype_bytes(gradient.spec.dtype) or 1
    count = max(1, -(-gradient.bytes // most_bytes))
    lengths = [length for length in chunk_sizes(gradient.elements, count, size) if length]
    if len(lengths) < 2:
        return
    begin = 0
    for length in lengths:
        yield Part(gradient.parameter, begin, begin + length)
        begin += length
