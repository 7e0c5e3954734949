"""What stands on which device while groups are placed one by one, and where the next may go.

A group needs its resident bytes and a share of the bytes that it puts out: not all tensors of a
step are there at once. A device is *feasible* for a group if the group may be on it and fits. If
none is, the allowed one with the most room counts: whether a placement really fits is found by
simulating it (`memory`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from caramel.planning.placement.problem import Problem

Numbers = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]


class Filling:
    """A placement that is being made.

    Attributes:
        placement: the device of each vertex, -1 where it is not placed.
        speeds: operations a second of each device.
        loads: operations of what each device has.
        used: bytes of what each device has.
        capacities: bytes that each device can have.
        needs: bytes that each group needs.
    """

    def __init__(self, problem: Problem, share: float = 1.0) -> None:
        """Place nothing yet.

        Args:
            problem: what is to be placed.
            share: of the bytes that a group puts out, how many count.
        """
        self.problem = problem
        self.placement = [-1] * len(problem.vertices)
        self.speeds = np.array([device.speed for device in problem.devices])
        self.loads: Floats = np.zeros(len(problem.devices))
        self.used: Floats = np.zeros(len(problem.devices))
        self.capacities = np.array([device.memory_bytes for device in problem.devices])
        self.needs = [
            math.fsum(_needs(problem, vertex, share) for vertex in members)
            for members in problem.groups
        ]
        self._allowed = {allowed: np.array(allowed) for allowed in set(problem.allowed)}
        self._limited = bool(np.isfinite(self.capacities).any())

    def feasible(self, group: int) -> Numbers:
        """Devices on which a group may be placed now, at least one, in ascending order."""
        allowed = self._allowed[self.problem.allowed[group]]
        if not self._limited:
            return allowed
        room = self.capacities[allowed] - self.used[allowed]
        fitting = allowed[room >= self.needs[group]]
        return fitting if len(fitting) else allowed[[int(room.argmax())]]

    def fastest_for(self, groups: Sequence[int]) -> int | None:
        """The fastest device on which all of some groups may be, and fit; None if there is none."""
        need = math.fsum(self.needs[group] for group in groups)
        for device in np.argsort(-self.speeds, kind="stable").tolist():
            fits = need <= self.capacities[device] - self.used[device]
            if fits and all(device in self.problem.allowed[group] for group in groups):
                return int(device)
        return None

    def ends(self, group: int) -> Floats:
        """Seconds for which each device is busy if it gets a group, too (equation 7)."""
        return (self.loads + self.problem.group_operations[group]) / self.speeds

    def put(self, group: int, device: int) -> None:
        """Place a group."""
        for vertex in self.problem.groups[group]:
            self.placement[vertex] = device
        self.loads[device] += self.problem.group_operations[group]
        self.used[device] += self.needs[group]


def _needs(problem: Problem, vertex: int, share: float) -> float:
    out = (problem.tensors[number] for number in problem.outputs[vertex])
    sizes = [tensor.bytes for tensor in out if tensor.hands_on is None]
    return problem.vertices[vertex].resident_bytes + share * math.fsum(sizes)


def fastest(devices: Numbers, speeds: Floats) -> int:
    """The fastest of some devices; ties: the lower one."""
    return int(devices[int(speeds[devices].argmax())])


def least(devices: Numbers, values: Floats) -> int:
    """The device of some with the least value; ties: the lower one."""
    return int(devices[int(values[devices].argmin())])


def seconds_per_byte(problem: Problem) -> Floats:
    """From each device to each other; 0 on the diagonal."""
    rates = np.array(problem.rates, dtype=float)
    np.fill_diagonal(rates, np.inf)
    return 1 / rates
