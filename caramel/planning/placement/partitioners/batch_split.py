"""Batch split: what has the highest ranks goes to the fastest devices (section 3.2.1)."""

from __future__ import annotations

from caramel.planning.placement.filling import Filling, fastest, least
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import by_rank, total_ranks


def batch_split(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place groups by total rank, on the fastest device that has not got its share of the work yet.

    The share of a device is its speed over that of all. The paper does not name any, but without
    one everything would go to a single device. If all feasible devices have theirs, the one that
    would be done first gets the group.
    """
    filling = Filling(problem, share)
    quotas = sum(problem.group_operations) * filling.speeds / filling.speeds.sum()
    for group in by_rank(problem, total_ranks(problem)):
        feasible = filling.feasible(group)
        wanting = feasible[filling.loads[feasible] < quotas[feasible]]
        if len(wanting):
            filling.put(group, fastest(wanting, filling.speeds))
        else:
            filling.put(group, least(feasible, filling.ends(group)))
    return tuple(filling.placement)
