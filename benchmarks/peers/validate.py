"""Which results count: the same parameters as plain Caramel, and bytes that crossed the wire.

Two float32 runs that add the same numbers in another order differ by rounding, some 1e-7 of a
value for each of the few sums and steps; `TOLERANCE` of the largest entry of a parameter leaves
room for networks that magnify it. Where rounding puts the input of a ReLU on the other side of
zero, deep networks on few examples take another path, and entries differ by 1e-3 (Seq-32 on 12
examples did, among correct runs). Therefore a row also counts if it agrees with another pattern of
plain Caramel, or with one device on the batches of all workers (`alone`). The row of `alone` itself
counts whatever it is compared with: one device adds up a batch in another order than any workers.

Interfaces count headers and acknowledgements: 66 bytes for each packet that the kernel handles at
once (up to 64 KB), and gRPC's or MPI's own messages. That is a few per cent, so bytes may differ by
`BYTES_TOLERANCE` of what the method must send, and by `SMALL_BYTES` besides: what keeps connections
alive and starts a step, whatever the network's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.peers.base import Result

TOLERANCE = 1e-4
BYTES_TOLERANCE = 0.1
SMALL_BYTES = 30_000
REFERENCE, TRUTH = "plain", "alone"


def validate(results: Sequence[Result]) -> list[Result]:
    """The results, each with the reasons why it does not count (`Result.problems`).

    The first result of plain Caramel for a case is what the others are compared with.
    """
    return [
        replace(each, problems=(*_parameters(each, results), *_bytes(each))) for each in results
    ]


def difference(result: Result, reference: Result) -> float:
    """The largest difference of a parameter's entry, relative to the parameter's largest entry."""
    values, expected = result.read_parameters(), reference.read_parameters()
    if values.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    for name, value in expected.items():
        if value.shape != values[name].shape or not np.isfinite(values[name]).all():
            return float("inf")
        scale = float(np.abs(value).max()) or 1.0
        worst = max(worst, float(np.abs(values[name] - value).max()) / scale)
    return worst


def _parameters(result: Result, results: Sequence[Result]) -> list[str]:
    if result.parameters is None or result.peer == TRUTH:
        return []
    same = [
        each
        for each in results
        if each.parameters and each.case == result.case and _workers(each) == _workers(result)
    ]
    plain = [each for each in same if each.peer == REFERENCE]
    if not plain:
        return ["invalid: no result of plain Caramel to compare with"]
    if result is plain[0]:
        return []
    references = [*plain, *(each for each in same if each.peer == TRUTH)]
    least = float("inf")
    for each in references:
        if each is not result:
            least = min(least, difference(result, each))
        if least <= TOLERANCE:  # the files are large
            return []
    return [f"invalid: parameters differ by {least:.1e}"]


def _workers(result: Result) -> int:
    return len(result.tx_bytes)


def _bytes(result: Result) -> list[str]:
    for host, (sent, expected) in enumerate(
        zip(result.tx_bytes, result.expected_bytes, strict=True)
    ):
        if abs(sent - expected) > BYTES_TOLERANCE * expected + SMALL_BYTES:
            return [
                f"bytes do not match: host {host} sent {sent:,.0f} per step, not {expected:,.0f}"
            ]
    return []
