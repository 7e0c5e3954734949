"""The benchmark of how workers start runs, and its numbers make sense."""

from __future__ import annotations

import json

import pytest
from commands import quick_benchmark
from rich.console import Console

from benchmarks import start
from benchmarks.results import Row


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


def test_processes_start_in_turn_and_the_first_starts_do_not_count(tmp_path, monkeypatch):
    systems = []

    def started(system, kept):
        systems.append(system)
        kept.seconds.append(float(len(systems)))
        kept.processor_s.append(0.5)
        for sizes in kept.memory_bytes.values():
            sizes.append(10**6)

    monkeypatch.setattr(start, "_start", started)
    monkeypatch.setattr("benchmarks.pieces.busy_share", lambda: 0.0)
    file = start.run(start.Settings(rounds=2), "start", tmp_path, Console(quiet=True))
    assert systems == [start.WORKER, start.SERVER, start.LEAN_SERVER] * 3
    rows = [Row(**row) for row in json.loads(file.read_text())["rows"]]
    assert [row.samples_s for row in rows] == [[4.0, 7.0], [5.0, 8.0], [6.0, 9.0]]
