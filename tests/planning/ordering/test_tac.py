"""TAC (Algorithm 3): both cases of its comparator, where it is not transitive, and how fast."""

from __future__ import annotations

import math
import random
import time as clock
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.properties import Outstanding, Properties
from caramel.planning.ordering.tac import next_transfer, precedes, tac
from tests.support import direct_ordering
from tests.support.transfer_graphs import (
    figure_1,
    figure_4a,
    figure_4b,
    job,
    random_job,
    residual_network,
    six_transfers,
)


def test_figure_1_takes_the_good_order():
    # min(P2 = 0, M1 = 2) = 0 < min(P1 = 4, M2 = 3) = 3: recv1 first.
    graph, time = figure_1()
    assert tac(graph, time) == ("recv1", "recv2")


def test_the_comparator_as_printed_would_take_the_bad_order_of_figure_1():
    graph, time = figure_1()
    one, two = Outstanding(graph, time).properties().values()
    # Algorithm 3, lines 2 to 5, for A = recv2 and B = recv1: min(P_A, M_B) < min(P_B, M_A).
    assert min(two.p, one.m) < min(one.p, two.m)
    assert precedes(one, two)
    assert not precedes(two, one)
    good, bad = (execute(graph, time, order).step_s for order in permutations(["recv1", "recv2"]))
    # recv1 until 2, op1 until 6, recv2 until 5, op2 until 11; recv2, recv1 until 5, then 4 + 5.
    assert (good, bad) == (11, 14)


def test_case_1_is_the_shorter_makespan_of_figure_4a_for_all_small_times():
    for m_a, m_b, p_a, p_b in product(range(4), repeat=4):
        graph, time = figure_4a(m_a=m_a, m_b=m_b, p_a=p_a, p_b=p_b)
        a, b = Outstanding(graph, time).properties().values()
        a_first, b_first = (execute(graph, time, order).step_s for order in permutations("AB"))
        # "M_A + max{P_A, M_B} + P_B", and op3, which takes 1 s.
        assert a_first == m_a + max(p_a, m_b) + p_b + 1
        assert precedes(a, b) == (a_first < b_first)
        assert tac(graph, time) == (("B", "A") if b_first < a_first else ("A", "B"))


def test_case_1_on_figure_4a():
    # min(P_B = 4, M_A = 3) = 3, min(P_A = 5, M_B = 1) = 1: B first. B until 1, op2 until 5, A until
    # 4, op1 until 10, op3 until 11; A first: A until 3, op1 until 8, op2 until 12, op3 until 13.
    graph, time = figure_4a(m_a=3, m_b=1, p_a=5, p_b=4)
    assert tac(graph, time) == ("B", "A")
    assert [execute(graph, time, order).step_s for order in ("BA", "AB")] == [11, 13]


def test_case_2_on_figure_4b():
    # All P are 0. M+ of A and B is 3, of C 6, of D 10: A, which ties with B, is defined first.
    # Then P of B is 5, of C and D 0; then P of C is 6, of D 0.
    graph, time = figure_4b()
    assert tac(graph, time) == ("A", "B", "C", "D")


def test_case_2_needs_no_order_of_definition():
    graph, time = figure_4b(defined="DCBA")
    assert tac(graph, time) == ("B", "A", "C", "D")


def test_six_transfers():
    # The properties are those of `test_properties.test_six_transfers`.
    # 1. a has M = 2 < P = 3. b: min(1, 2) = 1 < min(3, 3) = 3. Others: min(0, 2) < min(3, M).
    # 2. b has M = 3, P = 3, others P = 0: min(0, 3) = 0 < min(3, M).
    # 3. e has M = 2, P = 4, others P = 0.
    # 4. c, d and f have P = 0. x3: M+ of c and d is 1 + 4; x6: M+ of f is 1 + 4 + 1. c is defined
    #    before d.
    # 5. d has P = 5 (x3), f has P = 0.
    graph, time = six_transfers()
    assert tac(graph, time) == ("a", "b", "e", "c", "d", "f")


def test_a_sequential_network_is_received_from_its_first_layer_on():
    # Where TIC ties, P decides: only the next layer's transfer releases anything.
    graph, time = job(
        dict.fromkeys("edcba", 2),
        {
            "l5": (1, "l4 e"),
            "l4": (1, "l3 d"),
            "l3": (1, "l2 c"),
            "l2": (1, "l1 b"),
            "l1": (1, "a"),
        },
    )
    assert tac(graph, time) == ("a", "b", "c", "d", "e")


def test_m_adds_up_transfers_of_all_channels():
    # By one channel: M+ of a and b is 4 + 4, of c and d 1 + 6. Nothing else is decided.
    recvs, ops = {"a": 4, "b": 4, "c": 1, "d": 6}, {"x": (1, "a b"), "y": (1, "c d")}
    one = job(recvs, ops)
    two = job(recvs, ops, channels={"a": "s0", "b": "s1", "c": "s0", "d": "s1"})
    assert tac(*one) == tac(*two) == ("c", "d", "a", "b")


