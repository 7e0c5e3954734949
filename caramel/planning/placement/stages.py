"""One device after the other is filled, in the order in which a step comes to what is placed.

So each cut is crossed by what one layer hands to the next, and back by its gradient, as in GPipe
(Huang et al., arXiv:1811.06965, section 2.2). That is what a slow network asks for if no device can
have everything.
"""

from __future__ import annotations

import math

from caramel.planning.placement.filling import Filling
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import down_ranks


def staged(problem: Problem, *, share: float, fill: float) -> tuple[int, ...]:
    """Place groups in stages: the next device begins when one is full.

    A group's place in the order is that of its first vertex that waits for another group. What may
    not be on the device that is being filled is placed on the first that it may be on.

    Args:
        problem: what is to be placed; its groups should be what a layer needs, forward and back.
        share: of the bytes that a group puts out, how many count as memory that it needs.
        fill: how full a device gets, but for the last: times what each would have if all had the
            same. A device does not get more than it has room for, but for a single group.
    """
    filling = Filling(problem, share)
    even = math.fsum(filling.needs) / len(problem.devices)
    firsts = _firsts(problem)
    device, last = 0, len(problem.devices) - 1
    for group in sorted(range(len(problem.groups)), key=lambda number: (firsts[number], number)):
        used = filling.used[device]
        most = min(fill * even, filling.capacities[device])
        if device < last and used and used + filling.needs[group] > most:
            device += 1
        allowed = problem.allowed[group]
        filling.put(group, device if device in allowed else allowed[0])
    return tuple(filling.placement)


def _firsts(problem: Problem) -> list[float]:
    """The lowest rank of the vertices of each group that wait for another one; 0 if none does."""
    ranks, of = down_ranks(problem), problem.group_of
    found = [math.inf] * len(problem.groups)
    for vertex, others in enumerate(problem.predecessors):
        group = of[vertex]
        if any(of[other] != group for other in others):
            found[group] = min(found[group], ranks[vertex])
    return [0.0 if math.isinf(first) else first for first in found]
