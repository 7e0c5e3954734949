"""The least time in which all-reduced bytes can be sent."""

from __future__ import annotations

from benchmarks.testbed import PAYLOAD_SHARE


def wire_limit_s(size_bytes: float, workers: int, bits_per_s: float) -> float:
    """The least time in which a worker can send what an all-reduce needs of it.

    Every worker has to send ``2 (N - 1) / N`` times the bytes, at the payload rate of a TCP stream
    on its link. What is smaller than a link's burst of 256 KB may be faster.

    Args:
        size_bytes: of what is aggregated.
        workers: N.
        bits_per_s: rate of each worker's link.
    """
    sent_bytes = 2 * (workers - 1) / workers * size_bytes
    return sent_bytes * 8 / (bits_per_s * PAYLOAD_SHARE)
