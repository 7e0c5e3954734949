"""Large groups are split into more parts than small ones (Caramel paper, section 4.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.facts import NetworkModel
from caramel.planning.depth import depth_of


def network(threshold_bytes):
    return NetworkModel(4, {}, bytes_per_s=1e8, threshold_bytes=threshold_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "depth"),
    [(0, 1), (64, 1), (199, 1), (200, 2), (399, 2), (400, 4), (799, 4), (800, 8), (10**9, 8)],
)
def test_depth_is_the_number_of_thresholds_in_the_size_as_a_power_of_two(size_bytes, depth):
    assert depth_of(size_bytes, network(100)) == depth


@pytest.mark.parametrize(
    ("threshold_bytes", "depths"),
    [(40_000, [1, 1, 1, 8, 8, 8]), (65_000, [1, 1, 1, 8, 8, 8]), (270_000, [1, 1, 1, 2, 8, 8])],
)
def test_the_thresholds_of_the_measured_networks_split_64_kb_never_and_4_mb_always(
    threshold_bytes, depths
):
    sizes = [64, 4096, 65536, 1 << 20, 4 << 20, 16 << 20]
    assert [depth_of(size, network(threshold_bytes)) for size in sizes] == depths


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**7))
def test_depth_grows_with_the_size_and_no_part_is_below_the_threshold(one, other, threshold_bytes):
    small, large = sorted((one, other))
    model = network(threshold_bytes)
    assert 1 <= depth_of(small, model) <= depth_of(large, model) <= 8
    assert depth_of(large, model) == 1 or large / depth_of(large, model) >= threshold_bytes
