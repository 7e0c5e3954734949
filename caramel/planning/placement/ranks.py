"""How long are the paths through each vertex? The ranks of section 3.2, and the critical path.

Ranks count operations, not seconds, and no transfers. The sums are those that equations 5 and 6
print: a vertex counts in its own upward *and* in its own downward rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from caramel.planning.placement.problem import Problem


def up_ranks(problem: Problem) -> list[float]:
    """Operations along the longest path from each vertex to a sink, its own included (eq. 5)."""
    ranks = [vertex.operations for vertex in problem.vertices]
    for vertex in reversed(problem.order):
        ranks[vertex] += max((ranks[other] for other in problem.successors[vertex]), default=0.0)
    return ranks


def down_ranks(problem: Problem) -> list[float]:
    """Operations along the longest path from a source to each vertex, its own included (eq. 6)."""
    ranks = [vertex.operations for vertex in problem.vertices]
    for vertex in problem.order:
        ranks[vertex] += max((ranks[other] for other in problem.predecessors[vertex]), default=0.0)
    return ranks


def total_ranks(problem: Problem) -> list[float]:
    """The sum of both ranks of each vertex (section 3.2.1)."""
    return [up + down for up, down in zip(up_ranks(problem), down_ranks(problem), strict=True)]


def critical_path(problem: Problem) -> tuple[int, ...]:
    """The vertices of the path with the most operations, from its source to its sink.

    Section 3.2.2: back from the sink of the largest downward rank, always to the predecessor of the
    largest. Ties: the lower vertex. Empty without vertices.
    """
    ranks = down_ranks(problem)
    sinks = [number for number, others in enumerate(problem.successors) if not others]
    path: list[int] = []
    while sinks:
        path.append(max(sinks, key=lambda vertex: (ranks[vertex], -vertex)))
        sinks = list(problem.predecessors[path[-1]])
    return tuple(reversed(path))


def by_rank(problem: Problem, ranks: Sequence[float]) -> list[int]:
    """All groups, the largest rank of any member first; ties: the one that is defined first."""
    largest = [max(ranks[vertex] for vertex in members) for members in problem.groups]
    return sorted(range(len(largest)), key=lambda group: -largest[group])
