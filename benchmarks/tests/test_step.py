"""The step benchmark runs, and its numbers are valid; how fast they are is no question of tests."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import tensorflow as tf
from typer.testing import CliRunner

import benchmarks.commands
from benchmarks.commands import app
from benchmarks.peers import Case, graph
from benchmarks.peers.base import Result
from benchmarks.results import Row
from benchmarks.step import cells
from benchmarks.step.markdown import overview
from benchmarks.step.measure import (
    LEAST_ROUNDS,
    MEMORY_BYTES,
    lots,
    measure,
    needs_one_session,
    overlap,
    take_turns,
)
from benchmarks.testbed import PAYLOAD_SHARE, missing
from tests.support.commands import quick_benchmark


def test_overlap_is_that_of_the_paper():
    hidden = overlap(step_s=1.0, computation_s=1.0, communication_s=0.5)
    assert hidden == {"rho": 0.5, "alpha": 1.0, "U": 1.0}
    open_ = overlap(step_s=3.0, computation_s=1.0, communication_s=2.0)
    assert open_ == {"rho": 2.0, "alpha": 0.0, "U": pytest.approx(1 / 3)}
    for facts in (hidden, open_):
        rho, alpha = facts["rho"], facts["alpha"]
        assert facts["U"] == pytest.approx(1 / (1 + rho - alpha * min(rho, 1)))


def test_the_wire_limit_of_a_cell_is_what_an_all_reduce_sends():
    cell = cells.Cell("resnet_v1_50", 4, workers=4, mbit_per_s=500)
    assert cell.wire_limit_s(1e8) == pytest.approx(1.5 * 8e8 / (5e8 * PAYLOAD_SHARE))


def test_every_system_but_plain_caramel_is_in_one_lot():
    systems = cells.all_systems(cells.REAL[0])
    for size in (1e6, 1e8, MEMORY_BYTES):
        taken = list(lots(systems, size, 2))
        assert all(taken)
        others = [system for system in systems if system != cells.PLAIN]
        assert [system for lot in taken for system in lot] == others


class Steps:
    """A system whose steps take a second."""

    def __init__(self):
        self.warm_ups = []

    def block(self, steps, *, warm_up):
        self.warm_ups.append(warm_up)
        return (1.0,) * steps


def test_a_lot_whose_steps_are_long_ends_after_the_least_rounds(monkeypatch):
    running = {cells.ALONE: Steps(), cells.PLAIN: Steps()}
    assert take_turns(running, 5, 2) == dict.fromkeys(running, (1.0,) * 10)
    monkeypatch.setitem(take_turns.__globals__, "LOT_S", 0.0)
    least = (1.0,) * 2 * LEAST_ROUNDS
    assert take_turns(running, 5, 2) == dict.fromkeys(running, least)


@pytest.mark.parametrize(
    ("limit_s", "steps", "warm_ups"),
    [(1.0, 3, (1, 1, 1)), (9.0, 2, (1, 0, 0)), (30.0, 1, (1, 0, 0))],
)
def test_where_the_wire_takes_long_blocks_are_shorter(limit_s, steps, warm_ups):
    running = {cells.ALONE: Steps(), cells.PLAIN: Steps()}
    taken = take_turns(running, 3, 3, {cells.ALONE}, limit_s)
    assert taken == {cells.ALONE: (1.0,) * steps, cells.PLAIN: (1.0,) * steps * 3}
    assert tuple(running[cells.PLAIN].warm_ups) == warm_ups


def test_plans_of_one_session_warm_up_after_each_change():
    """The first step also does what is left to do of the other plan's last one."""
    running = {cells.PLAIN: Steps(), cells.SEARCHED: Steps()}
    take_turns(running, 3, 3, limit_s=9.0, is_shared=True)
    assert [each.warm_ups for each in running.values()] == [[1, 1, 1]] * 2


def test_who_always_takes_as_long_does_one_block():
    running = {cells.ALONE: Steps(), cells.PLAIN: Steps()}
    taken = take_turns(running, 5, 2, once={cells.ALONE})
    assert taken == {cells.ALONE: (1.0,) * 2, cells.PLAIN: (1.0,) * 10}


