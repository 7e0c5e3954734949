"""Which aggregation pattern is the fastest for a group? The Caramel paper, section 4, by cost.

The costs are those that were measured on the cluster, of one aggregation at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caramel.core.errors import PlanError
from caramel.core.patterns import PATTERNS, check_pattern

if TYPE_CHECKING:  # commands that only tell their options need not wait for all facts
    from caramel.core.time_facts import NetworkModel

AUTO = "auto"

WORTH = 0.05
"""How much faster, as a share, a pattern must be than the usual one to be taken in its place.
Measurements of patterns that send the same differ by a few percent."""

RING_FROM_WORKERS, RING_CHUNK_BYTES = 3, 64 * 2**10
"""Where nothing was measured, a gradient goes round a ring from so many workers and bytes in each
chunk on."""


def usual_pattern(size_bytes: int, workers: int) -> str:
    """The pattern of a gradient where nothing is known of the network."""
    # All patterns send the same then, and this one in the fewest rounds and messages (what that is
    # worth: ``docs/decisions/exchange.md``).
    if workers <= 2:
        return "exchange"
    # With `shuffle` all workers send to one at the same time, whose link is no faster than theirs:
    # segments of large tensors are lost and sent again. A ring has one sender for each receiver,
    # but more rounds, which count where chunks are small.
    suits = workers >= RING_FROM_WORKERS and size_bytes >= RING_CHUNK_BYTES * workers
    return "ring" if suits else "shuffle"


def pattern_of(size_bytes: int, network: NetworkModel, pattern: str = AUTO) -> str:
    """`pattern` itself, or for "auto" the one that aggregates `size_bytes` in the least time.

    The usual one, which is `exchange` between two workers and `shuffle` between more, or else the
    first in `PATTERNS` that is known, gives way only to one that is faster by more than `WORTH`.

    Raises:
        PlanError: the pattern is unknown, or it is "auto" and the network model knows no pattern.
    """
    if pattern != AUTO:
        check_pattern(pattern, AUTO)
        return pattern
    known = [name for name in PATTERNS if name in network.costs]
    if not known:
        raise PlanError(
            "pattern 'auto' needs the cost of at least one of "
            f"{', '.join(PATTERNS)}, but the network model has none of them"
        )
    usual = usual_pattern(0, network.workers)
    usual = usual if usual in known else known[0]
    seconds = {name: network.costs[name].seconds(size_bytes) for name in known}
    fastest = min(known, key=seconds.__getitem__)
    return fastest if seconds[fastest] < (1 - WORTH) * seconds[usual] else usual


def seconds_of(size_bytes: int, network: NetworkModel, pattern: str = AUTO) -> float:
    """Predicted time of one aggregation of `size_bytes`, never less than nothing.

    Raises:
        PlanError: the network model does not know the pattern.
    """
    chosen = pattern_of(size_bytes, network, pattern)
    if chosen not in network.costs:
        known = ", ".join(sorted(network.costs)) or "nothing"
        raise PlanError(f"the network model has no cost of pattern '{chosen}'; it has {known}")
    return max(0.0, network.costs[chosen].seconds(size_bytes))
