"""CPOP: critical path on a processor (Topcuoglu, Hariri and Wu 2002, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.planning.placement.filling import Filling, Numbers
from caramel.planning.placement.lists import list_placement, mean_down_ranks, mean_up_ranks
from caramel.planning.placement.problem import Problem


def cpop(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place the critical path on the device that executes it first, the rest where it ends first.

    The path begins at the source whose ranks add up to most, and goes on with the successor for
    which they do. Ties: the lower vertex. Only devices on which the whole path may be and fits
    count; if there is none, its groups are placed as the others.
    """
    ups, downs = mean_up_ranks(problem), mean_down_ranks(problem)
    ranks = [up + down for up, down in zip(ups, downs, strict=True)]
    path = {problem.group_of[vertex] for vertex in _path(problem, ranks)}
    device = Filling(problem, share).fastest_for(sorted(path))

    def prefer(group: int, feasible: Numbers) -> int | None:
        return device if group in path and device in feasible else None

    return list_placement(problem, ranks, share=share, prefer=prefer)


def _path(problem: Problem, ranks: Sequence[float]) -> list[int]:
    vertices = [number for number, others in enumerate(problem.predecessors) if not others]
    path: list[int] = []
    while vertices:
        path.append(max(vertices, key=lambda vertex: (ranks[vertex], -vertex)))
        vertices = list(problem.successors[path[-1]])
    return path
