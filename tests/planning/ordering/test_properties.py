"""M, P and M+ (Algorithm 1), by hand and by the papers' own form."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.ordering.properties import Outstanding, Properties
from tests.support import direct_ordering
from tests.support.transfer_graphs import figure_1, figure_4b, job, random_job, six_transfers

S = 10**12  # picoseconds in a second


def rows(outstanding):
    """M, P and M+ of each outstanding transfer, in seconds."""
    return {
        number: (own.m / S, own.p / S, own.m_plus / S)
        for number, own in outstanding.properties().items()
    }


def test_figure_1():
    # recv1 and recv2 take 2 and 3 s, op1 and op2 take 4 and 5 s.
    # P: recv1.P = Time(op1), recv2.P = 0. M+: both Time(recv1) + Time(recv2) (2018, section 4.1).
    assert rows(Outstanding(*figure_1())) == {0: (2, 4, 2 + 3), 1: (3, 0, 2 + 3)}


def test_figure_1_after_the_first_transfer():
    outstanding = Outstanding(*figure_1())
    outstanding.arrive(0)
    # op2 waits for recv2 only, so M+ is infinite: nothing waits for it and another one.
    assert rows(outstanding) == {1: (3, 5, math.inf)}
    outstanding.arrive(1)
    assert not outstanding
    assert rows(outstanding) == {}


def test_figure_4b():
    # A to D take 1, 2, 3 and 4 s. "recvA.M+ = recvB.M+ = Time(recvA) + Time(recvB) < recvC.M+ <
    # recvD.M+", and all P are 0.
    outstanding = Outstanding(*figure_4b())
    assert rows(outstanding) == {
        0: (1, 0, 1 + 2),
        1: (2, 0, 1 + 2),
        2: (3, 0, 1 + 2 + 3),
        3: (4, 0, 1 + 2 + 3 + 4),
    }
    outstanding.arrive(1)
    # op1 (5 s) waits for A only; op2 for A and C; op3 for A, C and D.
    assert rows(outstanding) == {0: (1, 5, 1 + 3), 2: (3, 0, 1 + 3), 3: (4, 0, 1 + 3 + 4)}


def test_six_transfers():
    # a to f take 2, 3, 1, 4, 2, 1 s; x1 (3 s) waits for a, x2 (1 s) for b, x3 (5 s) for c and d,
    # x4 (2 s) for a and b, x5 (4 s) for a, b and e, x6 (1 s) for all.
    outstanding = Outstanding(*six_transfers())
    assert rows(outstanding) == {
        0: (2, 3, 2 + 3),
        1: (3, 1, 2 + 3),
        2: (1, 0, 1 + 4),
        3: (4, 0, 1 + 4),
        4: (2, 0, 2 + 3 + 2),
        5: (1, 0, 2 + 3 + 1 + 4 + 2 + 1),
    }
    outstanding.arrive(0)
    # b alone: x2 and x4. b and e: x5. x6: b to f.
    assert rows(outstanding) == {
        1: (3, 1 + 2, 3 + 2),
        2: (1, 0, 1 + 4),
        3: (4, 0, 1 + 4),
        4: (2, 0, 3 + 2),
        5: (1, 0, 3 + 1 + 4 + 2 + 1),
    }
    outstanding.arrive(1)
    # e alone: x5. x6: c to f.
    assert rows(outstanding) == {
        2: (1, 0, 1 + 4),
        3: (4, 0, 1 + 4),
        4: (2, 4, 1 + 4 + 2 + 1),
        5: (1, 0, 1 + 4 + 2 + 1),
    }


def test_ops_that_take_no_time_count_for_m_plus():
    graph, time = job({"a": 1, "b": 1}, {"op": (0, "a b")})
    assert Outstanding(graph, time).properties()[0] == Properties(S, 0, 2 * S)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 16))
def test_updated_properties_are_those_of_the_papers_form(seed, recvs, ops):
    rng = random.Random(seed)
    graph, time = random_job(rng, recvs, ops, longest=4, local=rng.random())
    dep = direct_ordering.dependencies(graph)
    times = direct_ordering.whole_times(graph, time)
    outstanding = Outstanding(graph, time)
    remaining = list(range(recvs))
    while remaining:
        names = {i: graph.recvs[i].name for i in remaining}
        m, p, m_plus = direct_ordering.update_properties(dep, times, frozenset(names.values()))
        assert outstanding.properties() == {
            i: Properties(m[name], p[name], m_plus[name]) for i, name in names.items()
        }
        arrived = remaining.pop(rng.randrange(len(remaining)))
        outstanding.arrive(arrived)
