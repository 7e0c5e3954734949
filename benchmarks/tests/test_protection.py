"""The benchmark of protected workers runs, and they compute what others do."""

from __future__ import annotations

import pytest

from benchmarks import protection
from benchmarks.testbed import missing
from tests.support.commands import quick_benchmark

pytest.importorskip("cryptography")


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_benchmark_of_protection_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("protection", tmp_path)["rows"]
    relays, steps = rows[:2], rows[2:]
    assert [row["what"]["way"] for row in relays] == ["in", "out"]
    assert [row["what"]["workers"] for row in steps] == [protection.PLAIN, protection.SECURE]
    for row in rows:
        assert row["invalid"] is None
        assert min(row["samples_s"]) > 0
