"""All grids in one table and one picture, from what their result files say."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from benchmarks.results import Row
from benchmarks.step.cells import ALONE, PLAIN, SEARCHED, Cell
from benchmarks.step.grids import draw, markdown, read


def rows(cell, planned_s, *, plain_s=1.4, predicted_s=1.0):
    """Rows of a cell whose bound is a second; without a planned step, that one failed."""
    facts = {"computation_s": 1.0, "wire_limit_s": 1.0}
    what = {"cell": str(cell), "network": cell.network}
    found = [
        Row({**what, "system": str(ALONE)}, (1.0,), facts),
        Row({**what, "system": str(PLAIN)}, (plain_s,) * 3, facts),
        Row(
            {**what, "system": str(SEARCHED)},
            () if planned_s is None else (planned_s,) * 3,
            {**facts, "reported": {"predicted_s": predicted_s}},
            "it failed" if planned_s is None else None,
        ),
    ]
    return [asdict(row) for row in found]


@pytest.fixture
def file(tmp_path):
    cells = [Cell("toy", 4, accelerator="K80", rho=rho) for rho in (0.5, 1.0, 2.0)]
    cells += [replace(cells[0], network="other"), replace(cells[0], network="missing")]
    measured = [
        *rows(cells[0], 1.0, plain_s=1.0),
        *rows(cells[1], 1.1),
        *rows(cells[2], 1.05, predicted_s=1.155),
        *rows(cells[3], None),
    ]
    path = tmp_path / "step-grid-2.json"
    settings = {"cells": [asdict(cell) for cell in cells]}
    path.write_text(json.dumps({"settings": settings, "rows": measured}))
    return path


def test_cells_count_in_which_both_plans_were_measured(file):
    grid = read(file)
    assert [str(each) for each in grid.pairings] == [
        f"toy, 2 workers, rho {rho}" for rho in (0.5, 1, 2)
    ]
    assert [each.over_bound for each in grid.pairings] == pytest.approx([1.0, 1.1, 1.05])
    assert [each.over_plain for each in grid.pairings] == pytest.approx([1.0, 1.1 / 1.4, 0.75])


def test_the_table_has_medians_and_what_is_worst(file):
    head, _, line, total = markdown([file]).splitlines()[-4:]
    assert "above 1.06" in head
    numbers = (
        "3 of 5 | 1.05 | 1.10 (toy, 2 workers, rho 1) | 1 | 1.000 (toy, 2 workers, rho 0.5) "
        "| 9.1% | 10.0% |"
    )
    assert line == f"| `step-grid-2.json` | {numbers}"
    assert total == f"| all | {numbers}"


def test_the_picture_has_all_cells(file, tmp_path):
    draw([file], tmp_path / "grids.png")
    assert (tmp_path / "grids.png").stat().st_size > 5000
