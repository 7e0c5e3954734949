"""The search is never worse than what it begins with, and close to the best there is."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import ProfileError
from caramel.planning.ordering.execution_order import execution_order
from caramel.planning.ordering.makespan import Makespan
from caramel.planning.ordering.search import search_order
from caramel.planning.ordering.tac import tac
from caramel.planning.ordering.tic import tic
from caramel.planning.ordering.time_oracle import TimeOracle
from tests.support.transfer_graphs import (
    best_makespan_s,
    figure_4a,
    job,
    random_job,
    shortest_by_brute_force_s,
    six_transfers,
)


def test_the_order_of_tac_stays_where_no_better_one_is_found():
    assert search_order(*six_transfers()) == ("a", "b", "e", "c", "d", "f")
    assert search_order(*figure_4a(m_a=3, m_b=1, p_a=5, p_b=4)) == ("B", "A")


def test_a_better_order_is_found_where_tac_is_misled():
    # TAC: a has P = 1, all others 0, so a goes first; then b and c, M+ 4 against 20. Computing
    # ends at 1 + 4 + ... The better order begins with what releases most.
    graph, time = job(
        {"a": 6, "b": 2, "c": 2},
        {"small": (1, "a"), "large": (20, "b c")},
    )
    # a, b, c: 6 s, small to 7, b and c to 10, large to 30.
    assert tac(graph, time) == ("a", "b", "c")
    assert Makespan(graph, time)(tac(graph, time)) == 30
    # b, c, a: 4 s, large to 24, a to 10, small to 25. Nothing can be computed before 4.
    assert Makespan(graph, time)(search_order(graph, time)) == 25


@given(st.integers(0, 10**6), st.integers(0, 9), st.integers(0, 20), st.integers(1, 3))
def test_it_is_never_worse_than_the_heuristics(seed, recvs, ops, channels):
    rng = random.Random(seed)
    graph, time = random_job(rng, recvs, ops, channels=channels, local=rng.random())
    makespan = Makespan(graph, time)
    found = search_order(graph, time, evaluations=20)
    starts = (tic(graph), tac(graph, time), execution_order(graph))
    assert makespan(found) <= min(map(makespan, starts))


@pytest.mark.parametrize("local", [0.0, 0.5, 0.9])
def test_it_is_within_two_percent_of_the_best_order_in_the_geometric_mean(local):
    rng = random.Random(1)
    ratios = []
    for _ in range(10):
        graph, time = random_job(rng, rng.randint(7, 9), 24, local=local)
        took_s = Makespan(graph, time)(search_order(graph, time, evaluations=300))
        ratios.append(took_s / best_makespan_s(graph, time))
    assert min(ratios) >= 1
    assert math.exp(fmean(map(math.log, ratios))) <= 1.02


@pytest.mark.parametrize("channels", [2, 3])
def test_it_is_as_close_with_several_channels(channels):
    rng = random.Random(2)
    ratios = []
    for _ in range(5):
        graph, time = random_job(rng, 5, 12, channels=channels, local=0.5)
        took_s = Makespan(graph, time)(search_order(graph, time, evaluations=300))
        ratios.append(took_s / shortest_by_brute_force_s(graph, time))
    assert min(ratios) >= 1
    assert math.exp(fmean(map(math.log, ratios))) <= 1.02


def test_more_evaluations_find_better_orders_of_a_graph_with_too_many_to_try():
    graph, time = random_job(random.Random(2), 40, 160, local=0.5)
    # Computing takes about as long as the transfers.
    time = TimeOracle({name: time_s / 4 for name, time_s in time.ops_s.items()}, time.transfers_s)
    makespan = Makespan(graph, time)
    with_tac, few, many = (
        makespan(search_order(graph, time, evaluations=count)) for count in (0, 100, 1000)
    )
    assert with_tac == makespan(tac(graph, time))
    assert few < 0.98 * with_tac
    assert many < 0.90 * with_tac


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 8))
def test_the_best_order_of_larger_graphs_is_that_of_brute_force(seed, recvs, ops):
    """What the tests above compare with."""
    graph, time = random_job(random.Random(seed), recvs, ops, local=0.5)
    assert best_makespan_s(graph, time) == shortest_by_brute_force_s(graph, time)


def test_nothing_to_order_and_unknown_times():
    assert search_order(*job({}, {"x": (1, "")})) == ()
    assert search_order(*job({"a": 1}, {})) == ("a",)
    with pytest.raises(ProfileError, match="how long transfer 'a' takes"):
        search_order(job({"a": 1}, {})[0], TimeOracle({}, {}))


def test_the_same_order_is_found_again():
    graph, time = random_job(random.Random(3), 9, 30)
    assert search_order(graph, time) == search_order(graph, time)
