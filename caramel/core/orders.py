"""What traced steps tell of the order in which workers received parameters: TicTac's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Orders:
    """What was measured of the orders of some steps; means over all steps and workers.

    Times are in seconds. `planning.ordering.metrics` has the formulas.

    Attributes:
        plan: the name of the plan that did them; "" if nobody knows.
        steps: how many were looked at.
        unique: how many different orders of arrival there were, a worker's in a step being one
            (TicTac 2018, section 2.2).
        out_of_place: the share of transfers that arrived behind one that was planned to come later
            (on the same channel; TicTac 2018, section 5.1); None where no order was planned.
        upper_s: U, how long a step would take with one resource busy at a time (TicTac 2018,
            equation 1).
        lower_s: L, how long it would take if the busiest resource never waited (equation 2).
        efficiency: E, from 0 (one thing at a time) to 1 (a perfect order; equation 3). Below 0 or
            beyond 1 where a step was not bounded by what its resources do.
        speedup: S, by how much the best order can be faster than the worst: 1 is twice as fast
            (equation 4).
        alpha: how much of communication and computation overlap (TicTac 2019, section 3.2).
        rho: communication over computation (likewise).
        stragglers: the largest wait of a worker for the others, as a share of the step (section
            6.3).
        gradients_out_of_place: the share of gradients that arrived behind one that was planned to
            come later (of the same worker, at the same server); None where no order was planned.
    """

    plan: str
    steps: int
    unique: int
    out_of_place: float | None
    upper_s: float
    lower_s: float
    efficiency: float
    speedup: float
    alpha: float
    rho: float
    stragglers: float
    gradients_out_of_place: float | None = None
