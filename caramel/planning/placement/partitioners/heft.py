"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002, section 3.1)."""

from __future__ import annotations

from caramel.planning.placement.lists import list_placement, mean_up_ranks
from caramel.planning.placement.problem import Problem


def heft(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place vertices by their upward rank, each on the feasible device on which it ends first.

    Ranks are seconds, with transfers, in the mean of all devices. Of what HEFT finds only the
    devices are taken (paper, section 5.1); a scheduler makes the order.
    """
    return list_placement(problem, mean_up_ranks(problem), share=share)
