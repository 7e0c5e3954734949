"""Places a problem so that it fits: a partitioner, a scheduler, and a look at the memory.

Partitioners do not know which tensors are there at once. They count a share of them; if what they
found needs more memory than there is when it is simulated, they are asked again with a larger one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from caramel.core.errors import PlanError
from caramel.planning.placement.memory import check_each_fits, overruns, peaks, spans
from caramel.planning.placement.partitioners import Partitioner, partitioner_of
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.simulate import Links, Schedule, simulate

GROWTH = 1.25
"""By how much the share of tensors that counts grows."""

_ATTEMPTS = 8  # with a larger share
_NAMED = 3  # tensors in an error


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement, and what is simulated for it.

    Attributes:
        placement: the device of each vertex.
        schedule: when it executes what.
        peaks: the most bytes that each device needs.
    """

    placement: tuple[int, ...]
    schedule: Schedule
    peaks: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """Seconds that a step takes."""
        return self.schedule.makespan_s


def place(
    problem: Problem,
    partitioner: str,
    scheduler: str = "pct",
    *,
    share: float = 1.0,
    links: Links = "free",
    seed: int = 0,
) -> Placed:
    """Place a problem by a partitioner, so that no device needs more memory than it has.

    Args:
        problem: what is to be placed.
        partitioner: the name of one of `PARTITIONERS`.
        scheduler: the name of one of `SCHEDULERS`.
        share: of the bytes that vertices put out, how many the partitioner counts at first.
        links: whether transfers between two devices share the link.
        seed: of random choices.

    Raises:
        PlanError: no such partitioner or scheduler; a vertex fits on no device; or no placement was
            found that fits. Then the error names the device, what it needs and has, and the largest
            tensors, for the one that came closest.
    """
    partition = partitioner_of(partitioner)
    check_each_fits(problem)
    closest: tuple[float, int, Placed] | None = None
    for attempt in range(_ATTEMPTS + 1):
        placed = _placed(
            problem, partition, scheduler, share=share * GROWTH**attempt, links=links, seed=seed
        )
        lack = max(overruns(problem, placed.peaks), default=None)
        if lack is None:
            return placed
        if closest is None or lack[0] < closest[0]:
            closest = (*lack, placed)
    assert closest is not None, "there was an attempt"
    raise PlanError(
        f"no placement by '{partitioner}' fits: {needed(problem, closest[2], closest[1])}"
    )


def _placed(
    problem: Problem,
    partition: Partitioner,
    scheduler: str,
    *,
    share: float,
    links: Links,
    seed: int,
) -> Placed:
    placement = partition(problem, share=share, seed=seed)
    schedule = simulate(problem, placement, scheduler, links=links)
    return Placed(placement, schedule, tuple(peaks(problem, placement, schedule)))


def needed(problem: Problem, placed: Placed, number: int) -> str:
    """What a device needs, and by which tensors, in words."""
    device = problem.devices[number]
    kept = [
        (size, -tensor)
        for (tensor, on), (_, _, size) in spans(problem, placed.placement, placed.schedule).items()
        if on == number and size
    ]
    largest = ", ".join(
        f"{size:,.0f} bytes of '{problem.vertices[problem.tensors[-tensor].source].name}'"
        for size, tensor in sorted(kept, reverse=True)[:_NAMED]
    )
    resident = math.fsum(
        vertex.resident_bytes
        for vertex, on in zip(problem.vertices, placed.placement, strict=True)
        if on == number
    )
    return (
        f"device '{device.name}' needs {placed.peaks[number]:,.0f} bytes and has "
        f"{device.memory_bytes:,.0f}; {resident:,.0f} stay there; the largest tensors are "
        f"{largest or 'none'}; give devices more memory, take more of them, or fewer examples"
    )
