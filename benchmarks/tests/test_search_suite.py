"""The benchmark of the search runs without a bed, and its numbers make sense."""

from __future__ import annotations

from benchmarks import search
from benchmarks.results import Row
from tests.support.commands import quick_benchmark


def test_the_quick_search_benchmark_plans_better_than_plain(tmp_path):
    (row,) = quick_benchmark("search", tmp_path)["rows"]
    facts = row["facts"]
    assert row["what"] == {"network": "tiny", "workers": 2, "rho": 1.0}
    assert 1 <= facts["over_bound"] < facts["plain_over_bound"]
    assert facts["tasks"] < 2 * search.QUICK.budget_tasks
    assert row["samples_s"][0] > 0
    assert "| tiny | 2 | " in search.markdown(tmp_path, "search-quick")


def test_the_table_has_a_line_for_each_network_and_number_of_workers():
    def row(network, workers, rho, over):
        what = {"network": network, "workers": workers, "rho": rho}
        return Row(what, (2.0,), {"over_bound": over, "groups": 3})

    rows = [row("a", 2, 0.5, 1.0), row("a", 2, 1.0, 1.04), row("b", 8, 1.0, 1.02)]
    assert list(search._lines(rows)) == [
        "| network | workers | rho 0.5 | rho 1 | s |",
        "|---|---|---|---|---|",
        "| a | 2 | 1.000 (3) | 1.040 (3) | 2.0 |",
        "| b | 8 |  | 1.020 (3) | 2.0 |",
        "",
        "3 plans: 1.020 times the bound in the mean, 1.040 at most; "
        "2.0 s of planning in the mean, 2.0 at most",
    ]
