"""Spans that overlap on a channel are cut to what each transfer occupied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import ProfileError
from caramel.planning.ordering.transfer_spans import TransferSpan, transfer_times_s


def times_s(*spans):
    return transfer_times_s(TransferSpan(name, "s0", begin, end) for name, begin, end in spans)


def test_transfers_that_do_not_overlap_take_their_spans():
    assert times_s(("a", 0, 2), ("b", 2, 5), ("c", 6, 7)) == {"a": 2, "b": 3, "c": 1}


def test_transfers_that_were_requested_together_take_the_time_since_the_one_before():
    assert times_s(("c", 0, 7), ("a", 0, 2), ("b", 0, 5)) == {"a": 2, "b": 3, "c": 2}


def test_the_later_half_of_two_that_overlap_belongs_to_the_later_one():
    # a has [1, 4]; b was requested at 3, but waited until 4.
    assert times_s(("a", 1, 4), ("b", 3, 6)) == {"a": 3, "b": 2}


def test_a_transfer_within_another_one_is_taken_off_it():
    # long has [0, 4] and [5, 10].
    assert times_s(("long", 0, 10), ("short", 4, 5)) == {"long": 9, "short": 1}


def test_pauses_between_transfers_belong_to_the_one_that_spans_them():
    # a has [1, 2], b has [4, 5]; of [0, 6] there remain [0, 1], [2, 4] and [5, 6].
    assert times_s(("a", 1, 2), ("b", 4, 5), ("c", 0, 6)) == {"a": 1, "b": 1, "c": 4}


def test_other_channels_do_not_matter():
    spans = [TransferSpan("a", "s0", 0, 4), TransferSpan("b", "s1", 1, 5)]
    assert transfer_times_s(spans) == {"a": 4, "b": 4}


def test_parts_of_a_transfer_are_added_up():
    assert times_s(("a", 0, 1), ("b", 1, 3), ("a", 3, 7)) == {"a": 5, "b": 2}


def test_a_span_does_not_end_before_it_begins():
    with pytest.raises(ProfileError, match="'a' on channel 's0' ends at 1 s, before"):
        TransferSpan("a", "s0", 2, 1)


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=8)


@given(SPANS)
def test_each_busy_moment_is_counted_once_for_the_transfer_that_ends_first(drawn):
    spans = [(number, begin, begin + length) for number, (begin, length) in enumerate(drawn)]
    expected = dict.fromkeys(range(len(spans)), 0)
    for moment in range(20):  # from here to the next one
        under_way = [s for s in spans if s[1] <= moment < s[2]]
        if under_way:
            expected[min(under_way, key=lambda s: (s[2], s[1], s[0]))[0]] += 1
    assert times_s(*spans) == expected
