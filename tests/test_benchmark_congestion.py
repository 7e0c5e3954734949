"""The benchmark of TCP's congestion control runs, and its table is that of its numbers."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from commands import quick_benchmark
from rich.console import Console

from benchmarks import congestion
from benchmarks.testbed import missing
from caramel.measure import TOGETHER


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_congestion_benchmark_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("congestion", tmp_path)["rows"]
    quick = congestion.QUICK
    small, large = quick.sizes
    cells = [(row["what"]["system"], row["what"]["tensors"], row["what"]["bytes"]) for row in rows]
    of_each = [(1, small), (1, large), (TOGETHER, large)]
    assert cells == [(name, *cell) for name in quick.names for cell in of_each]
    for row in rows:
        assert min(row["samples_s"]) > 0
        assert row["facts"]["wire_limit_s"] == pytest.approx(
            row["what"]["bytes"] * 8 / (200e6 * 1448 / 1514)  # two hosts send as much as they have
        )


def test_each_congestion_control_has_a_bed_and_they_take_turns(tmp_path, monkeypatch):
    turns = []

    class Bed(nullcontext):
        def __init__(self, hosts, rate, *, congestion_control, **_):
            super().__init__()
            self.has = (congestion_control, hosts, rate)

    def measured(bed, module, case, **_):
        turns.append((*bed.has, *case["workers"], case["sizes"], case["repeats"]))
        return {"aggregations": [(1, 64, [float(len(turns))]), (4, 64, [0.5])]}

    monkeypatch.setattr(congestion, "Testbed", Bed)

    def workers(bed, **_):
        return nullcontext([f"at {bed.has[0]}"])

    monkeypatch.setattr(congestion, "workers", workers)
    monkeypatch.setattr(congestion, "on_first_host", measured)
    monkeypatch.setattr("benchmarks.pieces.busy_share", lambda: 0.0)
    settings = congestion.Settings(("cubic", "reno"), hosts=3, mbit_per_s=50, sizes=(32, 64))
    file = congestion.run(settings, "congestion", tmp_path, Console(quiet=True))
    of_each = [(name, 3, "50mbit", f"at {name}", (32, 64), 12) for name in ("cubic", "reno")]
    assert turns == of_each * 2
    rows = json.loads(file.read_text())["rows"]
    assert [(row["what"]["system"], row["what"]["tensors"], row["samples_s"]) for row in rows] == [
        ("cubic", 1, [1.0, 3.0]),
        ("cubic", 4, [0.5, 0.5]),
        ("reno", 1, [2.0, 4.0]),
        ("reno", 4, [0.5, 0.5]),
    ]


def test_the_table_gives_times_over_the_wire_limit_and_ratios_to_the_first(tmp_path):
    def row(name, seconds):
        what = {"network": "none", "system": name, "tensors": 4, "bytes": 2**24}
        return {"what": what, "samples_s": [seconds] * 3, "facts": {"wire_limit_s": 2.0}}

    content = {"rows": [row("cubic", 2.1), row("bbr", 4.2)]}
    (tmp_path / "congestion.json").write_text(json.dumps(content))
    lines = congestion.markdown(tmp_path).splitlines()
    assert lines[2:] == [
        "| congestion control | 4 of 4 MiB |",
        "|---|---|",
        "| cubic | 1.050 |",
        "| bbr | 2.100, 2.00 (2.00-2.00) |",
    ]
