"""Workers do not get equal shares of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.serving.course import Push, sent
from caramel.simulation.lead import LastSender


def test_the_last_one_is_behind_and_then_alone():
    """Of 8 the first worker has sent all when the last one has sent 4, which is after 12 of 16 s
    with an equal share; the other 4 take as long as with the whole link."""
    last = LastSender(8.0, 2, lead=0.5)
    assert [last.times(2.0), last.times(4.0), last.times(2.0)] == [1.5, 1.0, 0.5]


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8),
    st.integers(1, 5),
    st.floats(0.0, 0.9),
)
def test_the_last_byte_arrives_when_it_would_with_equal_shares(amounts, workers, lead):
    last = LastSender(sum(amounts), workers, lead)
    times = [last.times(amount) for amount in amounts]
    total = sum(factor * amount for factor, amount in zip(times, amounts, strict=True))
    assert total == pytest.approx(sum(amounts))
    assert workers > 1 or times == pytest.approx([1.0] * len(amounts))


def test_what_comes_back_waits_for_the_last_worker():
    pushes = [Push(name, 0, 0.0, ((name, 4.0),), frozenset(name)) for name in "ab"]
    told = [(e.variable, e.begin_s, e.end_s) for e in sent(pushes, [], {}, sharing=2)]
    assert told == [("a", 0.0, 6.0), ("a", 6.0, 10.0), ("b", 6.0, 8.0), ("b", 10.0, 14.0)]
