"""When tasks begin and end: exact small cases, computed by hand."""

from __future__ import annotations

import pytest

from caramel.core.time_facts import Link
from caramel.simulation.engine import Kind, TaskGraph, run
from caramel.simulation.hardware import Hardware, Host
from tests.support.simulations import hosts

DELAY, COMPUTE, SEND = Kind.DELAY, Kind.COMPUTE, Kind.SEND


def times(graph, hardware=None):
    """Begin and end of every task."""
    begins_s, ends_s = run(graph, hardware or hosts(2, 100.0))
    return [(round(b, 9), round(e, 9)) for b, e in zip(begins_s, ends_s, strict=True)]


def send(graph, source, target, size, after=(), **options):
    return graph.add(SEND, source, size, after, target=target, **options)


def test_nothing_takes_no_time():
    assert times(TaskGraph()) == []


def test_a_chain():
    graph = TaskGraph()
    first = graph.add(COMPUTE, 0, 2.0)
    second = graph.add(DELAY, 0, 1.0, [first])
    third = send(graph, 0, 1, 50, [second])
    graph.add(COMPUTE, 1, 0.5, [third, first])
    assert times(graph) == [(0, 2), (2, 3), (3, 3.5), (3.5, 4)]


def test_a_host_computes_one_task_at_a_time_and_the_one_that_was_added_first_goes_first():
    graph = TaskGraph()
    for host in (0, 0, 1):
        graph.add(COMPUTE, host, 1.0)
    assert times(graph) == [(0, 1), (1, 2), (0, 1)]


def test_delays_take_place_at_once():
    graph = TaskGraph()
    for _ in range(3):
        graph.add(DELAY, 0, 1.0)
    assert times(graph) == [(0, 1)] * 3


def test_what_is_more_urgent_interrupts_what_runs():
    graph = TaskGraph()
    graph.add(COMPUTE, 0, 4.0, urgency=5)
    arrival = graph.add(DELAY, 0, 1.0)
    graph.add(COMPUTE, 0, 2.0, [arrival], urgency=-1)
    graph.add(COMPUTE, 0, 1.0, [arrival], urgency=7)
    assert times(graph) == [(0, 6), (0, 1), (1, 3), (6, 7)]


def test_two_transfers_share_the_link_of_their_sender():
    """The first 100 bytes go at half the rate; then the longer one has the link for itself."""
    graph = TaskGraph()
    send(graph, 0, 1, 50)
    send(graph, 0, 2, 150)
    assert times(graph, hosts(3, 100.0)) == [(0, 1), (0, 2)]


def test_two_transfers_share_the_link_of_their_receiver():
    graph = TaskGraph()
    send(graph, 0, 2, 50)
    send(graph, 1, 2, 150)
    assert times(graph, hosts(3, 100.0)) == [(0, 1), (0, 2)]


def test_a_transfer_that_comes_later_goes_behind_those_before():
    graph = TaskGraph()
    first = graph.add(DELAY, 0, 1.0)
    send(graph, 0, 1, 50, [first])
    send(graph, 0, 1, 200)
    assert times(graph) == [(0, 1), (2, 2.5), (0, 2)]


def test_of_transfers_that_begin_together_the_least_urgent_goes_first():
    """And the last one of those that are as urgent. What begins later goes behind all of them."""
    graph = TaskGraph()
    later = graph.add(DELAY, 0, 0.25)
    send(graph, 0, 1, 50, [later], urgency=9)
    for urgency in (1, 3, 3, 2):
        send(graph, 0, 1, 50, urgency=urgency)
    assert times(graph)[1:] == [(2, 2.5), (1.5, 2), (0.5, 1), (0, 0.5), (1, 1.5)]


def test_connections_share_what_a_host_sends_and_each_goes_in_order():
    """Host 0 sends 100 bytes to each of the others in 2 s, then 100 more to host 1 alone."""
    graph = TaskGraph()
    later = graph.add(DELAY, 0, 0.5)
    send(graph, 0, 1, 100)
    send(graph, 0, 2, 100)
    send(graph, 0, 1, 100, [later])
    assert times(graph, hosts(3, 100.0)) == [(0, 0.5), (0, 2), (0, 2), (2, 3)]


def test_a_link_carries_both_directions_at_once():
    graph = TaskGraph()
    send(graph, 0, 1, 100)
    send(graph, 1, 0, 100)
    assert times(graph) == [(0, 1), (0, 1)]


