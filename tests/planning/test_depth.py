"""Large groups are split into more parts than small ones (Caramel paper, section 4.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.time_facts import NetworkModel
from caramel.planning.depth import depth_of


def network(threshold_bytes, workers=4):
    return NetworkModel(workers, {}, bytes_per_s=1e8, threshold_bytes=threshold_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "depth"),
    [(0, 1), (1599, 1), (1600, 2), (3199, 2), (3200, 4), (51_199, 4), (51_200, 8), (10**9, 8)],
)
def test_depth_is_the_number_of_eight_thresholds_in_the_size_as_a_power_of_two(size_bytes, depth):
    assert depth_of(size_bytes, network(100)) == depth


@pytest.mark.parametrize(
    ("threshold_bytes", "depths"),
    [(65_000, [1, 1, 1, 2, 4, 4, 8]), (270_000, [1, 1, 1, 1, 1, 4, 4])],
)
def test_64_kb_are_never_split_and_16_mb_always(threshold_bytes, depths):
    sizes = [64, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
    assert [depth_of(size, network(threshold_bytes)) for size in sizes] == depths


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**7))
def test_depth_grows_with_the_size_and_no_part_is_below_the_threshold(one, other, threshold_bytes):
    small, large = sorted((one, other))
    model = network(threshold_bytes)
    assert 1 <= depth_of(small, model) <= depth_of(large, model) <= 8
    assert depth_of(large, model) == 1 or large / depth_of(large, model) >= threshold_bytes


def test_a_group_is_not_split_where_others_fill_its_pauses():
    assert depth_of(10_000, network(100), beside_bytes=9999) == 4
    assert depth_of(10_000, network(100), beside_bytes=10_000) == 1


def test_two_workers_split_only_what_is_very_large():
    assert depth_of(100_000_000, network(100, workers=2)) == 1
    assert depth_of(128_000_000, network(1_000_000, workers=2)) == 4
    assert depth_of(128_000_000, network(250_000, workers=2)) == 8
    assert depth_of(100_000_000, network(1_000_000, workers=2), pair_bytes=100_000_000) == 4
