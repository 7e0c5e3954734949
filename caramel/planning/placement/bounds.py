"""How long must a step take at least, wherever it is placed?"""

from __future__ import annotations

import math

from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import up_ranks


def path_bound_s(problem: Problem) -> float:
    """Seconds that the path with the most operations takes on the fastest device."""
    fastest = max(device.speed for device in problem.devices)
    return max(up_ranks(problem), default=0.0) / fastest


def work_bound_s(problem: Problem) -> float:
    """Seconds that all operations take if no device ever waits."""
    work = math.fsum(vertex.operations for vertex in problem.vertices)
    return work / math.fsum(device.speed for device in problem.devices)


def least_makespan_s(problem: Problem) -> float:
    """The larger of both: no step is shorter."""
    return max(path_bound_s(problem), work_bound_s(problem))
