"""What benchmarks say of their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.commands import app
from benchmarks.results import Row, ratio_of_medians, write


def test_a_ratio_of_medians_has_an_interval_that_holds_it():
    ratio = ratio_of_medians([2.0, 2.2, 1.9, 2.1], [1.0, 1.1, 0.9, 1.0])
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(2.05)


def test_the_spread_is_that_of_the_middle_of_the_samples():
    assert Row({}, (*range(1, 10), 1000.0)).spread == pytest.approx((108.1 - 1.9) / 5.5)
    assert Row({}, (2.0, 2.0)).spread == 0


def test_samples_of_one_round_are_compared_with_each_other():
    slow_rounds = [1.0, 5.0, 1.0, 5.0, 1.0, 5.0]
    ratio = ratio_of_medians([2 * s for s in slow_rounds], slow_rounds)
    assert (ratio.low, ratio.high) == (2.0, 2.0)


def test_an_interval_counts_all_samples_of_both_when_there_are_more_of_one():
    ratio = ratio_of_medians([2.0], [3.0, 1.0, 1.0, 1.0, 1.0])
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0 / 3.0, 2.0)


def test_a_result_file_says_where_its_numbers_come_from(tmp_path):
    row = Row({"size": 1}, (0.5, 0.25, 1.0))
    content = json.loads(
        write("x", {"command": "c"}, [row], load=0.1, directory=tmp_path).read_text()
    )
    assert content["rows"][0]["samples_s"] == [0.5, 0.25, 1.0]
    assert content["machine"]["versions"]["tensorflow"]
    assert content["command"] == "c"
    assert row.median_s == 0.5


@pytest.mark.parametrize(
    ("name", "exists", "message"),
    [
        ("scale.json", True, "scale.json is no result of step"),
        ("step-nothing.json", False, "step-nothing.json' does not exist"),
    ],
)
def test_tables_are_made_of_what_has_some(name, exists, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for short lines
    if exists:
        Path(name).touch()
    refused = CliRunner().invoke(app, ["tables", name])
    assert refused.exit_code == 2
    assert message in refused.output
