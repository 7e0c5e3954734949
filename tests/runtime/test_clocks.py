"""Clocks that differ are compared as the Network Time Protocol does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.runtime.execution.clocks import Reading, clock_offsets_s


class Fake:
    """Clocks that are read over a network with the given delays, there and back, in turn."""

    def __init__(self, ahead_s, delays):
        self.now_s = 100.0
        self._ahead_s = ahead_s
        self._delays = {clock: iter(own) for clock, own in delays.items()}

    def now(self):
        return self.now_s

    def ask(self, clock):
        there_s, back_s = next(self._delays[clock])
        self.now_s += there_s
        shown_s = self.now_s + self._ahead_s[clock]
        self.now_s += back_s
        return shown_s


def test_a_reading_is_from_half_way():
    reading = Reading(10.0, 17.5, 11.0)
    assert reading.round_trip_s == 1.0
    assert reading.offset_s == 7.0


def test_the_try_with_the_least_round_trip_counts():
    fake = Fake(
        {0: 1000.0, 1: 1007.0, 2: 997.0},
        {
            0: [(0.9, 0.1), (0.25, 0.25), (0.1, 0.9)],
            1: [(0.25, 0.25), (3.0, 0.1), (0.1, 0.9)],
            2: [(0.1, 0.9), (0.9, 0.1), (0.25, 0.25)],
        },
    )
    found_s = clock_offsets_s(fake.ask, 3, tries=3, now=fake.now)
    assert found_s == pytest.approx((0.0, 7.0, -3.0))


delays = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=3, max_size=3)


@given(st.floats(-100.0, 100.0), delays, delays)
def test_the_error_is_at_most_half_of_both_least_round_trips(ahead_s, first, second):
    fake = Fake({0: 5.0, 1: 5.0 + ahead_s}, {0: first, 1: second})
    _, found_s = clock_offsets_s(fake.ask, 2, tries=3, now=fake.now)
    bound_s = (min(map(sum, first)) + min(map(sum, second))) / 2
    assert abs(found_s - ahead_s) <= bound_s + 1e-9


def test_one_clock_is_not_ahead_of_itself():
    fake = Fake({0: 3.0}, {0: [(0.1, 0.2)] * 10})
    assert clock_offsets_s(fake.ask, 1, now=fake.now) == (0.0,)
    assert fake.now_s == pytest.approx(103.0)
