"""The benchmark of the session's own cost runs, and all three ways to run a step agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import overhead
from benchmarks.testbed import missing

ROOT = Path(__file__).parents[1]


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_overhead_benchmark_gives_valid_numbers(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks", "overhead", "--quick", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = json.loads((tmp_path / "overhead-quick.json").read_text())["rows"]
    assert [row["what"]["system"] for row in rows] == [
        overhead.STEP,
        overhead.RUN,
        overhead.CALLABLE,
    ]
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == overhead.QUICK.rounds * overhead.QUICK.steps