def test_an_emulated_worker_alone_runs_with_nothing_beside_it(monkeypatch):
    """Each system is a lot of its own here; plain Caramel takes turns with those that vary."""
    blocks = dict.fromkeys(("alone", "plain", "planned"), 0)

    class Started:
        def __init__(self, case, name, setting):
            self.case, self.name, self.setting, self.step_s = case, name, setting, []

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def block(self, steps, *, warm_up):
            blocks[self.name] += 1
            self.step_s += [1.0] * steps
            return (1.0,) * steps

        def result(self):
            times, two = tuple(self.step_s), (0.0, 0.0)
            return Result(
                self.name, self.setting, self.case, times, None, two, 1.0, two, None, {}, 0.0
            )

    class Fake:
        available = staticmethod(lambda: None)

        def __init__(self, name):
            self.name = name

        def start(self, bed, case, setting):
            return Started(case, self.name, setting)

    module = sys.modules[measure.__module__]
    monkeypatch.setattr(module.peers, "get", Fake)
    monkeypatch.setattr(module, "Testbed", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(module, "prepared", lambda *_: SimpleNamespace(sizes=[4]))
    monkeypatch.setattr(module, "validate", lambda results: results)
    monkeypatch.setattr(module, "MEMORY_BYTES", 0)
    monkeypatch.setattr(module, "busy_share", lambda: 0.0)
    systems = (cells.ALONE, cells.PLAIN, cells.SEARCHED)
    for accelerator, counts in (("K80", (1, 3, 3)), (None, (3, 6, 3))):
        blocks.update(dict.fromkeys(blocks, 0))
        cell = cells.Cell("tiny", 4, accelerator=accelerator)
        rows = measure(cell, systems, 3, 2, lambda: None)
        assert tuple(blocks.values()) == counts
        assert [len(row.facts["plain_samples_s"]) for row in rows] == [6, 2 * counts[1], 6]

    # Where they do not fit into memory together.
    def beside_plain(bed, case, setting, plain):
        return Started(case, "planned", setting), Started(case, "plain", plain)

    monkeypatch.setattr(module, "needs_one_session", lambda *_: True)
    monkeypatch.setattr(module, "PLANNED", SimpleNamespace(start_beside_plain=beside_plain))
    monkeypatch.setattr(Fake, "start", lambda own, bed, case, setting: alone_only(own, case))

    def alone_only(peer, case):
        assert peer.name == "alone"
        return Started(case, peer.name, {})

    blocks.update(dict.fromkeys(blocks, 0))
    steps = []
    rows = measure(cells.Cell("tiny", 4, accelerator="K80"), systems, 3, 2, lambda: steps.append(1))
    assert tuple(blocks.values()) == (1, 3, 3)
    assert [row.what["system"] for row in rows] == [str(system) for system in systems]
    assert [len(row.facts["plain_samples_s"]) for row in rows] == [6, 6, 6]
    assert len(steps) == len(systems)


def test_two_plans_share_a_session_where_two_systems_do_not_fit_into_memory(monkeypatch):
    sizes = {"SC_PHYS_PAGES": 6_000_000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    systems = (cells.ALONE, cells.PLAIN, cells.SEARCHED)
    assert not needs_one_session(systems, 200e6, 8)  # AlexNet-v2
    assert needs_one_session(systems, 241e6, 8)  # ResNet-152
    assert needs_one_session(systems, 553e6, 4)  # VGG-16
    assert not needs_one_session(systems, 553e6, 2)
    assert not needs_one_session((*systems, cells.LIVE), 553e6, 4)


def test_the_ablation_has_each_optimization_added_in_turn_and_alone():
    uses = [dict(system.setting).get("uses") for system in cells.ablation_systems(cells.REAL[0])]
    assert uses == [
        *(None, None),
        *("order", "order+batch", "order+batch+schedule", "order+batch+schedule+depth"),
        *("batch", "schedule", "depth"),
        *("order+batch+schedule+depth", None),
    ]


@pytest.mark.parametrize(("name", "size_bytes"), [("tensor_64kb", 2**16), ("tensor_16mb", 2**24)])
def test_one_tensor_is_a_network_of_one_variable(name, size_bytes):
    with tf.Graph().as_default():
        examples, labels = tf.zeros([1, 512]), tf.zeros([1], tf.int32)
        graph.forward(Case(name, 1), examples, labels)
        (variable,) = tf.compat.v1.trainable_variables()
    assert 4 * variable.shape.num_elements() == size_bytes
    networks = {
        cell.network for suite in ("tensor-2", "tensor-8") for cell in cells.FULL[suite].cells
    }
    assert name in networks


def step_row(cell, system, seconds, **reported):
    facts = {"computation_s": 0.5, "wire_limit_s": 0.8, "plain_samples_s": (1.0,) * 6}
    what = {"cell": cell, "network": "toy", "system": str(system)}
    return asdict(Row(what, (seconds,) * 6, {**facts, "reported": reported}, None))


def test_where_a_network_has_several_cells_each_has_a_row(tmp_path):
    rows = [
        step_row(cell, system, seconds, **reported)
        for cell in ("toy, batch 4, rho 1, 2 workers", "toy, batch 8, rho 2, 2 workers")
        for system, seconds, reported in (
            (cells.ALONE, 0.5, {}),
            (cells.PLAIN, 1.0, {}),
            (cells.SEARCHED, 0.84, {"predicted_s": 0.42}),
        )
    ]
    path = tmp_path / "step-toy.json"
    path.write_text(json.dumps({"rows": rows, "machine": {"cores": 2}}))
    shown = "0.500 | 0.800 | 1.000 | 0.840 | 0.50 | 1.25 | 1.05 | 0.84 (0.84-0.84) |"
    assert overview(path).splitlines()[-2:] == [f"| toy, rho {n} | {shown}" for n in (1, 2)]


def test_where_nothing_is_planned_each_cell_has_a_column(tmp_path):
    rows = [step_row(cell, cells.PLAIN, 1.0) for cell in ("toy", "toy, inter-op threads: 1")]
    rows = [{**row, "facts": {**row["facts"], "processor_s": 1.0}} for row in rows]
    path = tmp_path / "step-toy.json"
    path.write_text(json.dumps({"rows": rows, "machine": {"cores": 2}}))
    assert "| plain (pattern shuffle), s | 1.000 | 1.000 |" in overview(path).splitlines()


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (["step", "--quick"], {"step-quick": cells.QUICK}),
        (["ablation", "--quick"], {"ablation-quick": cells.QUICK_ABLATION}),
        (["step", "--suite", "grid-4"], {"step-grid-4": cells.FULL["grid-4"]}),
        (["ablation"], {f"ablation-{name}": suite for name, suite in cells.ABLATION.items()}),
        (["ranking"], {f"ranking-{name}": suite for name, suite in cells.RANKING.items()}),
    ],
)
def test_commands_measure_the_suites_that_are_asked_for(words, measured, monkeypatch):
    given = {}

    def run(suite, name, *_, only, ratios):
        given[name] = suite
        assert (only, ratios) == (["tiny"], ())

    monkeypatch.setattr(benchmarks.commands, "run_step", run)
    assert CliRunner().invoke(app, [*words, "--network", "tiny"]).exit_code == 0
    assert given == measured


