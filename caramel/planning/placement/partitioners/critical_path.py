"""Critical path: the longest path goes to the fastest device, as a whole (section 3.2.2)."""

from __future__ import annotations

import math

from caramel.planning.placement.filling import Filling, fastest, least
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import critical_path as path_of


def critical_path(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place the critical path on the fastest device, and the rest where it is done first.

    If no device has room for all groups of the path, each of them goes to its fastest feasible
    device. The others follow in the order of definition, each to the device with the least
    (load + c) / s (equation 7).

    Args:
        problem: what is to be placed.
        share: of the bytes that a group puts out, how many count.
        seed: has no effect.

    Returns:
        The device of each vertex.
    """
    filling = Filling(problem, share)
    path = list(dict.fromkeys(problem.group_of[vertex] for vertex in path_of(problem)))
    whole = _with_room(filling, path)
    for group in path:
        device = fastest(filling.feasible(group), filling.speeds) if whole is None else whole
        filling.put(group, device)
    for group in sorted(set(range(len(problem.groups))) - set(path)):
        filling.put(group, least(filling.feasible(group), filling.ends(group)))
    return tuple(filling.placement)


def _with_room(filling: Filling, groups: list[int]) -> int | None:
    """The fastest device on which all of some groups may be, and fit."""
    need = math.fsum(filling.needs[group] for group in groups)
    allowed = filling.problem.allowed
    for device in sorted(range(len(filling.speeds)), key=lambda number: -filling.speeds[number]):
        if need <= filling.capacities[device] and all(device in allowed[g] for g in groups):
            return device
    return None