def test_the_slower_end_of_a_link_counts():
    hardware = Hardware((Host(100.0, 100.0), Host(400.0, 25.0), Host(50.0, 100.0)), {})
    graph = TaskGraph()
    send(graph, 0, 1, 100)
    send(graph, 2, 0, 100)
    assert times(graph, hardware) == [(0, 4), (0, 2)]


def test_a_link_that_was_measured_is_no_faster_than_that():
    hardware = Hardware((Host(100.0, 100.0),) * 2, {}, (Link(0, 1, 20.0, 0.0),))
    graph = TaskGraph()
    send(graph, 0, 1, 100)
    send(graph, 1, 0, 100)
    assert times(graph, hardware) == [(0, 5), (0, 1)]


def test_a_transfer_arrives_some_time_after_its_last_byte_when_others_have_the_link():
    graph = TaskGraph()
    later = graph.add(DELAY, 0, 0.25)
    send(graph, 0, 1, 100, latency_s=0.5)
    send(graph, 0, 1, 50, [later])
    send(graph, 0, 1, 0, latency_s=0.25)
    assert times(graph) == [(0, 0.25), (0, 1.5), (1, 1.5), (0, 0.25)]


def test_a_byte_may_be_worth_several():
    graph = TaskGraph()
    send(graph, 0, 1, 100, worth=1.5)
    assert times(graph) == [(0, 1.5)]


def test_what_takes_no_time_ends_at_once_with_all_that_waited_for_it():
    graph = TaskGraph()
    first = graph.add(COMPUTE, 0, 1.0)
    second = graph.add(COMPUTE, 0, 0.0, [first])
    third = send(graph, 0, 1, 0, [second])
    graph.add(COMPUTE, 1, 1.0, [third])
    graph.add(COMPUTE, 0, 1.0)
    assert times(graph) == [(0, 1), (1, 1), (1, 1), (1, 2), (1, 2)]


def test_a_slower_host_takes_longer():
    hardware = Hardware((Host(100.0, 100.0, slowdown=1.5), Host(100.0, 100.0)), {})
    graph = TaskGraph()
    graph.add(COMPUTE, 0, 2.0)
    graph.add(COMPUTE, 1, 2.0)
    assert times(graph, hardware) == [(0, 3), (0, 2)]


@pytest.mark.parametrize(("cores", "end_s"), [(None, 2.0), (1, 2.5), (2, 2.25)])
def test_a_processor_that_transfers_computes_more_slowly(cores, end_s):
    """While 100 bytes/s go out, 0.005 s of each core-second per byte: half of one core."""
    graph = TaskGraph()
    graph.add(COMPUTE, 0, 2.0)
    send(graph, 0, 1, 100)
    hardware = hosts(2, 100.0, cores=cores, processor_s_per_byte=0.005)
    assert times(graph, hardware)[0] == (0, end_s)


def test_the_busier_direction_counts_for_the_processor():
    """200 bytes come in for 2 s, 50 go out for 0.5 s: 100 bytes/s all the time."""
    graph = TaskGraph()
    graph.add(COMPUTE, 0, 2.0)
    send(graph, 1, 0, 200)
    send(graph, 0, 1, 50)
    hardware = hosts(2, 100.0, cores=1, processor_s_per_byte=0.005)
    assert times(graph, hardware)[0] == (0, 3.0)


def test_some_of_the_processor_is_left_for_computation_however_much_is_transferred():
    graph = TaskGraph()
    graph.add(COMPUTE, 0, 1.0)
    send(graph, 0, 1, 1000)
    hardware = hosts(2, 100.0, cores=1, processor_s_per_byte=1.0)
    assert times(graph, hardware)[0] == (0, 10.5)


def test_tasks_that_wait_for_each_other_are_noticed():
    graph = TaskGraph()
    first = graph.add(DELAY, 0, 1.0)
    second = graph.add(DELAY, 0, 1.0, [first])
    graph.wait(first, [second])
    with pytest.raises(AssertionError, match="wait for each other"):
        times(graph)


def test_rounding_does_not_tell_apart_what_begins_together():
    """Seven times 0.1 s, added up, is not quite 0.7 s."""
    graph = TaskGraph()
    last = []
    for _ in range(7):
        last = [graph.add(DELAY, 0, 0.1, last)]
    send(graph, 0, 1, 100, last)
    send(graph, 0, 1, 100, [graph.add(DELAY, 0, 0.7)], urgency=1)
    assert [end for _, end in times(graph)[-3:]] == [2.7, 0.7, 1.7]
