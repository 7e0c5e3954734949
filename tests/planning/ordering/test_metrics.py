"""What the papers measure of orders, by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import PlanError
from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.makespan import resource_loads_s
from caramel.planning.ordering.metrics import (
    lower_makespan_s,
    ordering_efficiency,
    out_of_place_share,
    speedup,
    straggler_share,
    unique_orders,
    upper_makespan_s,
)
from tests.support.transfer_graphs import figure_1, random_job


def test_bounds_efficiency_and_speedup_of_figure_1():
    loads_s = resource_loads_s(*figure_1()).values()  # transfers 2 + 3, ops 4 + 5
    assert upper_makespan_s(loads_s) == 14
    assert lower_makespan_s(loads_s) == 9
    assert ordering_efficiency(loads_s, 11) == (14 - 11) / (14 - 9)  # the good order
    assert ordering_efficiency(loads_s, 14) == 0  # the bad one
    assert ordering_efficiency(loads_s, 9) == 1
    assert speedup(loads_s) == (14 - 9) / 9


def test_each_channel_is_a_resource():
    # Two servers 3 s each, computing 4 s: U = 10, L = 4.
    assert upper_makespan_s([4, 3, 3]) == 10
    assert lower_makespan_s([4, 3, 3]) == 4
    assert ordering_efficiency([4, 3, 3], 5) == (10 - 5) / (10 - 4)
    assert speedup([4, 3, 3]) == (10 - 4) / 4


def test_a_speedup_of_1_doubles_the_throughput():
    assert speedup([5, 5]) == 1


def test_where_one_resource_does_everything_no_order_matters():
    assert ordering_efficiency([5, 0], 5) == 0
    assert speedup([5, 0]) == 0
    assert speedup([]) == speedup([0, 0]) == ordering_efficiency([], 0) == 0


def test_a_step_that_takes_longer_than_all_its_parts_has_a_negative_efficiency():
    assert ordering_efficiency([3, 2], 6) == -0.5


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12))
def test_with_one_channel_efficiency_and_overlap_are_the_same(seed, recvs, ops):
    graph, time = random_job(random.Random(seed), recvs, ops)
    timeline = execute(graph, time, [recv.name for recv in graph.recvs])
    loads_s = resource_loads_s(graph, time)
    efficiency = ordering_efficiency(loads_s.values(), timeline.step_s)
    assert efficiency == pytest.approx(timeline.alpha)


def test_straggler_share():
    # Workers are done after 5, 8 and 10 s and wait for the last.
    assert straggler_share([5, 2, 0], 10) == 0.5


def test_unique_orders():
    assert unique_orders([["a", "b"], ("a", "b"), ["b", "a"]]) == 2
    assert unique_orders([]) == 0


@pytest.mark.parametrize(
    ("received", "late"),
    [
        ("abcdef", 0),
        ("bacdef", 1),  # a comes after b
        ("bcdefa", 1),  # a
        ("fabcde", 5),  # all but f come after f
        ("badcfe", 3),  # a, c, e
        ("fedcba", 5),
    ],
)
def test_a_transfer_is_out_of_place_if_it_comes_after_one_that_was_to_come_later(received, late):
    assert out_of_place_share("abcdef", received) == late / 6


def test_out_of_place_of_nothing_and_of_other_transfers():
    assert out_of_place_share([], []) == 0
    with pytest.raises(PlanError, match=r"\['b', 'c'\] are not in both"):
        out_of_place_share(["a", "b"], ["a", "c"])
    with pytest.raises(PlanError, match="received were 3 transfers"):
        out_of_place_share(["a", "b"], ["a", "b", "b"])
