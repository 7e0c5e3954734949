"""Critical path: the longest path goes to the fastest device, as a whole (section 3.2.2)."""

from __future__ import annotations

from caramel.planning.placement.filling import Filling, fastest, least
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import critical_path as path_of


def critical_path(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place the critical path on the fastest device, and the rest where it is done first.

    If no device has room for all groups of the path, each of them goes to its fastest feasible
    device. The others follow in the order of definition, each to the device with the least
    (load + c) / s (equation 7).
    """
    filling = Filling(problem, share)
    path = list(dict.fromkeys(problem.group_of[vertex] for vertex in path_of(problem)))
    whole = filling.fastest_for(path)
    for group in path:
        device = fastest(filling.feasible(group), filling.speeds) if whole is None else whole
        filling.put(group, device)
    for group in sorted(set(range(len(problem.groups))) - set(path)):
        filling.put(group, least(filling.feasible(group), filling.ends(group)))
    return tuple(filling.placement)
