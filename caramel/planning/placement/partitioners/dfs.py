"""Depth first search: what is connected stays together (section 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caramel.planning.placement.filling import Filling
from caramel.planning.placement.partitioners.scores import Traffic, best, execution_times
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import total_ranks


def dfs(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place groups as a depth first search comes to them, by traffic and execution time (eq. 11).

    The search begins at the source with the highest total rank, and goes on with the successor with
    the highest. A group is placed when the search comes to its first member. Ties of the score: as
    in MITE.
    """
    filling = Filling(problem, share)
    traffic_of, times = Traffic(filling), execution_times(filling)
    for vertex in _visited(problem, total_ranks(problem)):
        if filling.placement[vertex] < 0:
            group = problem.group_of[vertex]
            traffic = traffic_of(group)
            score = traffic * times
            filling.put(group, best(filling.feasible(group), score, traffic, filling.ends(group)))
    return tuple(filling.placement)


def _visited(problem: Problem, ranks: Sequence[float]) -> Iterator[int]:
    """All vertices in the order of the search. Ties of ranks: the lower vertex."""

    def last_first(vertices: Iterable[int]) -> list[int]:
        return sorted(vertices, key=lambda vertex: (ranks[vertex], -vertex))

    seen = [False] * len(problem.vertices)
    sources = (number for number, others in enumerate(problem.predecessors) if not others)
    waiting = last_first(sources)
    while waiting:
        vertex = waiting.pop()
        if not seen[vertex]:
            seen[vertex] = True
            yield vertex
            waiting += last_first(problem.successors[vertex])
