"""What multi-objective heuristics count of each device for a group (section 3.3.1)."""

from __future__ import annotations

import numpy as np

from caramel.planning.placement.filling import Filling, Floats, Numbers, seconds_per_byte


class Traffic:
    """Seconds that a group's inputs would be on the wire, by the group's device (equation 10).

    Only inputs that are placed already, on another device, count, each once. The paper calls this
    the traffic of a vertex, of which the latency is no part.
    """

    def __init__(self, filling: Filling) -> None:
        self._filling = filling
        self._seconds_per_byte = seconds_per_byte(filling.problem)

    def __call__(self, group: int) -> Floats:
        problem, placement = self._filling.problem, self._filling.placement
        found: Floats = np.zeros(len(problem.devices))
        for number in problem.group_inputs[group]:
            tensor = problem.tensors[number]
            source = placement[tensor.source]
            if source >= 0:
                found += tensor.bytes * self._seconds_per_byte[source]
        return found


def execution_times(filling: Filling) -> Floats:
    """Seconds that a group takes on each device, by those on the slowest (section 3.3.1)."""
    return filling.speeds.min() / filling.speeds


def best(feasible: Numbers, score: Floats, traffic: Floats, ends: Floats) -> int:
    """The feasible device with the least score.

    Products are often 0 on several devices. Ties: the one with less traffic, then the one that is
    done first with the group, then the lower one.
    """
    candidates = feasible
    for values in (score, traffic, ends):
        own = values[candidates]
        candidates = candidates[own == own.min()]
        if len(candidates) == 1:
            break
    return int(candidates[0])
