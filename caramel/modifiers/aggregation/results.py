"""Where a worker has what is read in place of its raw gradients."""

from __future__ import annotations

from caramel.core.decision import ALL_GATHER, Group
from caramel.core.names import TensorRef, in_group, pushed, server_at, whole
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient


def aggregated_tensors(plan: Plan, worker: int) -> dict[TensorRef, TensorRef]:
    """The aggregated value of each dense raw gradient."""
    sums = aggregated_values(plan, worker)
    return {
        g.values: sums[g.values] for g in plan.job.gradients if not g.indices and g.values in sums
    }


def aggregated_values(plan: Plan, worker: int) -> dict[TensorRef, TensorRef]:
    """What is read in place of each tensor of each raw gradient; of what a server has, there."""
    found = {
        raw: tensor
        for group in plan.decision.groups
        for raw, tensor in _of_group(plan, group, _place(plan, group, worker))
    }
    if plan.decision.groups:
        for part in plan.decision.parts:
            found[plan.gradient(part.parameter).values] = TensorRef(whole(worker, part.parameter))
    return found


def arrival(plan: Plan, name: str, worker: int) -> str:
    """The op that runs on a worker when a group has arrived there, aggregated.

    A group without elements does not travel, and has none.
    """
    return arrival_of(plan, plan.group(name), worker)


def arrival_of(plan: Plan, group: Group, worker: int) -> str:
    """The same for a group of the plan."""
    worker = _place(plan, group, worker)
    first = plan.gradient(group.members[0])
    if first.indices is not None:
        return _rows(first, group, worker)[0][1].op
    # All members of a group arrive together, so the first one stands for all.
    return in_group(group.name, worker, "aggregated", "0")


def opens_gate(plan: Plan, name: str, worker: int) -> str:
    """The op that runs when a worker may send what waits for a group: when that has arrived there,
    aggregated, or with parameter servers, when its own part has arrived at the server."""
    place = plan.place(plan.group(name))
    server = None if place is None else server_at(place)
    return arrival(plan, name, worker) if server is None else pushed(server, worker, name)


def _place(plan: Plan, group: Group, worker: int) -> int:
    """Where a worker, or whoever updates for it, has a group aggregated."""
    place = plan.place(group)
    return worker if place is None else place


def _of_group(plan: Plan, group: Group, worker: int) -> list[tuple[TensorRef, TensorRef]]:
    """What is read in place of the gradients that are aggregated as wholes."""
    first = plan.gradient(group.members[0])
    if first.indices is not None:
        return _rows(first, group, worker)
    # What has no elements is the same on all workers.
    if not plan.elements(group):
        return []
    return [
        (
            plan.gradient(name).values,
            TensorRef(in_group(group.name, worker, "aggregated", str(number))),
        )
        for number, name in enumerate(group.members)
        if plan.part(name) is None
    ]


def _rows(
    gradient: AggregatedGradient, group: Group, worker: int
) -> list[tuple[TensorRef, TensorRef]]:
    """What is read in place of values and row numbers of a sparse gradient."""
    assert gradient.indices is not None
    gathers = group.pattern == ALL_GATHER
    values, indices = (
        ("gathered_values", "gathered_indices") if gathers else ("rows/values", "rows/indices")
    )
    return [
        (gradient.values, TensorRef(in_group(group.name, worker, values))),
        (gradient.indices, TensorRef(in_group(group.name, worker, indices))),
    ]
