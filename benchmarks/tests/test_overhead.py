"""The benchmark of the session's own cost runs, and all three ways to run a step agree."""

from __future__ import annotations

import pytest

from benchmarks import overhead
from benchmarks.testbed import missing
from tests.support.commands import quick_benchmark


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_overhead_benchmark_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("overhead", tmp_path)["rows"]
    assert [row["what"]["system"] for row in rows] == [
        overhead.STEP,
        overhead.RUN,
        overhead.CALLABLE,
    ]
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == overhead.QUICK.rounds * overhead.QUICK.steps
