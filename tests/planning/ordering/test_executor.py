"""Exact timelines of small steps."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError, ProfileError
from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.time_oracle import TimeOracle
from tests.support.transfer_graphs import figure_1, job, six_transfers


def intervals(graph, time, order):
    return {s.name: (s.begin_s, s.end_s) for s in execute(graph, time, order).spans}


def test_good_order_of_figure_1():
    assert intervals(*figure_1(), ["recv1", "recv2"]) == {
        "recv1": (0, 2),
        "recv2": (2, 5),
        "op1": (2, 6),
        "op2": (6, 11),
    }


def test_bad_order_of_figure_1():
    assert intervals(*figure_1(), ["recv2", "recv1"]) == {
        "recv2": (0, 3),
        "recv1": (3, 5),
        "op1": (5, 9),
        "op2": (9, 14),
    }


def test_six_transfers():
    assert intervals(*six_transfers(), "abecdf") == {
        "a": (0, 2),
        "b": (2, 5),
        "e": (5, 7),
        "c": (7, 8),
        "d": (8, 12),
        "f": (12, 13),
        "x1": (2, 5),
        "x2": (5, 6),
        "x4": (6, 8),
        "x5": (8, 12),
        "x3": (12, 17),
        "x6": (17, 18),
    }


def test_channels_carry_their_parts_of_the_order_side_by_side():
    graph, time = job(
        {"a": 2, "b": 3, "c": 4},
        {"x": (1, "a b"), "y": (1, "c")},
        channels={"a": "s0", "b": "s1", "c": "s0"},
    )
    assert intervals(graph, time, "cba") == {
        "c": (0, 4),
        "b": (0, 3),
        "a": (4, 6),
        "y": (4, 5),
        "x": (6, 7),
    }


def test_ops_are_computed_in_the_order_in_which_they_get_ready_and_then_of_definition():
    # y and z get ready at 1, x at 2; w at 6, when z ends.
    graph, time = job(
        {"a": 1, "b": 1},
        {"w": (1, "z"), "x": (1, "b"), "y": (3, "a"), "z": (2, "a")},
    )
    assert intervals(graph, time, "ab") == {
        "a": (0, 1),
        "b": (1, 2),
        "y": (1, 4),
        "z": (4, 6),
        "x": (6, 7),
        "w": (7, 8),
    }


def test_ops_that_need_no_transfer_begin_at_once():
    graph, time = job({"a": 5}, {"batch": (2, ""), "x": (1, "batch a")})
    assert intervals(graph, time, "a") == {"a": (0, 5), "batch": (0, 2), "x": (5, 6)}


def test_an_op_may_name_what_it_waits_for_twice():
    graph, time = job({"a": 1}, {"square": (2, "a a")})
    assert intervals(graph, time, "a")["square"] == (1, 3)


def test_a_step_lasts_until_the_last_transfer():
    graph, time = job({"a": 1, "unused": 7}, {"x": (1, "a")})
    assert execute(graph, time, ["a", "unused"]).step_s == 8


def test_orders_and_times_that_do_not_fit_are_errors():
    graph, time = figure_1()
    with pytest.raises(PlanError, match=r"missing are \['recv2'\]"):
        execute(graph, time, ["recv1"])
    with pytest.raises(ProfileError, match="how long transfer 'recv1' takes"):
        execute(graph, TimeOracle({}, {}), ["recv1", "recv2"])
