"""The benchmark of how workers start runs, and its numbers make sense."""

from __future__ import annotations

import pytest
from commands import quick_benchmark

from benchmarks import start


@pytest.mark.processes
def test_the_quick_start_benchmark_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("start", tmp_path)["rows"]
    by_system = {row["what"]["system"]: row for row in rows}
    assert list(by_system) == [start.WORKER, start.SERVER, start.LEAN_SERVER]
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == start.QUICK.rounds
        (processor_s,), memory = row["facts"]["processor_s"], row["facts"]["memory_bytes"]
        assert 0 < processor_s < 60
        assert 0 < memory["RssAnon"][0] < memory["VmRSS"][0] < 2e9
    worker, server = (by_system[name]["facts"] for name in (start.WORKER, start.LEAN_SERVER))
    assert worker["memory_bytes"]["RssAnon"][0] < server["memory_bytes"]["RssAnon"][0]
