"""What is fed is split over the workers, or refused before anything runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import FeedError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.runtime.steps.feeds import Feed, split_feeds

X, Y = TensorRef("x"), TensorRef("y")


def feed(tensor, shape, value, dtype=np.float32, **options):
    return Feed(tensor, TensorSpec(np.dtype(dtype).name, shape), dtype, value, **options)


@given(st.integers(1, 12), st.integers(0, 40))
def test_parts_are_as_even_as_possible_and_together_the_whole(workers, more):
    batch = np.arange(workers + more)
    split = split_feeds([feed(X, (None,), batch, np.int64)], workers)
    assert max(split.examples) - min(split.examples) <= 1
    assert list(split.examples) == sorted(split.examples, reverse=True)
    np.testing.assert_array_equal(np.concatenate([v[X] for v in split.values]), batch)


def test_scalars_and_whole_feeds_go_to_every_worker():
    split = split_feeds(
        [feed(X, (), 0.5), feed(Y, (3,), [1, 2, 3], whole=True)],
        workers=2,
    )
    assert split.examples is None
    for values in split.values:
        assert values[X] == np.float32(0.5)
        assert list(values[Y]) == [1, 2, 3]


def test_values_are_converted_to_the_tensors_dtype():
    split = split_feeds([feed(X, (None,), [1, 2])], workers=2)
    assert split.values[0][X].dtype == np.float32


def test_byte_strings_keep_zeros_at_their_end():
    strings = [b"ab\0\0", b"\0\0\0\0"]
    (own,) = split_feeds([Feed(X, TensorSpec("string", (None,)), object, strings)], 1).values
    assert list(own[X]) == strings


def test_unsigned_integers_take_what_fits_them():
    split = split_feeds([feed(X, (None,), [0, 255], np.uint8), feed(Y, (), 7, np.uint8)], workers=2)
    assert [int(values[X][0]) for values in split.values] == [0, 255]
    assert [int(values[Y]) for values in split.values] == [7, 7]
    for value in (-1, 256):
        with pytest.raises(FeedError, match="it takes uint8, got int64 values"):
            split_feeds([feed(Y, (), value, np.uint8)], workers=2)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([feed(X, (None, 4), np.zeros((6, 3)))], r"'x:0' of shape \(\?, 4\).* shape \(6, 3\)"),
        ([feed(X, (None,), 1.0)], r"'x:0' of shape \(\?\) with a value of shape \(\)"),
        (  # 4 is no number of examples
            [feed(X, (None, 4), np.zeros(4)), feed(Y, (None,), np.zeros(5))],
            r"'x:0' of shape \(\?, 4\) with a value of shape \(4,\)",
        ),
        ([feed(X, (None,), np.zeros(1))], "1 example cannot be split over 3 workers"),
        ([feed(X, (None,), np.zeros(2))], "2 examples cannot be split over 3 workers"),
        ([feed(X, (4,), np.zeros(6))], "its batch is fixed, so feed 12 examples"),
        (
            [feed(X, (None,), np.zeros(6)), feed(Y, (None,), np.zeros(5))],
            r"'x:0': 6, 'y:0': 5.*replicated_feeds",
        ),
        ([feed(X, (None,), [0.5] * 3, np.int32)], "it takes int32, got float64 values"),
        ([feed(X, (None,), ["a", "b", "c"])], "it takes float32"),
        ([feed(X, (None,), [[1], [1, 2], [3]])], "cannot feed 'x:0'"),
        ([feed(X, None, np.zeros(3), must_be_scalar=True)], "must be a scalar.*replicated_feeds"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(feeds, message):
    with pytest.raises(FeedError, match=message):
        split_feeds(feeds, workers=3)
