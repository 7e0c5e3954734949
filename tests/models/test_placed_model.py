"""One replica over several devices trains as one device does, wherever its ops are."""

from __future__ import annotations

import pytest

from tests.support import control_flow
from tests.support.control_flow import plain_network
from tests.support.networks import OPTIMIZERS, control_flow_version, network, wide
from tests.support.placed import assert_placed_equals_one_device, is_spread, placed


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    job = network(optimizer, "clip_by_global_norm")
    model = placed(job, seed=len(optimizer))
    assert is_spread(model)
    assert_placed_equals_one_device(model, job)


@pytest.mark.parametrize(("model", "v2"), control_flow.CASES)
def test_control_flow(model, v2):
    with control_flow_version("v2" if v2 else "v1"):
        job = plain_network(model)
        spread = placed(job, seed=1)
        assert is_spread(spread)
        assert_placed_equals_one_device(spread, job)


@pytest.mark.parametrize("partitioner", ["search", "dfs", "heft", "mite", "batch_split"])
def test_partitioners(partitioner):
    job = network("adam", model=wide)
    assert_placed_equals_one_device(placed(job, partitioner=partitioner), job)