def test_cells_with_one_rho_are_measured_again_and_the_others_kept(monkeypatch, tmp_path):
    measured = []

    def shown(cell, systems, *_):
        measured.append((cell.network, cell.rho))
        seconds = float(len(measured))
        what = {"cell": str(cell), "network": cell.network}
        return [Row({**what, "system": str(each)}, (seconds,), {}, "not run") for each in systems]

    monkeypatch.setattr("benchmarks.step.measure", shown)
    monkeypatch.setattr("benchmarks.step.table", lambda cell, rows: str(cell))
    monkeypatch.setattr("benchmarks.step.draw", lambda rows, path: None)
    monkeypatch.setattr("benchmarks.pieces.busy_share", lambda: 0.0)
    step = ["step", "--suite", "grid-8", "--network", "inception_v1", "--results", str(tmp_path)]
    for words in ([], ["--network", "inception_v2"], ["--rho", "0.5"]):
        said = CliRunner().invoke(app, [*step, *words], catch_exceptions=False)
        assert said.exit_code == 0, said.output
    assert measured[-1] == ("inception_v1", 0.5)
    content = json.loads((tmp_path / "step-grid-8.json").read_text())
    values = [row["samples_s"][0] for row in content["rows"] if "planned" in row["what"]["system"]]
    assert values == [10.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    by_networks = [run["networks"] for run in content["settings"]["runs"]]
    assert by_networks == [["inception_v1"], ["inception_v2"], ["inception_v1"]]
    refused = CliRunner().invoke(app, [*step, "--rho", "3"])
    assert refused.exit_code == 2
    assert "no cell with rho 3 here; there are: 0.5, 1, 2" in refused.output


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_a_quick_benchmark_gives_valid_numbers(tmp_path):
    """Measured, planned, validated and drawn; peers have tests of their own."""
    rows = quick_benchmark("ablation", tmp_path)["rows"]
    assert len(rows) == len(cells.QUICK_ABLATION.systems(cells.QUICK_ABLATION.cells[0]))
    for row in rows:
        assert row["invalid"] is None, row
        assert min(row["samples_s"]) > 0
    planned = [row for row in rows if row["what"]["system"].startswith("planned")]
    assert len(planned) == 2
    for row in planned:
        assert row["facts"]["reported"]["communication_s"] > 0
        assert min(row["facts"]["reported"]["link_pauses_s"]) >= 0
    reported = planned[-1]["facts"]["reported"]
    assert "plain" in reported["trials"]
    assert reported["predictions_s"].keys() == reported["trials"].keys()
    assert reported["predicted_s"] == reported["predictions_s"][reported["plan"]]
    said = CliRunner().invoke(app, ["tables", str(tmp_path / "ablation-quick.json")])
    assert said.exit_code == 0, said.output
    assert "wire limit, s" in said.output
