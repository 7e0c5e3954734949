"""MITE: memory, importance, traffic and execution time in one score (section 3.3.1)."""

from __future__ import annotations

import math

import numpy as np

from caramel.planning.placement.filling import Filling, Floats
from caramel.planning.placement.partitioners.scores import Traffic, best, execution_times
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import by_rank, total_ranks


def mite(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place groups by total rank, each on the device with the least score (equation 8).

    The score is the product of four numbers: the part of the device's memory that is used *before*
    the group is there; 1 less the product of the group's importance and the device's speed, each by
    the largest (equation 9); the traffic (equation 10); the time to execute it. The memory of a
    device without a limit is what all groups need.
    """
    filling = Filling(problem, share)
    ranks = total_ranks(problem)
    highest = max(ranks, default=0.0) or 1.0
    speeds = filling.speeds / filling.speeds.max()
    memory = _memory(filling)
    traffic_of, times = Traffic(filling), execution_times(filling)
    for group in by_rank(problem, ranks):
        rank = max(ranks[vertex] for vertex in problem.groups[group])
        importance = 1 - rank / highest * speeds
        traffic = traffic_of(group)
        score = filling.used / memory * importance * traffic * times
        filling.put(group, best(filling.feasible(group), score, traffic, filling.ends(group)))
    return tuple(filling.placement)


def _memory(filling: Filling) -> Floats:
    needed = math.fsum(filling.needs) or 1.0
    return np.where(np.isinf(filling.capacities), needed, filling.capacities)
