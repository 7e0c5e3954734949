"""Which transfer waits for which, so that they arrive in the planned order?

Without gates, messages that are ready together go in any order, and the sums of a group behind all
that other groups have sent before. So the first group that is needed may arrive with the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from caramel.core.decision import Gate
from caramel.core.plan import Plan

SPLIT_BETWEEN_ALL = 1
"""The smallest chunk, in bytes, of groups that are split as far as they have elements."""


def gates_of(transfers: Sequence[tuple[str, int]], *, in_flight_bytes: int) -> tuple[Gate, ...]:
    """At most one gate for each transfer, on the earliest one that leaves the limit unbroken.

    With one group at a time, each worker sends in one order, in every step. But the wire is idle
    from the arrival of a group until the next one starts, on a processor that also computes for as
    long as the ops take that run just then: ResNet-50 on two hosts of one core took 0.99 s so, and
    0.91 s with a few megabytes in flight.

    Two groups are in flight together even if they break the limit, unless one of them alone does.

    Args:
        transfers: names of groups and their bytes, in the planned order.
        in_flight_bytes: bytes of the groups that may be on their way at a time; with 0 there is
            one order of transfers.
    """
    gates: list[Gate] = []
    first, in_flight = 0, 0  # transfers from `first` on are in flight
    for number, (name, size_bytes) in enumerate(transfers):
        in_flight += size_bytes
        while first < number and in_flight > in_flight_bytes:
            is_pair = first == number - 1
            if is_pair and max(size_bytes, transfers[first][1]) <= in_flight_bytes:
                break
            in_flight -= transfers[first][1]
            first += 1
        if first:
            gates.append(Gate(name, after=transfers[first - 1][0]))
    return tuple(gates)


def split_between_all(plan: Plan) -> Plan:
    """The plan with small groups split, too, as far as they have elements for all workers.

    One group at a time gives one order only if every worker has something to send when a group
    starts. Who adds up a group that is not split sends it when the next one may start, whichever
    comes first.
    """
    groups = [
        dataclasses.replace(group, smallest_chunk_bytes=SPLIT_BETWEEN_ALL)
        for group in plan.decision.groups
    ]
    return plan.deciding(groups=tuple(groups))
