"""Benchmarks run, and their numbers are valid; how fast they are is no question of tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import allreduce
from benchmarks.results import Row, ratio_of_medians, write
from benchmarks.testbed import missing

ROOT = Path(__file__).parents[1]


def test_a_ratio_of_medians_has_an_interval_that_holds_it():
    ratio = ratio_of_medians([2.0, 2.2, 1.9, 2.1], [1.0, 1.1, 0.9, 1.0])
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(2.05)


def test_samples_of_one_round_are_compared_with_each_other():
    slow_rounds = [1.0, 5.0, 1.0, 5.0, 1.0, 5.0]
    ratio = ratio_of_medians([2 * s for s in slow_rounds], slow_rounds)
    assert (ratio.low, ratio.high) == (2.0, 2.0)


def test_the_wire_limit_is_what_a_worker_must_send_at_the_payload_rate():
    limit_s = allreduce.wire_limit_s(2**20, 2, allreduce.FULL)
    assert limit_s == pytest.approx(2**20 * 8 / (1e9 * 1448 / 1514))
    assert allreduce.wire_limit_s(2**20, 4, allreduce.FULL) == pytest.approx(1.5 * limit_s)


def test_a_result_file_says_where_its_numbers_come_from(tmp_path):
    row = Row({"size": 1}, (0.5, 0.25, 1.0))
    content = json.loads(
        write("x", {"command": "c"}, [row], load=0.1, directory=tmp_path).read_text()
    )
    assert content["rows"][0]["samples_s"] == [0.5, 0.25, 1.0]
    assert content["machine"]["versions"]["tensorflow"]
    assert content["command"] == "c"
    assert row.median_s == 0.5


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_allreduce_benchmark_gives_valid_numbers(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks", "allreduce", "--quick", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = json.loads((tmp_path / "allreduce-quick.json").read_text())["rows"]
    assert len(rows) == 3 * 3 * 2
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == allreduce.QUICK.rounds
        assert min(row["samples_s"]) > 0
    assert (tmp_path / "allreduce-quick.png").stat().st_size > 1000
