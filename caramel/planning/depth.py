"""Into how many parts is a group split? Caramel paper, section 4.4.

While one part is added, another is on the wire; but every part costs messages of its own. So a
group is split as often as its parts stay above the threshold, below which latency dominates, at
most eight times, and only into 1, 2, 4 or 8 parts, the depths that are measured.

The paper leaves the formula open. This one is not the best depth everywhere: in
`benchmarks/results/allreduce.json` of 2026-11-21 (two cores for all workers), 64 KB take 1.5 to 2.3
times as long with depth 8 as with depth 1, which the rule takes. From 64 KB up, it is more than 5 %
slower than the best fixed depth in 7 of 36 cases, each pattern with a threshold fitted to its own
times: mostly where it takes 8 and 2 or 4 are better (64 MB between two workers by 11 to 13 %, 1 MB
between eight by up to 27 %). Depths that send the same messages (up to 4 KB) differ by up to 8 %
there.
"""

from __future__ import annotations

from caramel.facts import NetworkModel

LARGEST_DEPTH = 8


def depth_of(size_bytes: int, network: NetworkModel) -> int:
    """The largest power of two up to `size_bytes / threshold`, at least 1 and at most 8."""
    parts = min(size_bytes // max(1, network.threshold_bytes), LARGEST_DEPTH)
    return 1 << max(0, parts.bit_length() - 1)
