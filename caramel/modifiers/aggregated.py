"""Where a worker has what is read in place of its raw gradients."""

from __future__ import annotations

from caramel.names import TensorRef, in_group
from caramel.plan import ALL_GATHER, Group, Plan


def aggregated_tensors(plan: Plan, worker: int) -> dict[TensorRef, TensorRef]:
    """The aggregated value of each dense raw gradient."""
    sums = aggregated_values(plan, worker)
    return {g.values: sums[g.values] for g in plan.gradients if not g.indices and g.values in sums}


def aggregated_values(plan: Plan, worker: int) -> dict[TensorRef, TensorRef]:
    """What is read in place of each tensor of each raw gradient."""
    return {raw: tensor for group in plan.groups for raw, tensor in _of_group(plan, group, worker)}


def arrival(plan: Plan, name: str, worker: int) -> str:
    """The op that runs on a worker when a group has arrived there, aggregated.

    A group without elements does not travel, and has none.
    """
    group = next(group for group in plan.groups if group.name == name)
    return arrival_of(plan, group, worker)


def arrival_of(plan: Plan, group: Group, worker: int) -> str:
    """The same for a group of the plan."""
    return _of_group(plan, group, worker)[0][1].op


def _of_group(plan: Plan, group: Group, worker: int) -> list[tuple[TensorRef, TensorRef]]:
    first = plan.gradient(group.members[0])
    if first.indices is not None:
        gathers = group.pattern == ALL_GATHER
        values, indices = (
            ("gathered_values", "gathered_indices") if gathers else ("rows/values", "rows/indices")
        )
        return [
            (first.values, TensorRef(in_group(group.name, worker, values))),
            (first.indices, TensorRef(in_group(group.name, worker, indices))),
        ]
    if not plan.elements(group):
        return []
    return [
        (
            plan.gradient(name).values,
            TensorRef(in_group(group.name, worker, "aggregated", str(number))),
        )
        for number, name in enumerate(group.members)
    ]
