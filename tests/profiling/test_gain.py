"""What several workers bring, in words for who has read no paper."""

from __future__ import annotations

import pytest

import caramel
from caramel.profiling.gain import Gain, gain
from tests.support.networks import network, wide


def test_workers_that_share_a_machine_are_told_why_they_gain_nothing():
    found = Gain(workers=2, cores=2, alone_s=0.04, step_s=0.05, apart_s=0.02)
    assert str(found).splitlines() == [
        "one worker alone: 40.0 ms a step with the same batch",
        "2 workers: 50.0 ms a step, 0.80 times as fast as one",
        "why: the 2 workers share this machine's 2 cores, which one worker alone keeps busy; "
        "nothing can be gained",
        "on 2 machines like this one with links of 1 Gbit/s 20.0 ms are predicted, 2.00 times as "
        "fast as one",
    ]


def test_what_is_gained_needs_no_reason():
    found = Gain(workers=4, cores=None, alone_s=0.4, step_s=0.2, apart_s=0.2)
    assert str(found).splitlines()[1:] == ["4 workers: 200.0 ms a step, 2.00 times as fast as one"]


def test_transfers_that_take_longer_than_what_is_saved_are_the_reason():
    found = Gain(workers=4, cores=None, alone_s=0.1, step_s=0.2, apart_s=None)
    assert str(found).splitlines()[-1].startswith("why: the transfers take longer")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_is_measured_and_predicted(workers):
    job = network("momentum", model=wide)
    found = gain(job.context(), job.feed, cluster=caramel.Cluster.embedded(workers), step_s=1.0)
    assert found.alone_s > 0
    assert found.cores is not None
    assert (found.apart_s is None) == (workers == 1)
