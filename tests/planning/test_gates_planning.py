"""Transfers are gated so that a limited number of bytes is in flight, in the planned order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caramel.core.decision import Gate
from caramel.planning.gates import gates_of


def waits(*sizes, limit):
    """For each transfer the number of the one it waits for, or None."""
    gates = gates_of([(str(n), size) for n, size in enumerate(sizes)], in_flight_bytes=limit)
    after = {gate.group: int(gate.after) for gate in gates}
    assert len(after) == len(gates), "one gate at most for each group"
    return [after.get(str(n)) for n in range(len(sizes))]


def test_three_groups_of_a_third_of_the_limit_are_in_flight():
    transfers = [(f"g{n}", 4) for n in range(5)]
    assert gates_of(transfers, in_flight_bytes=12) == (
        Gate("g3", after="g0"),
        Gate("g4", after="g1"),
    )


def test_a_group_waits_for_the_earliest_that_makes_room():
    # 1 + 2 + 3 = 6 fit. The fourth (4) fits with none but the third (7 > 6): two are in flight all
    # the same, as neither exceeds the limit alone. The fifth (1) fits with the fourth.
    assert waits(1, 2, 3, 4, 1, limit=6) == [None, None, None, 1, 2]


def test_a_group_above_the_limit_goes_alone():
    assert waits(1, 9, 1, 1, limit=6) == [None, 0, 1, 1]


def test_what_fits_together_needs_no_gate():
    assert waits(1, 2, 3, limit=6) == [None, None, None]
    assert waits(limit=6) == []
    assert waits(9, limit=6) == [None]


@given(st.lists(st.integers(1, 12), max_size=20), st.integers(1, 20))
def test_laws_of_gates(sizes, limit):
    for number, after in enumerate(waits(*sizes, limit=limit)):
        first = 0 if after is None else after + 1
        in_flight = sizes[first : number + 1]
        pair = len(in_flight) == 2 and max(in_flight) <= limit
        assert sum(in_flight) <= limit or pair or len(in_flight) == 1
        if first:  # one more would break the limit
            assert sum(sizes[first - 1 : number + 1]) > limit
        if len(in_flight) == 1 and number:
            assert max(sizes[number - 1 : number + 1]) > limit
