"""What benchmarks measure of the workers of a test bed."""

from __future__ import annotations

import pytest

from benchmarks.workers import measured_profile
from caramel.core.measurements import AggregationTimes, Measurements
from caramel.core.time_facts import TimingTable
from tests.support.networks import network


def test_a_network_is_measured_once(tmp_path, monkeypatch):
    """The next job of the same hosts gets what the first one has measured."""
    sizes = (64, 2**22)
    times = tuple(AggregationTimes("shuffle", size, (0.002 + size * 1e-8,)) for size in sizes)
    measured, calls = Measurements(2, times, (0.001,)), []

    def measure(cluster, **options):
        calls.append(options)
        return measured

    monkeypatch.setattr("caramel.profiling.network.measure_network", measure)
    timing, file = TimingTable({}), tmp_path / "network.json"
    profiles = [
        measured_profile(network(optimizer).context(), None, timing=timing, network=file)
        for optimizer in ("momentum", "adam")
    ]
    assert len(calls) == 1
    assert [profile.measurements for profile in profiles] == [(measured,)] * 2
    assert profiles[0].networks == profiles[1].networks
    assert profiles[0].graph != profiles[1].graph
    measured_profile(network("momentum").context(), None, timing=timing)
    assert len(calls) == 2
    with pytest.raises(ValueError, match="times of ops are needed"):
        measured_profile(network("momentum").context(), None, network=file)
