"""What the papers measure of orders, on plain numbers.

======================== ==========================================================================
`upper_makespan_s`       U: TicTac 2018, equation 1; execution-ordering, equation 1
`lower_makespan_s`       L: TicTac 2018, equation 2; execution-ordering, equation 1
`ordering_efficiency`    E: TicTac 2018, equation 3; execution-ordering, equation 2
`speedup`                S: TicTac 2018, equation 4
`straggler_share`        TicTac 2018 and 2019, section 6.3
`unique_orders`          TicTac 2018 and 2019, section 2.2
`out_of_place_share`     TicTac 2018 and 2019, section 5.1
======================== ==========================================================================

alpha and rho (TicTac 2019, section 3.2) are those of a `core.timeline.Timeline`. With one channel,
E is alpha: U - L is then min(N, C).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from caramel.core.errors import PlanError


def upper_makespan_s(loads_s: Collection[float]) -> float:
    """U: how long a step takes if one resource is busy at a time.

    Args:
        loads_s: seconds that each resource is busy. Each channel is a resource, and so is computing
            (2018: "communication ops to corresponding communication channels").
    """
    return math.fsum(loads_s)


def lower_makespan_s(loads_s: Collection[float]) -> float:
    """L: how long a step takes if the busiest resource never waits.

    Args:
        loads_s: seconds that each resource is busy.
    """
    return max(loads_s, default=0.0)


def ordering_efficiency(loads_s: Collection[float], makespan_s: float) -> float:
    """E = (U - makespan) / (U - L): 1 is a perfect order, 0 one thing at a time.

    Beyond 1 or below 0 where the step was not bounded by its loads. The papers do not say what it
    is where only one resource is busy, so that U = L: 0 here, as nothing can overlap.

    Args:
        loads_s: seconds that each resource is busy.
        makespan_s: seconds that the step took.
    """
    upper_s, lower_s = upper_makespan_s(loads_s), lower_makespan_s(loads_s)
    return (upper_s - makespan_s) / (upper_s - lower_s) if upper_s > lower_s else 0.0


def speedup(loads_s: Collection[float]) -> float:
    """S = (U - L) / L: by how much the best order can be faster than the worst; 1 is twice as fast.

    0 where nothing takes time.

    Args:
        loads_s: seconds that each resource is busy.
    """
    lower_s = lower_makespan_s(loads_s)
    return (upper_makespan_s(loads_s) - lower_s) / lower_s if lower_s else 0.0


def straggler_share(waits_s: Collection[float], step_s: float) -> float:
    """The largest wait of any worker, as a share of the step.

    Args:
        waits_s: seconds that each worker waited for others, at least one.
        step_s: seconds that the step took, more than 0.
    """
    return max(waits_s) / step_s


def unique_orders(orders: Iterable[Sequence[str]]) -> int:
    """How many different orders there are among those of several steps."""
    return len({tuple(order) for order in orders})


def out_of_place_share(planned: Sequence[str], received: Sequence[str]) -> float:
    """The share of the transfers of a channel that came after one that was planned to come later.

    The papers count transfers that were not "processed in the order they are queued" without saying
    how; this is how reordered packets are counted (RFC 4737, section 3.3). One that comes late is
    one, however many overtook it.

    Raises:
        PlanError: The transfers that were received are not those that were planned.
    """
    places = {name: place for place, name in enumerate(planned)}
    if sorted(received) != sorted(planned):
        raise PlanError(
            f"received were {len(received)} transfers, of which "
            f"{sorted(set(received) ^ set(planned))} are not in both; planned were {len(planned)}"
        )
    late, furthest = 0, -1
    for name in received:
        late += places[name] < furthest
        furthest = max(furthest, places[name])
    return late / len(planned) if planned else 0.0
