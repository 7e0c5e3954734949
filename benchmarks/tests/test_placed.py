"""The benchmark of placed models runs, and its tables tell what was measured."""

from __future__ import annotations

import pytest

from benchmarks.placed import QUICK
from benchmarks.placed.show import ALONE, ORDERED, UNORDERED, tables
from benchmarks.results import Row
from benchmarks.tests.beds import needs_namespaces
from tests.support.commands import quick_benchmark


@pytest.mark.namespaces
@pytest.mark.processes
@needs_namespaces
def test_the_quick_benchmark_of_placed_models_gives_valid_numbers(tmp_path):
    rows = [Row(**row) for row in quick_benchmark("placed", tmp_path)["rows"]]
    *steps, on_one, on_two = rows
    assert [row.what["way"] for row in steps] == [ALONE, ORDERED, UNORDERED]
    for row in steps:
        assert row.invalid is None
        assert len(row.samples_s) == QUICK.rounds
        assert row.facts["predicted_s"] > 0
    assert max(steps[1].facts["memory_bytes"]) <= steps[1].facts["limit_bytes"]
    assert "OOM" in on_one.facts["error"]
    assert on_two.facts["error"] is None
    assert on_two.facts["parameter_bytes"] > QUICK.limited.memory_bytes


def test_tables():
    facts = {"memory_bytes": [10**6, 2 * 10**6], "limit_bytes": 2 * 10**6, "sent_bytes": 500_000}
    what = {"part": "step", "network": "n", "batch": 2, "image": None}
    rows = [
        Row({**what, "way": way}, (step_s,) * 3, {**facts, "predicted_s": 1.0})
        for way, step_s in ((ALONE, 1.0), (ORDERED, 1.25), (UNORDERED, 1.0))
    ]
    limit = {"parameter_bytes": 4 * 10**6, "limit_bytes": 2 * 10**6}
    what = {"part": "limit", "network": "dense layers", "batch": 2}
    rows += [
        Row({**what, "way": ALONE}, (), {**limit, "error": "Exhausted:\n a|b"}),
        Row({**what, "way": ORDERED}, (0.5, 0.5), {**limit, "error": None}),
    ]
    lines = tables(rows)
    assert lines[4].startswith("| n, 2 | one device | 2 | 1, 2 | 0.5 | 1.000 | 1.000 | +0% |  |")
    assert lines[5].endswith("| -20% | 1.25 (1.25-1.25) | 1.25 (1.25-1.25) |")
    assert "off by 20% in the median, 20% at most" in lines[8]
    assert lines[-2:] == [
        "| 4 | 2 | one device | Exhausted: a/b |",
        "| 4 | 2 | two | 2 steps, 0.500 s each |",
    ]
