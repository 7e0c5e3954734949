"""The benchmark of held memory runs, and its table tells how far predictions are off."""

from __future__ import annotations

import pytest

from benchmarks import held
from benchmarks.results import Row
from tests.support.commands import quick_benchmark


def row(device, predicted, measured):
    what = {"network": "tiny", "image": 8, "batch": 2, "order": "none", "device": device}
    sizes = {"variable_bytes": 10**6, "predicted_bytes": predicted, "measured_bytes": measured}
    return Row(what, (0.1,), sizes)


def test_the_table_has_the_median_and_what_is_near():
    mb = 10**6
    lines = held.markdown([row(0, 4 * mb, [4 * mb, 5 * mb, 3 * mb]), row(1, 6 * mb, [4 * mb])])
    assert lines[0] == "**MB of a step by device; within 10 %: 1 of 2**"
    assert lines[4:] == [
        "| tiny | 8 | 2 | none | 0 | 1.0 | 4.0 | 4.0 | 3.0 | 5.0 | +0.0% |",
        "| tiny | 8 | 2 | none | 1 | 1.0 | 6.0 | 4.0 | 4.0 | 4.0 | +50.0% |",
    ]


@pytest.mark.processes
def test_the_quick_benchmark_gives_a_row_for_each_device_and_order(tmp_path):
    rows = quick_benchmark("held", tmp_path)["rows"]
    assert [(each["what"]["order"], each["what"]["device"]) for each in rows] == [
        (order, device) for order in held.ORDERS for device in (0, 1)
    ]
    for each in rows:
        facts = each["facts"]
        assert facts["predicted_bytes"] <= facts["limit_bytes"]
        assert all(size > facts["variable_bytes"] for size in facts["measured_bytes"])
