"""The makespan without computing op by op is that of the executor."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import PlanError
from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.makespan import Makespan, resource_loads_s
from caramel.planning.ordering.metrics import lower_makespan_s, upper_makespan_s
from tests.support.transfer_graphs import figure_1, job, random_job, six_transfers


def test_figure_1():
    makespan = Makespan(*figure_1())
    assert makespan(["recv1", "recv2"]) == 11
    assert makespan(["recv2", "recv1"]) == 14


def test_six_transfers():
    makespan = Makespan(*six_transfers())
    assert makespan("abecdf") == 18
    # a 2, b 5, c 6, d 10, e 12, f 13; x1 to 5, x2 to 6, x4 to 8, x3 10 to 15, x5 to 19, x6 to 20.
    assert makespan("abcdef") == 20
    assert makespan.least_picoseconds == 16 * 10**12  # 3 + 1 + 5 + 2 + 4 + 1


@given(
    st.integers(0, 10**6), st.integers(0, 7), st.integers(0, 16), st.integers(1, 3), st.booleans()
)
def test_it_is_that_of_the_executor_on_any_graph_and_order(seed, recvs, ops, channels, fine):
    rng = random.Random(seed)
    graph, time = random_job(
        rng, recvs, ops, longest=10**9 if fine else 3, channels=channels, local=rng.random()
    )
    order = rng.sample([recv.name for recv in graph.recvs], recvs)
    took_s = Makespan(graph, time)(order)
    assert took_s == execute(graph, time, order).step_s
    loads_s = resource_loads_s(graph, time).values()
    assert lower_makespan_s(loads_s) <= took_s <= upper_makespan_s(loads_s)


def test_loads_are_those_of_computing_and_of_each_channel():
    graph, time = job(
        {"a": 2, "b": 3, "c": 4}, {"x": (1, "a b"), "y": (5, "c")}, channels={"b": "s1"}
    )
    assert resource_loads_s(graph, time) == {None: 6, "server": 6, "s1": 3}


def test_an_order_names_each_transfer_once():
    with pytest.raises(PlanError, match="names each of 2"):
        Makespan(*figure_1())(["recv1", "recv1"])
