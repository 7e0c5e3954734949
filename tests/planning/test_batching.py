"""Small gradients are joined where they would wait anyway (Caramel paper, section 4.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.paper.batching import ReadyGradient, batches

THRESHOLD = 10


def seconds(size_bytes):
    """A link with a latency of 1 s that carries 10 bytes per second."""
    return 1 + size_bytes / 10


def joined(*gradients, threshold_bytes=THRESHOLD):
    """The groups of gradients (name, bytes, ready)."""
    given_gradients = [ReadyGradient(*gradient) for gradient in gradients]
    return batches(given_gradients, threshold_bytes=threshold_bytes, seconds=seconds)


def test_without_contention_nothing_is_joined():
    # Each takes 1.4 s, and the next one comes after 2 s.
    assert joined(("a", 4, 0.0), ("b", 4, 2.0), ("c", 4, 4.0)) == (("a",), ("b",), ("c",))


def test_what_waits_for_a_large_one_is_joined_until_the_network_is_done():
    # The large one is on its way until 1 + 3 = 4 s. b and c are ready before; at 4 s they go, on
    # the way until 4 + 1.4 = 5.4 s. d is ready at 5 s, and the next one at 6 s: it goes alone.
    groups = joined(("large", 20, 1.0), ("b", 2, 1.5), ("c", 2, 2.0), ("d", 2, 5.0), ("e", 2, 7.0))
    assert groups == (("large",), ("b", "c"), ("d",), ("e",))


def test_a_batch_goes_when_it_exceeds_the_threshold():
    groups = joined(("large", 50, 0.0), ("b", 6, 0.1), ("c", 4, 0.2), ("d", 1, 0.3), ("e", 6, 0.4))
    assert groups == (("large",), ("b", "c", "d"), ("e",))


def test_a_gradient_as_large_as_the_threshold_is_small():
    assert joined(("large", 50, 0.0), ("b", 10, 0.1), ("c", 1, 0.2))[1] == ("b", "c")


def test_a_large_one_overtakes_the_active_batch():
    # "first" keeps the network busy until 6 s, so b waits and "second" is queued before it.
    groups = joined(("first", 50, 0.0), ("b", 2, 1.0), ("second", 50, 2.0), ("c", 2, 3.0))
    assert groups == (("first",), ("second",), ("b", "c"))


def test_the_first_of_several_that_are_ready_together_goes_at_once():
    assert joined(("a", 2, 0.0), ("b", 2, 0.0), ("c", 2, 0.0)) == (("a",), ("b", "c"))


def test_dtypes_are_never_joined_and_sparse_gradients_stay_alone():
    groups = joined(
        ("large", 50, 0.0),
        ("a", 2, 0.1, "float32"),
        ("b", 2, 0.2, "float64"),
        ("rows", 2, 0.3, "float32", True),
        ("c", 2, 0.4, "float64"),
        ("d", 2, 0.5, "float32"),
    )
    assert groups == (("large",), ("rows",), ("a", "d"), ("b", "c"))


def test_gradients_are_taken_in_the_order_in_which_they_are_ready():
    assert joined(("b", 2, 9.0), ("a", 2, 1.0)) == (("a",), ("b",))


def test_no_gradients_give_no_groups():
    assert joined() == ()


GRADIENTS = st.lists(
    st.builds(
        lambda size, ready, dtype, alone: (size, ready, dtype, alone),
        st.integers(0, 30),
        st.integers(0, 40).map(lambda quarter: quarter / 4),
        st.sampled_from(["float32", "float64"]),
        st.booleans(),
    ),
    max_size=25,
)


def numbered(gradients):
    order = sorted(gradients, key=lambda gradient: gradient[1])
    return [ReadyGradient(str(number), *rest) for number, rest in enumerate(order)]


@given(GRADIENTS, st.integers(0, 25))
def test_laws_of_batches(gradients, threshold_bytes):
    ready = numbered(gradients)
    by_name = {gradient.parameter: gradient for gradient in ready}
    groups = batches(ready, threshold_bytes=threshold_bytes, seconds=seconds)
    assert groups == batches(ready, threshold_bytes=threshold_bytes, seconds=seconds)
    assert sorted(name for group in groups for name in group) == sorted(by_name)
    for group in groups:
        members = [by_name[name] for name in group]
        assert [int(name) for name in group] == sorted(int(name) for name in group)
        assert len({member.dtype for member in members}) == 1
        if len(members) > 1:
            assert not any(member.alone for member in members)
            assert all(member.size_bytes <= threshold_bytes for member in members)
            total = sum(member.size_bytes for member in members)
            assert total <= threshold_bytes + max(member.size_bytes for member in members)
            # The threshold was not exceeded before the last one came.
            assert total - members[-1].size_bytes <= threshold_bytes


@given(GRADIENTS)
def test_nothing_is_joined_on_a_network_that_takes_no_time(gradients):
    groups = batches(numbered(gradients), threshold_bytes=20, seconds=lambda size_bytes: 0.0)
    assert all(len(group) == 1 for group in groups)


@pytest.mark.parametrize("threshold_bytes", [0, 5, 10**6])
def test_on_a_network_that_never_ends_all_but_the_first_fill_batches(threshold_bytes):
    ready = [ReadyGradient(str(number), 5, number) for number in range(9)]
    groups = batches(ready, threshold_bytes=threshold_bytes, seconds=lambda size_bytes: 1e9)
    assert len(groups) == {0: 9, 5: 5, 10**6: 2}[threshold_bytes]
