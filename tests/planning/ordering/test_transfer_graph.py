"""Graphs of transfers: what they refuse, and in which order ops follow each other."""

from __future__ import annotations

import pytest

from caramel.core.errors import GraphError, PlanError
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph


def test_ops_follow_what_they_wait_for_in_whatever_order_they_are_defined():
    graph = TransferGraph((Recv("r"),), (Op("c", ("b",)), Op("b", ("a", "r")), Op("a")))
    assert [op.name for op in graph.ops_in_topological_order()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Op("a"), Op("a")), r"more than once: \['a'\]"),
        ((Op("r"),), r"more than once: \['r'\]"),
        ((Op("a", ("b", "r")),), r"op 'a' waits for \['b'\], which do not exist"),
        ((Op("a", ("a",)),), "wait for each other: a -> a"),
        ((Op("a", ("b",)), Op("b", ("a",))), "wait for each other: (a -> b -> a|b -> a -> b)"),
    ],
)
def test_a_graph_that_cannot_be_executed_is_refused(ops, message):
    with pytest.raises(GraphError, match=message):
        TransferGraph((Recv("r"),), ops)


def test_an_order_is_turned_into_places():
    graph = TransferGraph((Recv("a"), Recv("b"), Recv("c")), ())
    assert graph.numbers_of(["c", "a", "b"]) == [2, 0, 1]


@pytest.mark.parametrize("order", [["a"], ["a", "a"], ["a", "b", "b"], ["a", "x"]])
def test_an_order_names_each_transfer_once(order):
    with pytest.raises(PlanError, match="an order names each of 2 transfers once"):
        TransferGraph((Recv("a"), Recv("b")), ()).numbers_of(order)
