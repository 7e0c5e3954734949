"""PEFT: predicted earliest finish time (Arabnejad and Barbosa 2014).

*List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost Table*, IEEE Transactions
on Parallel and Distributed Systems 25, 3.
"""

from __future__ import annotations

import numpy as np

from caramel.planning.placement.filling import Floats
from caramel.planning.placement.lists import MeanCosts, list_placement
from caramel.planning.placement.problem import Problem


def peft(problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
    """Place vertices where they end first if what follows them is counted, too, optimistically."""
    table = optimistic_costs(problem)
    # Their equations 7 and 8: the rank is the mean of a row, and ends count with what is behind.
    return list_placement(problem, table.mean(axis=1).tolist(), share=share, behind=table)


def optimistic_costs(problem: Problem) -> Floats:
    """The optimistic cost table: the seconds that follow each vertex (row), by its device (column).

    Their equation 6: the longest way to a sink on which each vertex is on the device that suits it
    best, as if that were always free. Transfers take what they take in the mean.
    """
    costs = MeanCosts(problem)
    inverse = 1 / np.array([device.speed for device in problem.devices])
    table: Floats = np.zeros((len(problem.vertices), len(problem.devices)))
    for vertex in reversed(problem.order):
        row = table[vertex]
        for other, size in problem.successors[vertex].items():
            ends = table[other] + problem.vertices[other].operations * inverse
            # On its own device without a transfer, or on the best other one after it.
            np.maximum(row, np.minimum(ends, ends.min() + costs.transfer(size)), out=row)
    return table
