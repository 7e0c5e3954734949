"""`dep`: which transfers an op waits for, directly or transitively."""

from __future__ import annotations

from caramel.planning.ordering.dependencies import communication_dependencies
from tests.support.transfer_graphs import figure_1, job


def test_figure_1():
    graph, _ = figure_1()
    # "op2.dep = {recv1, recv2}" (2018, section 4.1).
    assert communication_dependencies(graph) == {
        "recv1": 0b01,
        "recv2": 0b10,
        "op1": 0b01,
        "op2": 0b11,
    }


def test_what_is_reached_by_several_paths_counts_once_and_local_ops_depend_on_nothing():
    graph, _ = job(
        {"a": 1, "b": 1, "c": 1},
        {
            "join": (1, "left right"),
            "left": (1, "top b"),
            "right": (1, "top c"),
            "top": (1, "a local"),
            "local": (1, ""),
        },
    )
    depends = communication_dependencies(graph)
    assert depends["local"] == 0
    assert (depends["top"], depends["left"], depends["right"]) == (0b001, 0b011, 0b101)
    assert depends["join"] == 0b111
