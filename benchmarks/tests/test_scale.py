"""The benchmark of scale: what it fits, and that a quick run is valid."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import scale, scale_client
from benchmarks.commands import app
from benchmarks.pieces import piece
from benchmarks.results import Row, write
from benchmarks.scale_client import parts


def row(network, workers, seconds):
    facts = {"nodes": workers, "graph_bytes": workers**2, "build_s": seconds}
    facts["parts_s"] = {"import": seconds, "weigh": 0.0}
    facts |= {"started_bytes": 5, "built_bytes": 5 + workers, "trained_bytes": 40}
    return Row({"network": network, "workers": workers}, (seconds,), facts)


def test_exponents_are_fitted_from_two_workers_on_and_at_the_end():
    times = {1: 100.0, 2: 2.0, 4: 4.0, 8: 16.0}
    found = scale.growth([row("a", workers, seconds) for workers, seconds in times.items()])["a"]
    assert found["nodes"] == pytest.approx({"all": 1.0, "last": 1.0})
    assert found["graph_bytes"] == pytest.approx({"all": 2.0, "last": 2.0})
    assert found["built_bytes"] == pytest.approx({"all": 1.0, "last": 1.0})
    assert found["build_s"] == pytest.approx({"all": 1.5, "last": 2.0})
    assert found["import"] == pytest.approx({"all": 1.5, "last": 2.0})
    assert "weigh" not in found


def test_a_single_point_has_no_exponent():
    assert scale.exponent([2], [3.0]) is None


def test_a_measurement_that_needs_too_much_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(scale, "_free_bytes", lambda: 90)
    monkeypatch.setattr(scale, "_client", lambda *_, **__: pytest.fail("it was measured"))
    cell = scale.Cell("a", None, (2, 4), (2, 4))
    left_out = scale._measure(cell, 4, scale.QUICK, [row("a", 2, 1.0)])
    assert left_out.invalid is not None
    assert "left out" in left_out.invalid


def test_the_parts_of_a_build_are_read_from_what_it_prints():
    said = "caramel: analyse         0.250 s\ncaramel: order_sums      1.000 s\ncaramel: 7 nodes\n"
    assert parts(said) == {"analyse": 0.25, "order_sums": 1.0}


def test_a_piece_keeps_the_rows_of_other_networks(tmp_path):
    runs = [{"networks": ["a", "b"], "loaded": False}]
    rows = [row("a", 2, 1.0), row("b", 2, 1.0)]
    path = write("x", {"runs": runs}, rows, load=0.1, directory=tmp_path)
    part = piece(["a", "b"], ["b"], path, Console())
    assert [kept.what["network"] for kept in part.rows] == ["a"]
    assert [list(run["networks"]) for run in part.all_runs()] == [["a"], ["b"]]
    assert part.all_runs()[-1]["processor"]
    new = row("b", 4, 1.0)
    assert [each.what["workers"] for each in part.all_rows([new], ["a", "b"])] == [2, 4]
    assert piece(["a", "b"], [], path, Console()).rows == ()


def test_a_piece_keeps_rows_of_its_networks_that_are_not_run_again(tmp_path):
    runs = [{"networks": ["a", "b"], "loaded": False}]
    rows = [row("a", 2, 1.0), row("b", 2, 1.0), row("b", 4, 1.0)]
    path = write("x", {"runs": runs}, rows, load=0.1, directory=tmp_path)

    def stays(each):
        return each.what["workers"] == 4

    part = piece(["a", "b"], ["a", "b"], path, Console(), stays=stays)
    assert [(kept.what["network"], kept.what["workers"]) for kept in part.rows] == [("b", 4)]
    assert [run["networks"] for run in part.all_runs()] == [["b"], ["a", "b"]]


def test_an_unknown_network_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no network 'c'"):
        piece(["a", "b"], ["c"], tmp_path / "x.json", Console())


def test_what_is_neither_run_nor_opened_is_built_only():
    cell = scale.Cell("a", None, built=(1, 2, 4), run=(2,), opened=(2, 4))
    assert [cell.steps(workers, 3) for workers in cell.built] == [None, 3, 0]


@pytest.mark.processes
def test_the_quick_scale_benchmark_gives_valid_numbers(tmp_path, monkeypatch):
    """Clients that are profiled build only: they do so in this process."""
    start, profiled = subprocess.run, []

    def started(command, **options):
        case = json.loads(command[3]) if command[2] == scale_client.__name__ else {}
        if not case.get("profile"):
            return start(command, **options)
        profiled.append(case["workers"])
        Path(command[4]).write_text(json.dumps(scale_client.measure(case)))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setenv("MALLOC_ARENA_MAX", "0")  # memory of this process stays as it is
    monkeypatch.setattr(subprocess, "run", started)
    monkeypatch.setattr("benchmarks.pieces.busy_share", lambda: 0.0)
    said = CliRunner().invoke(app, ["scale", "--quick", "--results", str(tmp_path)])
    assert said.exit_code == 0, said.output
    content = json.loads((tmp_path / "scale-quick.json").read_text())
    rows = content["rows"]
    assert [row["what"]["workers"] for row in rows] == [2, 4]
    assert profiled == list(scale.QUICK.profiled)
    for each in rows:
        assert each["invalid"] is None
        facts = each["facts"]
        assert facts["nodes"] >= each["what"]["workers"] * 100
        assert facts["built_bytes"] >= facts["started_bytes"] > 0
        assert {"analyse", "plan", "replicate", "audit", "serialise"} <= facts["parts_s"].keys()
        assert ("steps_s" in facts) == (each["what"]["workers"] == 2)
    assert len(rows[0]["facts"]["steps_s"]) == scale.QUICK.steps
    assert 0 < rows[0]["facts"]["open_kernel_s"] < 60
    assert 0 < rows[1]["facts"]["again_kernel_s"] < 60
    assert 0 < rows[1]["facts"]["again_s"] < 60
    assert "again_s" not in rows[0]["facts"]
    assert rows[0]["facts"]["nodes"] < rows[1]["facts"]["nodes"]
    assert content["settings"]["functions"]
    assert (tmp_path / "scale-quick.png").stat().st_size > 1000
