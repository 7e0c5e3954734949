"""The pattern "auto" is the one with the least predicted time, if that is clearly less."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError
from caramel.core.patterns import PATTERNS
from caramel.core.time_facts import NetworkModel, TransferCost
from caramel.planning.pattern_choice import pattern_of, seconds_of, usual_pattern


def network(workers=3, **costs):
    return NetworkModel(
        workers,
        {
            name: TransferCost(latency_s, s_per_byte)
            for name, (latency_s, s_per_byte) in costs.items()
        },
        bytes_per_s=1e8,
        threshold_bytes=1000,
    )


MB = 10**6
MODEL = network(shuffle=(1.0, 0.3), halving_doubling=(2.0, 0.2), ring=(4.0, 0.1))


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("size_bytes", "pattern"),
    [
        (0, "shuffle"),
        (12, "shuffle"),  # 4.4 s are less than 4.6 s, but not by enough
        (13, "halving_doubling"),
        (19, "halving_doubling"),
        (21, "ring"),
    ],
)
def test_auto_takes_what_is_clearly_the_fastest_at_that_size(workers, size_bytes, pattern):
    costs = {name: (c.latency_s, c.s_per_byte) for name, c in MODEL.costs.items()}
    model = network(workers, **costs)
    assert pattern_of(size_bytes, model) == pattern
    assert seconds_of(size_bytes, model) == model.costs[pattern].seconds(size_bytes)


def test_ties_go_to_the_first_pattern():
    same = dict.fromkeys(reversed(PATTERNS), (1.0, 0.1))
    assert pattern_of(100, network(**same)) == "shuffle"
    del same["shuffle"]
    assert pattern_of(100, network(**same)) == "ring"


def test_between_two_workers_an_exchange_is_usual():
    """Of two patterns that send the same it has fewer rounds; a clearly faster one is taken."""
    assert pattern_of(100, network(2, shuffle=(1.0, 0.97), exchange=(1.0, 1.0))) == "exchange"
    assert pattern_of(100, network(2, shuffle=(1.0, 0.94), exchange=(1.0, 1.0))) == "shuffle"
    assert pattern_of(100, network(3, shuffle=(1.0, 1.0), exchange=(1.0, 0.97))) == "shuffle"
    assert pattern_of(100, network(2, shuffle=(1.0, 1.0), ring=(1.0, 0.97))) == "shuffle"


def test_patterns_without_a_cost_are_not_considered():
    assert pattern_of(10**6, network(shuffle=(9.0, 9.0))) == "shuffle"


def test_a_pattern_that_is_given_is_taken():
    assert pattern_of(0, MODEL, "ring") == "ring"
    assert seconds_of(10, MODEL, "ring") == 5.0


def test_a_fitted_line_below_zero_costs_nothing():
    assert seconds_of(0, network(ring=(-1.0, 0.1)), "ring") == 0.0


@pytest.mark.parametrize(
    ("model", "pattern", "message"),
    [
        (network(), "auto", "'auto' needs the cost of at least one of shuffle, ring"),
        (network(all_gather=(1.0, 0.1)), "auto", "the network model has none of them"),
        (network(shuffle=(1.0, 0.1)), "ring", "no cost of pattern 'ring'; it has shuffle"),
        (MODEL, "star", "unknown pattern 'star'"),
    ],
)
def test_what_cannot_be_predicted_is_refused(model, pattern, message):
    with pytest.raises(PlanError, match=message):
        seconds_of(10, model, pattern)


@pytest.mark.parametrize(
    ("size_bytes", "workers", "pattern"),
    [
        (100 * MB, 2, "exchange"),  # between two, all patterns send the same
        (0, 2, "exchange"),
        (3 * 64 * 2**10, 3, "ring"),
        (3 * 64 * 2**10 - 4, 3, "shuffle"),
        (64 * 2**10, 8, "shuffle"),  # chunks of 8 KB: fourteen rounds would cost more
        (MB, 8, "ring"),
        (0, 8, "shuffle"),
    ],
)
def test_the_usual_pattern_where_nothing_was_measured(size_bytes, workers, pattern):
    assert usual_pattern(size_bytes, workers) == pattern
