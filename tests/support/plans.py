"""Plans without a job: some gradients on some workers."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.core.decision import Decided, Group
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob

Shape = tuple[int, ...]


def make_plan(
    workers: int, shapes: Sequence[Shape], dtype: str, *, reduction="sum", groups=None, **options
) -> Plan:
    """A plan that aggregates one gradient of each shape, by default in one group."""
    gradients = tuple(
        AggregatedGradient(f"v{n}", TensorRef(f"raw{n}"), TensorSpec(dtype, shape), (f"read{n}",))
        for n, shape in enumerate(shapes)
    )
    members = groups or [range(len(shapes))]
    job = PlannedJob(
        devices=tuple(f"/job:worker/task:{worker}" for worker in range(workers)),
        reduction=reduction,
        variables=(),
        gradients=gradients,
        train_op="train",
        loss="train",
    )
    groups = tuple(
        Group(f"group_{g}", tuple(f"v{n}" for n in numbers), **options)
        for g, numbers in enumerate(members)
    )
    return Plan(job, Decided(groups))
