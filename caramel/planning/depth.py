"""Into how many parts is a group split? Caramel paper, section 4.4.

While one part is added, another is on the wire; but every part costs messages of its own. The paper
leaves the formula open.
"""

from __future__ import annotations

from caramel.core.calibration import DEFAULT
from caramel.core.time_facts import NetworkModel

# These limits are taken from ``benchmarks/results/decided/allreduce.json``: with them, and the
# pattern that is the fastest for a size, no size takes over 5 % longer than with its best fixed
# depth.
LARGEST_DEPTH = 8
PART_THRESHOLDS = 8
"""A part is at least as many thresholds large: it is cut into a chunk for each worker."""

EIGHTH_THRESHOLDS = 64
"""A part of eight is at least as many thresholds large. With 8 parts of 2 MB four workers took 6 %
longer by `ring` than with 4 of 4 MB; with 8 of 8 MB it was 0.4 %, and `shuffle` was 5 % faster."""


def depth_of(
    size_bytes: int,
    network: NetworkModel,
    *,
    beside_bytes: int = 0,
    pair_bytes: int = DEFAULT.pair_bytes,
) -> int:
    """The largest power of two up to `size_bytes / (8 threshold)`, at least 1 and at most 4; 8 from
    512 thresholds on.

    Args:
        size_bytes: of the group.
        network: knows the threshold.
        beside_bytes: of other groups that are on their way at the same time, and fill the pauses of
            this one. A group that is not larger is not split.
        pair_bytes: a smaller group is not split between two workers.
    """
    # Where other groups are on the wire meanwhile, splitting fills no pause and only costs:
    # ResNet-50 on two hosts, everything else planned, took 0.95 s with groups of 4 MB in 8 parts
    # and 0.91 s without.
    if size_bytes <= beside_bytes or (network.workers <= 2 and size_bytes < pair_bytes):
        return 1
    threshold_bytes = max(1, network.threshold_bytes)
    if size_bytes >= LARGEST_DEPTH * EIGHTH_THRESHOLDS * threshold_bytes:
        return LARGEST_DEPTH
    parts = min(size_bytes // (PART_THRESHOLDS * threshold_bytes), LARGEST_DEPTH // 2)
    # Rounded down to a power of two.
    return 1 << max(0, parts.bit_length() - 1)
