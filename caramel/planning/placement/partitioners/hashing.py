"""Hash: random devices, the fast ones more often (section 3.1)."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate

from caramel.planning.placement.filling import Filling
from caramel.planning.placement.problem import Problem


def hashed(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place each group by the hash of the seed and its first member's name.

    The first 8 bytes of the SHA-256 of "seed/name" are a number in [0, 1) that picks one of the
    feasible devices, which are as likely as they are fast.
    """
    filling = Filling(problem, share)
    for group, members in enumerate(problem.groups):
        feasible = filling.feasible(group)
        text = f"{seed}/{problem.vertices[members[0]].name}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        weights = list(accumulate(filling.speeds[feasible].tolist()))
        place = bisect_right(weights, number * weights[-1])
        filling.put(group, int(feasible[min(place, len(feasible) - 1)]))
    return tuple(filling.placement)
