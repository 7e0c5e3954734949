"""Schedulers and links do what they say, computed by hand."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError
from caramel.planning.placement.schedulers import path_times
from caramel.planning.placement.simulate import simulate
from tests.support.placement import diamond, digits, problem


def makespans(graph, placement):
    return [simulate(graph, digits(placement), name).makespan_s for name in ("fifo", "pct", "msr")]


def test_first_what_leads_to_the_longest_path():
    assert makespans(problem((3, 1, 5), [(1, 2, (2,))], (1, 1), 1), "001") == [11, 8, 8]


def test_first_what_lets_an_idle_device_go_on():
    graph = problem((2, 2, 9, 5), [(0, 1, (2,)), (1, 1, (3,))], (1, 1), 1)
    assert makespans(graph, "0001") == [13, 19, 13]


def test_successors_count_more_if_only_this_vertex_holds_them_back():
    # v3 waits for v0 and v2, v4 for v1 only: both elsewhere, so v1 counts 8 and v0 counts 2.
    graph = problem((1, 1, 1, 1, 1), [(0, 0, (3,)), (2, 0, (3,)), (1, 0, (4,))], (1, 1, 1), 1)
    assert simulate(graph, digits("00212"), "msr").order[:2] == [1, 2]
    # On a device that is not idle, v4 counts no more than 3; then the longer path decides.
    busy = problem((1, 1, 5, 9, 1), [(0, 0, (3,)), (1, 0, (4,))], (1, 1), 1)
    assert simulate(busy, digits("00101"), "msr").order[:2] == [1, 2]


def test_links_carry_one_transfer_at_a_time_if_they_shall():
    graph = problem((1, 1, 1), [(0, 4, (2,)), (1, 4, (2,))], (1, 1), 2)
    assert simulate(graph, digits("001"), links="free").makespan_s == 5
    one = simulate(graph, digits("001"), links="one")
    assert one.makespan_s == 6
    assert one.transfers == [(0, 1, 1, 3), (1, 1, 3, 5)]


def test_a_tensor_goes_to_each_device_once_and_takes_the_latency_besides():
    graph = problem((1, 1, 1), [(0, 4, (1, 2))], (1, 1), 2, latency_s=0.5)
    schedule = simulate(graph, digits("011"))
    assert schedule.transfers == [(0, 1, 1, 3.5)]
    assert schedule.begins == [0, 3.5, 4.5]


def test_what_happens_at_a_moment_precedes_the_choices_of_that_moment():
    # At 2 v0 ends, and v3, whose path is longer than that of v2, gets executable.
    graph = problem((2, 2, 1, 5), [(1, 0, (3,))], (1, 1), 1)
    assert simulate(graph, digits("0100"), "pct").begins == [0, 0, 7, 2]


def test_vertices_that_take_no_time_end_at_the_moment_at_which_they_begin():
    graph = problem((0, 0, 0), [(0, 0, (1,)), (1, 0, (2,))], (1,), 1)
    assert simulate(graph, digits("000")).ends == [0, 0, 0]


def test_path_times_count_transfers_between_devices_only():
    graph = diamond(2)
    assert path_times(graph, digits("1011")) == [9.5, 6.5, 2.5, 0.5]
    assert path_times(graph, digits("1111")) == [3.5, 2, 2.5, 0.5]


def test_a_held_order_waits_although_something_could_be_executed():
    graph = problem((3, 1, 5), [(1, 2, (2,))], (1, 1), 1)
    held = simulate(graph, digits("001"), order=(0, 1, 2))
    assert (held.makespan_s, held.order) == (11, [0, 1, 2])


def test_random_ties_of_fifo_follow_the_seed():
    graph = problem((1,) * 8, [], (1,), 1)
    orders = [tuple(simulate(graph, (0,) * 8, "fifo", seed=seed).order) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert simulate(graph, (0,) * 8, "fifo").order == list(range(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheduler": "best"}, "no scheduler 'best'; there are fifo, pct, msr"),
        ({"links": "two"}, "links are free or one, not 'two'"),
        ({"order": (0, 1, 1, 3)}, "each of 4 vertices once; this one has 4, 3 of them different"),
        ({"order": (3, 2, 1, 0)}, "cannot be held: 'v0' is never executed"),
    ],
)
def test_what_cannot_be_simulated(arguments, message):
    with pytest.raises(PlanError, match=message):
        simulate(diamond(2), digits("1111"), **arguments)
