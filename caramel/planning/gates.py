"""Which transfer waits for which, so that they arrive in the planned order?

Without gates all transfers share the bandwidth, and the first one that is needed arrives with the
last. With one at a time the wire is idle for a round trip after each. So a few megabytes are in
flight: a group starts when the group has arrived behind which the limit leaves room for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from caramel.plan import Gate

# Three groups of 2 MB, as in the prototype of "Order and overlap" (tensorflow-facts.md). Other
# limits were not compared there.
IN_FLIGHT_BYTES = 6_000_000


def gates_of(
    transfers: Sequence[tuple[str, int]], *, in_flight_bytes: int = IN_FLIGHT_BYTES
) -> tuple[Gate, ...]:
    """At most one gate for each transfer, on the earliest one that leaves the limit unbroken.

    Two groups are in flight together even if they break the limit, unless one of them alone does.

    Args:
        transfers: names of groups and their bytes, in the planned order.
        in_flight_bytes: bytes of the groups that may be on their way at a time.
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
