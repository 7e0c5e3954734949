"""Placements fit into the memory that there is when they are simulated, or are refused."""

from __future__ import annotations

import math

import pytest

from caramel.core.errors import PlanError
from caramel.planning.placement.memory import peaks, tensor_share
from caramel.planning.placement.place import place
from caramel.planning.placement.problem import Device, Problem, Tensor, Vertex, equal_rates
from caramel.planning.placement.simulate import simulate
from tests.support.placement import chain, digits, problem


@pytest.mark.parametrize(
    ("memory", "placement", "makespan_s", "needs"),
    [(12, "001", 10, (12, 6)), (10, "010", 12, (10, 8))],
)
def test_a_chain_that_no_device_holds_is_spread(memory, placement, makespan_s, needs):
    placed = place(chain(memory), "critical_path", "pct")
    assert placed.placement == digits(placement)
    assert (placed.makespan_s, placed.peaks) == (makespan_s, needs)


def test_a_chain_for_which_no_placement_is_found_is_refused():
    message = (
        "no placement by 'critical_path' fits: device 'd0' needs 10 bytes and has 8; 8 stay there; "
        "the largest tensors are 2 bytes of 'v0', 2 bytes of 'v1'"
    )
    with pytest.raises(PlanError, match=message):
        place(chain(8), "critical_path")


def test_a_vertex_that_fits_on_no_device_is_named():
    message = r"'v1' needs 8 bytes \(4 stay there.*4 are read.*the largest, 'd0', has 7"
    with pytest.raises(PlanError, match=message):
        place(chain(7), "critical_path")


def test_a_group_that_fits_on_no_device_is_refused_by_what_stays_there():
    graph = problem((1, 1, 1), [], (1, 1), 1, memory=7, resident=4, together=((0, 2),))
    with pytest.raises(PlanError, match=r"'v0' needs 8 bytes \(8 stay there"):
        place(graph, "hash")


def graph_of(vertices, tensors):
    devices = (Device("d0"), Device("d1"))
    return Problem(vertices, tensors, devices, equal_rates(2, 1.0))


def needs(graph, placement, **options):
    placed = digits(placement)
    return peaks(graph, placed, simulate(graph, placed, **options))


@pytest.mark.parametrize(("is_aside", "need"), [(False, 15), (True, 10)])
def test_what_is_executed_aside_lets_go_of_what_it_reads(is_aside, need):
    """Two gradients of 5 bytes; the first one's update comes last, after 3 s of something else."""
    vertices = (
        Vertex("gradient", 1),
        Vertex("other", 3),
        Vertex("more", 1),
        Vertex("update", 1, is_aside=is_aside),
    )
    tensors = (Tensor(0, 5, (1, 3)), Tensor(1, 5, (2,)), Tensor(2, 5, ()))
    graph = graph_of(vertices, tensors)
    schedule = simulate(graph, (0, 0, 0, 0), order=(0, 1, 2, 3))
    assert peaks(graph, (0, 0, 0, 0), schedule) == [need, 0]


def test_a_tensor_is_kept_until_it_has_been_sent():
    # v0's tensor of 8 bytes is on its way until 9, while v1 puts out 3 bytes from 1 to 2.
    graph = problem((1, 1, 1), [(0, 8, (2,)), (1, 3, ())], (1, 1), 1)
    assert needs(graph, "001") == [11, 8]
    assert needs(graph, "000", order=(0, 2, 1)) == [8, 0]


def test_what_hands_on_keeps_what_it_hands_on():
    vertices = tuple(Vertex(f"v{n}", 1) for n in range(5))
    tensors = (
        Tensor(0, 6, (1,)),
        Tensor(1, 6, (4,), hands_on=0),  # a reshape
        Tensor(2, 5, (3,)),
    )
    graph = graph_of(vertices, tensors)
    # The reshape has no memory of its own on its device, but v0's tensor lives until v4 has ended.
    assert needs(graph, "00000", order=(0, 1, 2, 3, 4)) == [11, 0]
    # On another device the reshape has.
    assert needs(graph, "00001", order=(0, 1, 2, 3, 4)) == [11, 6]


def test_reading_a_variable_takes_no_memory_besides_the_variable():
    vertices = (Vertex("handle", 0, 10), Vertex("read", 0), Vertex("use", 1))
    tensors = (Tensor(0, 0, (1,)), Tensor(1, 10, (2,), hands_on=0))
    assert needs(graph_of(vertices, tensors), "000") == [10, 0]
    assert needs(graph_of(vertices, tensors), "001") == [10, 10]


def test_what_ends_makes_room_for_what_begins():
    graph = problem((1, 1, 1), [(0, 4, (1,)), (2, 4, ())], (1,), 1)
    assert needs(graph, "000", order=(0, 1, 2)) == [4]


def test_what_takes_no_time_needs_memory_nevertheless():
    assert needs(problem((0,), [(0, 4, ())], (1,), 1), "0") == [4]


def test_without_limits_everything_fits():
    assert place(chain(math.inf), "critical_path").placement == digits("000")


def test_the_share_of_tensors_that_are_there_at_once():
    # Of three tensors of 2 bytes, two.
    graph = problem((1,) * 4, [(n, 2, (n + 1,)) for n in range(3)], (1, 2), 1, resident=5)
    assert tensor_share(graph) == pytest.approx(2 / 3)
    assert tensor_share(problem((1,), [], (1,), 1)) == 1