def test_equal_transfers_go_in_the_order_of_definition():
    assert tac(*job(dict.fromkeys("cab", 1), {})) == ("c", "a", "b")


def test_sums_of_decimal_fractions_tie():
    # M+ of a and b is 0.1 + 0.2, of c and d 0.15 + 0.15; as floats, the first is larger.
    recvs = {"a": 0.1, "b": 0.2, "c": 0.15, "d": 0.15}
    assert tac(*job(recvs, {"x": (1, "a b"), "y": (1, "c d")})) == ("a", "b", "c", "d")


# The comparator is not transitive ---------------------------------------------------------------


def properties_of(recvs, ops):
    graph, time = job(recvs, ops)
    names = [recv.name for recv in graph.recvs]
    return dict(zip(names, Outstanding(graph, time).properties().values(), strict=True))


def test_three_transfers_of_which_the_comparator_finds_one_minimum_or_another():
    # The smallest with times above 0, of all with 3 transfers of up to 3 s.
    #   M  P  M+
    # a 1  1  3
    # b 2  1  3    x (any time) waits for a and b
    # c 1  2  infinite
    own = properties_of(
        {"a": 1, "b": 2, "c": 1}, {"a1": (1, "a"), "b1": (1, "b"), "c1": (2, "c"), "x": (0, "a b")}
    )
    a, b, c = own.values()
    assert precedes(a, c)  # min(2, 1) = min(1, 1); 3 < infinite
    assert precedes(c, b)  # min(1, 1) = 1 < min(2, 2) = 2
    assert not precedes(a, b)  # min(1, 1) = min(1, 2); 3 = 3
    assert not precedes(b, a)
    # One scan for the least finds a, or c if it begins with b and compares a before c.
    assert scan([a, b, c]) is a
    assert scan([b, a, c]) is c
    for order in permutations(own.values()):
        assert order[next_transfer(dict(enumerate(order)))] is a  # the only one unpreceded


def scan(candidates):
    least = candidates[0]
    for candidate in candidates[1:]:
        if precedes(candidate, least):
            least = candidate
    return least


def test_four_transfers_of_which_each_is_preceded_by_another():
    # The smallest of all with 4 transfers of up to 2 s and up to two ops that wait for several.
    #   M  P  M+
    # a 1  0  3
    # b 2  1  3          x waits for a and b, y for a, b and c
    # c 1  1  4
    # d 1  2  infinite
    own = properties_of(
        {"a": 1, "b": 2, "c": 1, "d": 1},
        {
            "b1": (1, "b"),
            "c1": (1, "c"),
            "d1": (2, "d"),
            "x": (0, "a b"),
            "y": (0, "a b c"),
        },
    )
    a, b, c, d = own.values()
    assert (c.m_plus, d.m_plus) == (4e12, math.inf)
    assert precedes(b, a)  # min(0, 2) = 0 < min(1, 1) = 1
    assert precedes(b, c)  # min(1, 2) = min(1, 1); 3 < 4
    assert precedes(c, d)  # min(2, 1) = min(1, 1); 4 < infinite
    assert precedes(d, b)  # min(1, 1) = 1 < min(2, 2) = 2
    # By equation 6 alone none precedes c and d; of these c has the lesser M+.
    for order in permutations(own.values()):
        assert order[next_transfer(dict(enumerate(order)))] is c


SMALL = st.builds(
    Properties,
    st.integers(0, 4),
    st.integers(0, 4),
    st.one_of(st.integers(0, 6), st.just(math.inf)),
)


@given(st.lists(SMALL, min_size=1, max_size=7))
def test_the_next_transfer_is_the_minimum_by_the_rule_that_compares_all_with_all(drawn):
    own = dict(enumerate(drawn))
    m, p, m_plus = (
        {i: getattr(v, field) for i, v in own.items()} for field in Properties.__slots__
    )
    assert next_transfer(own) == direct_ordering.minimum(list(own), m, p, m_plus)


# Incremental and direct -------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 16))
def test_tac_is_the_papers_form_on_any_graph(seed, recvs, ops):
    rng = random.Random(seed)
    graph, time = random_job(rng, recvs, ops, longest=rng.choice([2, 9]), local=rng.random())
    assert tac(graph, time) == direct_ordering.tac(graph, time)


def test_tac_is_the_papers_form_on_a_residual_network():
    graph, time = residual_network(blocks=2)
    assert tac(graph, time) == direct_ordering.tac(graph, time)


def test_a_network_as_large_as_resnet_152_is_ordered_in_two_seconds():
    graph, time = residual_network()
    assert len(graph.recvs) == 363
    assert len(graph.ops) == 4604
    begin_s = clock.process_time()
    tac(graph, time)
    assert clock.process_time() - begin_s < 2
