"""Ranks are those that the equations print."""

from __future__ import annotations

from caramel.planning.placement.ranks import (
    by_rank,
    critical_path,
    down_ranks,
    total_ranks,
    up_ranks,
)
from tests.support.placement import constrained_diamond, diamond, problem


def test_the_diamond():
    graph = diamond(2)
    assert up_ranks(graph) == [7, 4, 5, 1]
    assert down_ranks(graph) == [2, 5, 6, 7]
    assert total_ranks(graph) == [9, 9, 11, 8]
    assert critical_path(graph) == (0, 2, 3)


def test_ties_of_a_path_go_to_the_lower_vertex():
    graph = problem((1, 1, 1, 1), [(0, 1, (2, 3)), (1, 1, (2, 3))], (1,), 1)
    assert critical_path(graph) == (0, 2)


def test_a_group_has_the_largest_rank_of_its_members():
    graph = constrained_diamond()
    assert graph.groups == ((0, 3), (1,), (2,))
    assert by_rank(graph, total_ranks(graph)) == [2, 0, 1]
