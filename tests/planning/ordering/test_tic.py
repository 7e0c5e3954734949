"""TIC (Algorithm 2) and Order(read) (execution-ordering, equation 3)."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.ordering.execution_order import (
    execution_order,
    execution_order_priorities,
)
from caramel.planning.ordering.tic import tic, tic_priorities
from tests.support import direct_ordering
from tests.support.transfer_graphs import (
    figure_1,
    figure_4a,
    figure_4b,
    job,
    random_job,
    six_transfers,
)


def test_figure_1_is_a_tie_that_the_order_of_definition_breaks():
    graph, _ = figure_1()
    assert tic_priorities(graph) == {"recv1": 2, "recv2": 2}  # op2 needs both
    assert tic(graph) == ("recv1", "recv2")


def test_figure_4a_is_a_tie():
    graph, _ = figure_4a()
    assert tic_priorities(graph) == {"A": 2, "B": 2}  # op3 needs both


def test_figure_4b():
    graph, _ = figure_4b()
    assert tic_priorities(graph) == {"A": 2, "B": 2, "C": 3, "D": 4}
    assert tic(graph) == ("A", "B", "C", "D")


def test_six_transfers():
    graph, _ = six_transfers()
    # a and b are needed by x4, c and d by x3; e by x5 with a and b; f by x6 with all.
    assert tic_priorities(graph) == {"a": 2, "b": 2, "c": 2, "d": 2, "e": 3, "f": 6}
    assert tic(graph) == ("a", "b", "c", "d", "e", "f")


def test_a_sequential_network_is_received_from_its_first_layer_on():
    # Five layers, defined from the last to the first. Layer 1 needs a, layer 2 needs a and b, ...
    graph, _ = job(
        dict.fromkeys("edcba", 1),
        {
            "l5": (1, "l4 e"),
            "l4": (1, "l3 d"),
            "l3": (1, "l2 c"),
            "l2": (1, "l1 b"),
            "l1": (1, "a"),
        },
    )
    assert tic_priorities(graph) == {"e": 5, "d": 4, "c": 3, "b": 2, "a": 2}
    assert tic(graph) == ("b", "a", "c", "d", "e")  # a and b tie; b is defined first


def test_a_transfer_that_no_op_needs_with_another_one_goes_last():
    graph, _ = job({"alone": 1, "unused": 1, "a": 1, "b": 1}, {"x": (1, "alone"), "y": (1, "a b")})
    assert tic_priorities(graph) == {"alone": math.inf, "unused": math.inf, "a": 2, "b": 2}
    assert tic(graph) == ("a", "b", "alone", "unused")


def test_times_do_not_matter():
    recvs, ops = {"a": 9, "b": 1, "c": 1}, {"x": (5, "a c"), "y": (1, "a b c")}
    assert tic(job(recvs, ops)[0]) == ("a", "c", "b")


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 16))
def test_tic_and_order_read_are_algorithm_2_on_any_graph(seed, recvs, ops):
    rng = random.Random(seed)
    graph, _ = random_job(rng, recvs, ops, local=rng.random())
    expected = direct_ordering.tic(graph)
    assert tic_priorities(graph) == expected
    assert execution_order_priorities(graph) == expected
    assert tic(graph) == execution_order(graph)


def test_order_read_of_figure_1():
    graph, _ = figure_1()
    # Dep(conv2) = {read1, read2} is the only one with more than one read.
    assert execution_order_priorities(graph) == {"recv1": 2, "recv2": 2}
    assert execution_order(graph) == ("recv1", "recv2")


def test_order_read_of_five_transfers():
    # |Dep|: p 2 (a, b), q 3 (a, b, c), r 2 (d, e), s 5. Order: a, b: 2; c: 3; d, e: 2.
    graph, _ = job(
        dict.fromkeys("cabde", 1),
        {"p": (1, "a b"), "q": (1, "p c"), "r": (1, "d e"), "s": (1, "q r")},
    )
    assert execution_order_priorities(graph) == {"c": 3, "a": 2, "b": 2, "d": 2, "e": 2}
    assert execution_order(graph) == ("a", "b", "d", "e", "c")
