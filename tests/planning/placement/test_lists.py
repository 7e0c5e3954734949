"""Ranks in the mean of all devices, and slots, computed by hand."""

from __future__ import annotations

from caramel.planning.placement.lists import (
    by_priority,
    list_placement,
    mean_down_ranks,
    mean_rate,
    mean_up_ranks,
)
from caramel.planning.placement.partitioners.peft import optimistic_costs
from caramel.planning.placement.problem import Device, Problem, Vertex
from tests.support.placement import diamond, digits, problem


def test_ranks_of_the_diamond():
    graph = diamond(2)
    assert mean_up_ranks(graph) == [10.25, 6, 6.75, 0.75]
    assert mean_down_ranks(graph) == [0, 3.5, 3.5, 9.5]


def test_the_latency_counts_for_each_transfer():
    assert mean_up_ranks(diamond(2, latency_s=1)) == [12.25, 7, 7.75, 0.75]


def test_the_mean_rate_is_that_between_different_devices():
    devices = (Device("d0"), Device("d1"))
    assert mean_rate(Problem((Vertex("v"),), (), devices, ((9, 1), (3, 9)))) == 2


def test_vertices_without_cost_follow_those_that_they_wait_for():
    graph = problem((0, 0, 0), [(2, 0, (1,)), (1, 0, (0,))], (1, 1), 1)
    assert list(by_priority(graph, mean_up_ranks(graph))) == [2, 1, 0]


def test_vertices_are_put_into_gaps():
    graph = problem((1, 3, 2, 1), [(0, 4, (1,))], (1, 1), 1, constraints={"v1": ("d1",)})
    # v0 0 to 1 on d0, v1 5 to 8 on d1. v2 ends at 2 in the gap of d1, at 3 on d0; then v3 at 2.
    assert list_placement(graph, (4, 3, 2, 1), share=1) == digits("0110")


def test_the_first_of_a_group_chooses_for_all():
    # v0 alone would end first on d0; v1, of the same group, must follow it there.
    graph = problem((1, 8), [(0, 1, (1,))], (2, 1), 1, together=((0, 1),))
    assert list_placement(graph, (1, 2), share=1) == digits("00")


def test_optimistic_costs_of_the_diamond():
    expected = [[2.75, 2.5], [0.875, 0.5], [0.875, 0.5], [0, 0]]
    assert optimistic_costs(diamond(16)).tolist() == expected
