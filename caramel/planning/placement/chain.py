"""What does a simulated step wait for? The chain of vertices that bounds its makespan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from caramel.planning.placement.problem import Problem
from caramel.planning.placement.simulate import Schedule


class Link(NamedTuple):
    """A vertex of the chain, and what it waited for.

    Attributes:
        vertex: its number.
        after: the vertex that it waited for; None if it begins with the step.
        is_busy: whether it waited for its device, that executed `after` before it; else for a
            tensor of `after`.
    """

    vertex: int
    after: int | None
    is_busy: bool


def critical_chain(problem: Problem, placement: Sequence[int], schedule: Schedule) -> list[Link]:
    """From the vertex that ends last back to one that begins with the step.

    A vertex that got executable at the moment at which its device was free waited for its input.
    Ties: the vertex that began later, then the lower one.
    """
    begins, ends = schedule.begins, schedule.ends
    before = _before_on_device(placement, schedule)
    arrivals = {(number, device): end for number, device, _, end in schedule.transfers}
    chain: list[Link] = []
    vertex: int | None = max(range(len(ends)), key=lambda n: (ends[n], begins[n], -n), default=None)
    while vertex is not None:
        after, is_busy = None, False
        device = placement[vertex]
        for number in problem.inputs[vertex]:
            source = problem.tensors[number].source
            there = ends[source] if placement[source] == device else arrivals[number, device]
            if there == begins[vertex]:
                after = source
                break
        if after is None and before[vertex] is not None:
            after, is_busy = before[vertex], True
        chain.append(Link(vertex, after, is_busy))
        vertex = after
    return chain


def _before_on_device(placement: Sequence[int], schedule: Schedule) -> list[int | None]:
    """What the device of each vertex executed right before it."""
    last: dict[int, int] = {}
    found: list[int | None] = [None] * len(placement)
    for vertex in schedule.order:
        found[vertex] = last.get(placement[vertex])
        last[placement[vertex]] = vertex
    return found
