"""A model of the network: lines fitted to measurements, the threshold, and assumed networks."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from caramel.core.errors import ProfileError
from caramel.core.measurements import AggregationTimes, Measurements, SendTimes
from caramel.core.patterns import PATTERNS, schedule
from caramel.core.time_facts import NetworkModel, TransferCost
from caramel.core.util.json_records import from_json_value, to_json_value
from caramel.simulation.network_model import (
    LARGEST_THRESHOLD,
    NO_LIMIT_BYTES_PER_S,
    assumed_network,
    cheapest,
    fit_line,
    fit_network,
    threshold,
    wire_shares,
)

MB = 2**20


def measured(cost, sizes=(64, 4 * MB), empty_s=0.0, pattern="shuffle"):
    """Aggregations that took exactly what a line says, and an empty step."""
    return tuple(
        AggregationTimes(pattern, size, (empty_s + cost.seconds(size),) * 3) for size in sizes
    )


# Fitting ----------------------------------------------------------------------------------------


def test_a_line_through_two_measurements_meets_both():
    cost = fit_line([100, 1100], [0.002, 0.004])  # 2 ms per 1000 bytes
    assert cost.s_per_byte == pytest.approx(2e-6)
    assert cost.latency_s == pytest.approx(0.0018)
    assert cost.residual == pytest.approx(0.0, abs=1e-12)


def test_errors_count_relative_to_what_was_measured():
    # 1, 2 and 3 bytes in 1, 2 and 4 s: least squares of (a + b x - y) / y by hand.
    # Weights 1, 1/4, 1/16: sums w 21/16, wx 27/16, wxx 41/16, wy 7/4, wxy 11/4.
    cost = fit_line([1, 2, 3], [1.0, 2.0, 4.0])
    slope = Fraction(11 * 21, 64) - Fraction(27 * 7, 64)
    slope /= Fraction(41 * 21, 256) - Fraction(27 * 27, 256)
    latency = (Fraction(7, 4) - slope * Fraction(27, 16)) / Fraction(21, 16)
    if latency < 0:  # then the best line through the origin
        slope, latency = Fraction(11, 4) / Fraction(41, 16), Fraction(0)
    assert cost.s_per_byte == pytest.approx(float(slope))
    assert cost.latency_s == pytest.approx(float(latency))
    worst = max(abs(float(latency + slope * x) - y) / y for x, y in ((1, 1), (2, 2), (3, 4)))
    assert cost.residual == pytest.approx(worst)


def test_neither_latency_nor_slope_is_negative():
    faster_when_large = fit_line([64, 4096], [0.003, 0.001])
    assert faster_when_large.s_per_byte == 0.0
    assert 0.001 <= faster_when_large.latency_s <= 0.003
    below_zero = fit_line([1000, 2000], [0.001, 0.003])
    assert below_zero.latency_s == 0.0
    assert below_zero.s_per_byte > 0.0
    assert fit_line([64, 4096], [0.0, 0.0]) == TransferCost(0.0, 0.0, 0.0)


lines = st.builds(
    TransferCost,
    st.floats(1e-6, 1.0),
    st.floats(1e-12, 1e-5),
)


@given(lines, st.lists(st.integers(4, 10**8), min_size=2, max_size=6, unique=True))
def test_an_exact_line_is_found_again(cost, sizes):
    assume(max(sizes) > 1.5 * min(sizes))
    assume(cost.s_per_byte * max(sizes) > 1e-3 * cost.latency_s)
    assume(cost.latency_s > 1e-3 * cost.s_per_byte * min(sizes))
    found = fit_line(sizes, [cost.seconds(size) for size in sizes])
    assert found.residual < 1e-6
    assert found.seconds(max(sizes)) == pytest.approx(cost.seconds(max(sizes)), rel=1e-6)
    assert found.s_per_byte == pytest.approx(cost.s_per_byte, rel=1e-3)
    assert found.latency_s == pytest.approx(cost.latency_s, rel=1e-3)


def test_what_an_empty_step_takes_is_no_latency():
    cost = TransferCost(0.002, 8e-9)
    found = fit_network(Measurements(2, measured(cost, empty_s=0.005), (0.004, 0.005, 0.009)))
    assert found.costs["shuffle"].latency_s == pytest.approx(0.002)
    assert found.costs["shuffle"].s_per_byte == pytest.approx(8e-9)
    assert found.threshold_bytes == pytest.approx(375_000, abs=1.01)


def test_an_aggregation_is_never_faster_than_nothing():
    quick = TransferCost(0.0, 0.0)
    found = fit_network(Measurements(2, measured(quick, empty_s=0.001), (0.002,)))
    assert found.costs["shuffle"] == TransferCost(0.0, 0.0, 0.0)
    assert found.bytes_per_s == NO_LIMIT_BYTES_PER_S
    text = json.dumps(to_json_value(found), allow_nan=False)
    assert from_json_value(NetworkModel, json.loads(text)) == found


def test_the_rate_of_a_worker_follows_from_the_slope():
    # 4 workers: each sends 2 * 3/4 bytes for every byte that is aggregated.
    found = fit_network(Measurements(4, measured(TransferCost(0.001, 1.5e-8)), (0.0,)))
    assert found.bytes_per_s == pytest.approx(1e8)
    assert found.links == ()


def test_several_tensors_at_a_time_tell_the_rate_of_a_busy_link():
    # 4 workers that each send 3/2 bytes for every byte: 16 MB in 0.16 s, and 1 ms of latency.
    alone, size = TransferCost(0.001, 1.2e-8), 16_000_000
    ring = AggregationTimes("ring", size, (0.501, 0.166, 0.165), tensors=4)
    shuffle = AggregationTimes("shuffle", size, (0.246,), tensors=4)
    times = measured(alone) + measured(alone, pattern="ring")
    found = fit_network(Measurements(4, (*times, ring, shuffle), (0.005,)))
    assert found.costs["ring"].busy_s_per_byte == pytest.approx(1e-8, rel=0.04)
    assert found.costs["shuffle"].busy_s_per_byte == pytest.approx(1.5e-8, rel=0.04)
    assert found.bytes_per_s == 1.5 / found.costs["ring"].busy_s_per_byte
    quick = AggregationTimes("ring", size, (0.001,), tensors=4)
    found = fit_network(Measurements(4, (*times, quick), (0.005,)))
    assert found.costs["ring"].busy_s_per_byte is None


def test_many_small_tensors_tell_what_asking_for_a_message_takes():
    # 4 workers: each receives 3/2 chunks of a tensor that is in one; 63 more take 94.5 ms.
    alone = TransferCost(0.002, 1.2e-8)
    some = AggregationTimes("ring", 16_000_000, (0.167,), tensors=4)
    many = AggregationTimes("shuffle", 64 * 64, (0.3, 0.1015, 0.1014), tensors=64)
    times = (*measured(alone, empty_s=0.005), *measured(alone, empty_s=0.005, pattern="ring"), some)
    found = fit_network(Measurements(4, (*times, many), (0.005,)))
    assert found.request_s == pytest.approx(0.45 * 1e-3)
    assert found.costs["shuffle"].busy_s_per_byte is None
    assert found.costs["ring"].busy_s_per_byte == pytest.approx(1e-8)
    assert fit_network(Measurements(4, times, (0.005,))).request_s == 0.0
    quick = AggregationTimes("shuffle", 64 * 64, (0.006,), tensors=64)
    assert fit_network(Measurements(4, (*times, quick), (0.005,))).request_s == 0.0


def test_the_slowest_link_tells_the_rate_where_pairs_were_measured():
    sends = tuple(
        SendTimes(source, target, size, (0.01 + latency + size / rate,) * 3)
        for source, target, latency, rate in ((0, 1, 0.001, 1e8), (1, 0, 0.002, 4e7))
        for size in (64, 4 * MB)
    )
    found = fit_network(
        Measurements(2, measured(TransferCost(0.001, 1e-8)), (0.0,), sends, (0.01,))
    )
    assert [(link.source, link.target) for link in found.links] == [(0, 1), (1, 0)]
    assert [link.bytes_per_s for link in found.links] == pytest.approx([1e8, 4e7])
    assert [link.latency_s for link in found.links] == pytest.approx([0.001, 0.002])
    assert found.bytes_per_s == pytest.approx(4e7)


def test_the_pattern_that_is_fastest_for_four_megabytes_gives_the_threshold():
    shuffle, ring = TransferCost(0.001, 1e-8), TransferCost(0.004, 0.5e-8)
    aggregations = measured(shuffle) + measured(ring, pattern="ring")
    found = fit_network(Measurements(3, aggregations, (0.0,)))
    assert cheapest(found.costs, 4 * MB) == "ring"
    assert found.threshold_bytes == pytest.approx(1.5 * 0.004 / 0.5e-8, rel=1e-6)
    by_hand = fit_network(Measurements(3, aggregations, (0.0,)), threshold_bytes=77)
    assert by_hand.threshold_bytes == 77


def test_too_few_measurements_are_refused():
    with pytest.raises(ProfileError, match="there are none"):
        fit_network(Measurements(2, (), (0.0,)))
    one = measured(TransferCost(0.001, 1e-8), sizes=(64,))
    with pytest.raises(ProfileError, match="'shuffle' was measured with 64 bytes only"):
        fit_network(Measurements(2, one, (0.0,)))
    two = measured(TransferCost(0.001, 1e-8))
    sends = (SendTimes(0, 1, 64, (0.1,)),)
    with pytest.raises(ProfileError, match="from worker 0 to 1 was measured with one size only"):
        fit_network(Measurements(2, two, (0.0,), sends, (0.0,)))


# The threshold ----------------------------------------------------------------------------------


def test_the_threshold_by_hand():
    # f(x) = 10 + x: f(2x) / 2f(x) = (10 + 2x) / (20 + 2x) > 0.8 from x > 15 on.
    assert threshold(TransferCost(10.0, 1.0)) == 16
    assert threshold(TransferCost(1.0, 4.0)) == 1
    assert threshold(TransferCost(0.0, 1.0)) == 1
    assert threshold(TransferCost(0.0, 0.0)) == 1
    assert threshold(TransferCost(1.0, 0.0)) == LARGEST_THRESHOLD == sys.maxsize
    assert threshold(TransferCost(1.0, 1e-300)) == LARGEST_THRESHOLD
    assert threshold(TransferCost(10.0, 1.0), share=0.5) == 1
    assert threshold(TransferCost(10.0, 1.0), share=0.9) == 41


def exceeds(cost, size):
    once = Fraction(cost.latency_s) + Fraction(cost.s_per_byte) * size
    twice = Fraction(cost.latency_s) + Fraction(cost.s_per_byte) * 2 * size
    return twice / (2 * once) > Fraction(8, 10)


@given(lines)
@example(TransferCost(10.0, 1.0))
def test_the_threshold_is_the_first_size_that_a_search_finds(cost):
    low, high = 0, 1
    while not exceeds(cost, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(cost, middle) else (middle, high)
    assert threshold(cost) == high


# A network that was not measured ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "workers", "shares"),
    [
        ("shuffle", 2, (1 / 2, 1 / 2)),
        ("shuffle", 4, (3 / 4, 3 / 4)),
        ("ring", 4, (1 / 4,) * 6),
        ("halving_doubling", 2, (1 / 2, 1 / 2)),
        # A finished chunk leaves for all partners at once: three go out in the fourth stage, two
        # of the one that came then and one of the other in the fifth.
        ("halving_doubling", 8, (1 / 2, 1 / 4, 1 / 8, 3 / 8, 3 / 8, 1 / 8)),
        # Worker 0 gets everything of worker 2 and half of worker 1's; sends its sum of the other
        # half to 1 and the finished half to both; gets the other finished half; passes it on.
        ("halving_doubling", 3, (3 / 2, 3 / 2, 1 / 2, 1 / 2)),
        ("shuffle", 1, ()),
        ("exchange", 2, (1,)),
        ("exchange", 4, (3,)),
    ],
)
def test_stages_of_an_aggregation(pattern, workers, shares):
    assert wire_shares(schedule(pattern, workers)) == pytest.approx(shares)


@pytest.mark.parametrize("workers", range(1, 20))
def test_an_assumed_network_has_the_costs_of_the_schedules(workers):
    model = assumed_network(workers, 1e8, 0.001)
    least = 2 * (workers - 1) / workers / 1e8
    power = workers.bit_length() - 1
    transfers = {
        "shuffle": 2 if workers > 1 else 0,
        "ring": 2 * (workers - 1),
        "halving_doubling": 2 * power + (2 if workers & (workers - 1) else 0),
        "exchange": 1 if workers > 1 else 0,
    }
    assert set(model.costs) == set(PATTERNS)
    for pattern, cost in model.costs.items():
        assert cost.latency_s == pytest.approx(0.001 * transfers[pattern])
        assert cost.s_per_byte >= least * (1 - 1e-12)
        if pattern == "exchange":
            assert cost.s_per_byte == pytest.approx((workers - 1) / 1e8)
        elif pattern != "halving_doubling" or not workers & (workers - 1):
            assert cost.s_per_byte == pytest.approx(least)
    assert (model.workers, model.bytes_per_s, model.links) == (workers, 1e8, ())
    if workers > 1:
        rounds = 1 if workers == 2 else 2  # of the fastest
        assert model.threshold_bytes == pytest.approx(1.5 * rounds * 0.001 / least, abs=1.01)


@pytest.mark.parametrize("given", [(0, 1e8, 0.1), (2, 0.0, 0.1), (2, 1e8, -1.0), (2, math.nan, 0)])
def test_an_impossible_network_is_refused(given):
    with pytest.raises(ProfileError, match="cannot be"):
        assumed_network(*given)
