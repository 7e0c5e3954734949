"""The benchmark of orders from parameter servers: what it counts, and that a quick run is valid."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import numpy as np
import pytest
from rich.console import Console

from benchmarks import document, ps
from benchmarks.ps import show
from benchmarks.ps.cells import ALL, FEW, FULL, NONE, ONE_AT_A_TIME, QUICK, SEARCH, Cell, Order
from benchmarks.ps.client import measure
from benchmarks.results import Row
from benchmarks.testbed import PAYLOAD_SHARE, missing
from caramel.cluster.servers import embedded_servers
from tests.support.commands import quick_benchmark


def test_orders_have_names_of_their_own():
    for cell in (*FULL.cells, *QUICK.cells):
        names = [order.name for order in cell.orders]
        assert len(set(names)) == len(names)
        assert NONE.name in names
    assert Order("execution_ordering", 500_000, True, 0.5, 3).name == (
        "execution ordering, ahead, shuffled 0.5, no. 3, 0.5 MB"
    )


def test_rates_are_those_of_streams():
    assert ps.bytes_per_s("1gbit") == pytest.approx(125e6 * PAYLOAD_SHARE)
    assert ps.bytes_per_s("200mbit") == pytest.approx(25e6 * PAYLOAD_SHARE)


def trace(order, straggler=0.0):
    return {"orders": [order], "step_s": 1.0, "E": [0.5], "received_E": [0.4]} | {
        "straggler": straggler
    }


def test_transfers_out_of_place_are_counted_by_server():
    traces = [trace([0, 1, 2, 3]), trace([2, 0, 1, 3], 0.5)]
    found = ps.traced_facts(traces, [0, 1, 2, 3], [0, 0, 1, 1])
    assert (found["unique_orders"], found["out_of_place"]) == (2, 0.0)
    assert found["stragglers"] == [0.0, 0.5]
    assert ps.traced_facts(traces, [0, 1, 2, 3], [0] * 4)["out_of_place"] == 0.25
    assert ps.traced_facts(traces, [], [0] * 4)["out_of_place"] is None


def row(name, samples_s, part="orderings", **facts):
    common = {"least_s": 1.0, "traced_E": [[0.5]], "traced_step_s": [1.0], "stragglers": [0.0]}
    what = {**Cell(part, "seq_32", FEW, 1).what, "ordering": name}
    return Row(what, tuple(samples_s), {**common, "bytes": 1, "predicted": None, **facts})


def test_gains_are_ratios_to_steps_without_an_order():
    rows = [row("unordered", [2.0, 2.0]), row("search", [1.0, 1.0])]
    shown = "\n".join(show.tables(rows))
    assert "| seq_32 | inference | 1 + 1 | 1.00 | 2.00 | 2.00 (2.00-2.00) |" in shown
    assert dict(show._gains(rows)) == {
        ("seq_32", "inference", 1, 1, "emulated, rho 1"): {"search": 100.0}
    }


def test_the_efficiency_of_orders_is_set_against_their_steps(tmp_path):
    rows = [
        row(f"tac, no. {n}", [2.0 - n / 10], "efficiency", predicted={"E": n / 10})
        for n in range(5)
    ]
    rows.append(row("unordered", [2.0], "efficiency", received_E=[[0.1], [0.0]]))
    (pairs,) = show.points(rows).values()
    assert pairs[-1].tolist() == pytest.approx([0.05, 2.0 / 1.6])
    assert show.r_squared(pairs[:-1]) == pytest.approx(1.0)
    assert show.r_squared(np.array([[0, 1], [1, 0], [0, 0], [1, 1]])) == pytest.approx(0.0)
    show.draw(rows, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 1000


def test_a_cell_that_fails_costs_its_own_rows_only(tmp_path, monkeypatch):
    def measured(cell, settings):
        if cell.mode == "training":
            raise RuntimeError("the client failed:\nAbortedError: lost")
        yield row("unordered", [2.0])

    monkeypatch.setattr(ps, "_orders", measured)
    said = Console(file=io.StringIO(), width=200)
    cells = (Cell("orderings", "seq_32", FEW, 1, mode=mode) for mode in ("training", "inference"))
    file = ps.run(ps.Settings(tuple(cells)), "ps", tmp_path, said)
    content = json.loads(file.read_text())
    assert [each["invalid"] for each in content["rows"]] == ["failed: AbortedError: lost"] * 3 + [
        None
    ]
    assert "AbortedError: lost |" in said.file.getvalue()


def test_tables_on_pages_are_put_right(tmp_path):
    rows = [row("unordered", [2.0, 2.1]), row("search", [1.0, 1.1])]
    content = {"rows": [vars(each) for each in rows]}
    (tmp_path / "ps.json").write_text(json.dumps(content))
    command = "`python -m benchmarks ps`, result file `ps.json`"
    page = document.with_tables(f"{command}\n\n**Old**\n\n| a | 1 |\n\nProse.\n", tmp_path)
    assert "Old" not in page
    assert page.endswith("\n\nProse.\n")
    assert document.with_tables(page, tmp_path) == page


def test_each_order_does_its_steps_in_one_session():
    """Between servers of this process, which send each other what hosts would."""
    cell = Cell("orderings", "seq_32", (NONE, SEARCH, Order("tac"), ONE_AT_A_TIME), 2, 1, counted=2)
    at = embedded_servers(1, parameter_servers=1).addresses
    hosts = {"workers": at[:1], "servers": at[1:], "bytes_per_s": 1e9}
    told = measure(json.loads(json.dumps({**asdict(cell), **hosts})))
    assert len(told["variables"]) == 32
    assert sum(told["bytes"]) == 32 * 2**20
    assert told["steps"] == 4 * 3
    for name, found in told["plans"].items():
        assert len(found["samples_s"]) == 2
        counts = (0, 2) if name in ("unordered", "search, 0 MB") else (0, 1)
        assert len(found["traces"]) in range(counts[0], counts[1] + 1)
    planned = told["plans"]["search, 0 MB"]
    assert planned["gates"] == 31
    for each in planned["traces"]:
        assert each["orders"] == [planned["order"]]


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_benchmark_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("ps", tmp_path)["rows"]
    assert len(rows) == sum(len(cell.orders) for cell in QUICK.cells)
    for each in rows:
        assert each["invalid"] is None
        assert each["facts"]["sent_over_needed"] >= 1
        assert each["facts"]["transfers"] == 32
    by_name = {each["what"]["ordering"]: each for each in rows[: len(ALL)]}
    assert by_name[NONE.name]["facts"]["unique_orders"] > 1
    assert by_name[ONE_AT_A_TIME.name]["facts"]["unique_orders"] == 1
    assert by_name[ONE_AT_A_TIME.name]["facts"]["out_of_place"] == 0
    assert (tmp_path / "ps-quick.png").stat().st_size > 1000
