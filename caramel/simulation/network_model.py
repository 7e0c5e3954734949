"""A model of the network: fitted to measurements, or assumed from the rate of its links.

What an aggregation takes is linear in its size (Caramel paper, section 4.2): ``f(x) = a + b x``.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby

import numpy as np

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import ProfileError
from caramel.core.measurements import AggregationTimes, Measurements, SendTimes
from caramel.core.patterns import PATTERNS, Gather, Reduce, Schedule, schedule
from caramel.core.time_facts import Link, NetworkModel, TransferCost

THRESHOLD_SHARE = 0.8
"""``f(2x) / 2 f(x)`` must exceed it (Caramel paper, section 4.2)."""

JUDGED_AT_BYTES = 4 * 2**20
"""The pattern that is fastest for this size counts for the threshold."""

NO_LIMIT_BYTES_PER_S = 1e15
"""The rate where larger tensors took no longer: more than any network has, and a number of JSON,
which infinity is not."""

LARGEST_THRESHOLD = sys.maxsize
"""The threshold where doubling the size never costs enough: latency is all there is."""

SMALL_BYTES = 64
"""Of a tensor of which only its messages matter."""


def fit_network(
    measurements: Measurements,
    *,
    threshold_bytes: int | None = None,
    calibration: Calibration = DEFAULT,
) -> NetworkModel:
    """The lines that fit measurements best, and what follows from them.

    What an empty step takes is subtracted from every measurement: many aggregations share one step
    in training, so a pattern's latency does not include the client's call.

    Args:
        measurements: of each pattern at two sizes or more.
        threshold_bytes: in place of the one that follows from the lines.
        calibration: which part of what a message takes is asking for it.

    Raises:
        ProfileError: there are too few measurements.
    """
    if not measurements.aggregations:
        raise ProfileError("a network model needs measured aggregations; there are none")
    empty_s = statistics.median(measurements.empty_seconds)
    by_pattern: dict[str, list[AggregationTimes]] = defaultdict(list)
    for times in measurements.aggregations:
        if times.tensors == 1:
            by_pattern[times.pattern].append(times)
    costs = {pattern: _fit_pattern(times, empty_s) for pattern, times in by_pattern.items()}
    several = [t for t in measurements.aggregations if t.tensors > 1 and t.pattern in costs]
    small = [times for times in several if times.size_bytes <= SMALL_BYTES * times.tensors]
    request_s = _request_s(small, costs, empty_s, measurements.workers, calibration.request_share)
    for times in several:
        if times not in small:
            costs[times.pattern] = _with_busy(costs[times.pattern], times, empty_s)
    best = cheapest(costs, JUDGED_AT_BYTES)
    links = tuple(_links(measurements))
    busy = {name: cost.busy_s_per_byte for name, cost in costs.items() if cost.busy_s_per_byte}
    if busy:
        # Several tensors at a time leave no link idle: the fastest pattern shows what links carry.
        bytes_per_s = max(_rate(each, name, measurements.workers) for name, each in busy.items())
    elif links:
        bytes_per_s = min(link.bytes_per_s for link in links)
    else:
        slope = max(costs[best].s_per_byte, _slope_of_largest(by_pattern[best]))
        bytes_per_s = _rate(slope, best, measurements.workers)
    return NetworkModel(
        workers=measurements.workers,
        costs=costs,
        bytes_per_s=bytes_per_s,
        threshold_bytes=threshold(costs[best]) if threshold_bytes is None else threshold_bytes,
        links=links,
        empty_s=empty_s,
        request_s=request_s,
    )


def _request_s(
    small: Sequence[AggregationTimes],
    costs: Mapping[str, TransferCost],
    empty_s: float,
    workers: int,
    share: float,
) -> float:
    """What asking for a message takes, from many small tensors, each of which is a single chunk."""
    if not small:
        return 0.0
    times = max(small, key=lambda each: each.tensors)
    steps = schedule(times.pattern, workers).steps
    received = sum(not isinstance(step, Reduce) and step.chunk == 0 for step in steps) / workers
    # The first tensor is in the latency.
    further_s = times.median_s - empty_s - costs[times.pattern].latency_s
    return max(0.0, share * further_s / (times.tensors - 1) / received)


def _fit_pattern(times: Sequence[AggregationTimes], empty_s: float) -> TransferCost:
    sizes = [each.size_bytes for each in times]
    if len(set(sizes)) < 2:
        raise ProfileError(
            f"'{times[0].pattern}' was measured with {sizes[0]} bytes only; a line needs two sizes"
        )
    return fit_line(sizes, [max(each.median_s - empty_s, 0.0) for each in times])


def _with_busy(cost: TransferCost, times: AggregationTimes, empty_s: float) -> TransferCost:
    """The cost with what each byte takes if several tensors are on their way, if it takes time."""
    busy_s = times.median_s - empty_s - cost.latency_s
    per_byte = busy_s / times.size_bytes if busy_s > 0.0 else None
    return dataclasses.replace(cost, busy_s_per_byte=per_byte)


def _slope_of_largest(times: Sequence[AggregationTimes]) -> float:
    """Seconds for each further byte between the two largest sizes.

    Links may let the begin of a transfer through at more than their rate; the line through all
    sizes is then too flat.
    """
    largest = {each.size_bytes: each.median_s for each in sorted(times, key=lambda t: t.size_bytes)}
    (smaller, before_s), (larger, after_s) = list(largest.items())[-2:]
    return max(0.0, (after_s - before_s) / (larger - smaller))


def fit_line(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> TransferCost:
    """The line through measurements with the least sum of squared *relative* errors.

    Absolute errors would let the largest size decide alone what nothing takes. Neither latency nor
    slope is negative: where the best line has such a one, it is the best of those with 0 instead.

    Args:
        sizes_bytes: at least two different ones.
        seconds: of each size.
    """
    sizes, times = np.asarray(sizes_bytes, float), np.asarray(seconds, float)
    largest = float(times.max())
    if largest <= 0.0:
        return TransferCost(0.0, 0.0, 0.0)
    weights = 1.0 / np.maximum(times, 1e-6 * largest) ** 2
    slope, latency = _weighted_line(sizes, times, weights, intercept=True)
    if latency < 0.0:
        slope, latency = _weighted_line(sizes, times, weights, intercept=False)
    elif slope < 0.0:
        slope, latency = 0.0, float(np.average(times, weights=weights))
    predicted = latency + slope * sizes
    measured = times > 0.0
    residual = np.max(np.abs(predicted - times)[measured] / times[measured])
    return TransferCost(latency, slope, float(residual))


def _weighted_line(
    sizes: np.ndarray, times: np.ndarray, weights: np.ndarray, *, intercept: bool
) -> tuple[float, float]:
    """Slope and value at 0."""
    # In units of the largest size: bytes and ones differ too much to be solved for together.
    unit, roots = float(sizes.max()), np.sqrt(weights)
    columns = [sizes / unit, np.ones_like(sizes)][: 1 + intercept]
    found = np.linalg.lstsq(np.column_stack(columns) * roots[:, None], times * roots, rcond=None)[0]
    return float(found[0]) / unit, float(found[1]) if intercept else 0.0


def threshold(cost: TransferCost, share: float = THRESHOLD_SHARE) -> int:
    """The least size x, in whole bytes from 1 on, with ``f(2x) / 2 f(x) > share``.

    For ``f(x) = a + b x`` that is ``x > (2 share - 1) / (2 - 2 share) * a / b``, or 1.5 a / b.

    Args:
        cost: the line f.
        share: between 1/2 and 1.

    Returns:
        1 without any latency; `LARGEST_THRESHOLD` if there is no such size.
    """
    if cost.latency_s <= 0.0:
        return 1
    if cost.s_per_byte <= 0.0:
        return LARGEST_THRESHOLD
    # In fractions, so that a bound that is a whole number is found to be one.
    exact_share = Fraction(str(share))
    factor = (2 * exact_share - 1) / (2 - 2 * exact_share)
    bound = factor * Fraction(cost.latency_s) / Fraction(cost.s_per_byte)
    return min(math.floor(bound) + 1, LARGEST_THRESHOLD)


def cheapest(costs: Mapping[str, TransferCost], size_bytes: int) -> str:
    """The pattern that aggregates `size_bytes` in the least time; the first one of equals."""
    order = [pattern for pattern in PATTERNS if pattern in costs]
    return min(order, key=lambda pattern: costs[pattern].seconds(size_bytes))


def _rate(s_per_byte: float, pattern: str, workers: int) -> float:
    """Bytes that a worker sends in a second while it aggregates."""
    shares = wire_shares(schedule(pattern, workers))
    return sum(shares) / s_per_byte if s_per_byte > 0.0 else NO_LIMIT_BYTES_PER_S


def _links(measurements: Measurements) -> Iterator[Link]:
    if not measurements.sends:
        return
    empty_s = statistics.median(measurements.empty_send_seconds)

    def pair(times: SendTimes) -> tuple[int, int]:
        return times.source, times.target

    for (source, target), group in groupby(sorted(measurements.sends, key=pair), key=pair):
        times = list(group)
        if len({each.size_bytes for each in times}) < 2:
            raise ProfileError(
                f"sending from worker {source} to {target} was measured with one size only; a "
                "line needs two"
            )
        line = fit_line(
            [each.size_bytes for each in times],
            [max(each.median_s - empty_s, 0.0) for each in times],
        )
        rate = 1.0 / line.s_per_byte if line.s_per_byte > 0.0 else NO_LIMIT_BYTES_PER_S
        yield Link(source, target, rate, line.latency_s)


# Without measurements ---------------------------------------------------------------------------


def assumed_network(workers: int, bytes_per_s: float, latency_s: float) -> NetworkModel:
    """The model of a network that nobody has measured: all links alike, adding takes no time, and
    links are busy for all of a transfer.

    A pattern's latency is `latency_s` for each transfer on the longest chain of its schedule: 1 for
    `exchange`, 2 for `shuffle`, 2 (N - 1) for `ring`, 2 log2 N for `halving_doubling`, and 2 more
    where N is no power of two. Its slope is what the busiest worker sends or receives between one
    link of this chain and the next, added up, over `bytes_per_s`: N - 1 for `exchange`, of the
    others 2 (N - 1) / N where all workers do the same.

    Args:
        workers: at least 1.
        bytes_per_s: payload that a worker can send, and at the same time receive, in a second.
        latency_s: of one transfer of a tensor of no size, in TensorFlow, one way.

    Raises:
        ProfileError: a number that cannot be.
    """
    if workers < 1 or not bytes_per_s > 0.0 or not latency_s >= 0.0:
        raise ProfileError(
            f"a network of {workers} workers with {bytes_per_s} bytes/s and a latency of "
            f"{latency_s} s cannot be: it needs at least 1 worker, a positive rate and no "
            "negative latency"
        )
    costs = {}
    for pattern in PATTERNS:
        shares = wire_shares(schedule(pattern, workers))
        slope = sum(shares) / bytes_per_s
        costs[pattern] = TransferCost(latency_s * len(shares), slope, busy_s_per_byte=slope)
    best = cheapest(costs, JUDGED_AT_BYTES)
    return NetworkModel(workers, costs, bytes_per_s, threshold(costs[best]))


def wire_shares(pattern: Schedule) -> tuple[float, ...]:
    """For each stage of an aggregation, which share of the tensor its busiest worker transfers.

    A transfer belongs to stage k if k others have to be over before it can begin, one after
    another. The busiest worker is the one that sends most, or the one that receives most.
    """
    # By worker and chunk: stages until it is there.
    arrived: dict[tuple[int, int], int] = defaultdict(int)
    kept_apart: dict[tuple[int, int, int], int] = {}
    moved: dict[int, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
    for step in pattern.steps:
        if isinstance(step, Reduce):
            here = (step.worker, step.chunk)
            others = [kept_apart.get((*here, member), 0) for member in step.order]
            arrived[here] = max(arrived[here], *others)
            continue
        stage = arrived[step.source, step.chunk]
        moved[stage]["sends", step.source] += 1
        moved[stage]["receives", step.target] += 1
        if isinstance(step, Gather):
            arrived[step.target, step.chunk] = stage + 1
        else:
            kept_apart[step.target, step.chunk, step.source] = stage + 1
    return tuple(max(moved[stage].values()) / pattern.chunks for stage in sorted(moved))
