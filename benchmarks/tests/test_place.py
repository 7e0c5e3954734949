"""The experiment of the partitioning paper runs, and its graphs have the sizes that they should."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import place
from benchmarks.place import limits, memory, searched
from benchmarks.place.dags import PAPER, Setting, random_dag
from benchmarks.place.show import ALONE, PATH_BOUND, SEARCH, WORK_BOUND, tables
from benchmarks.place.steps import PROCESSOR, STEPS, drawn, step_problem
from benchmarks.results import Row
from caramel.planning.placement.ranks import critical_path


def test_the_quick_experiment_has_a_row_for_each_partitioner_and_scheduler(tmp_path):
    file = place.run(place.QUICK, "place-quick", tmp_path, Console(quiet=True))
    rows = [Row(**row) for row in json.loads(file.read_text())["rows"]]
    found = {(row.what["partitioner"], row.what["scheduler"]): row for row in rows}
    assert len(rows) == len(found) == 8 * 3 + 4
    for (_, scheduler), row in found.items():
        if scheduler:
            for bound in (PATH_BOUND, WORK_BOUND):
                pairs = zip(row.samples_s, found[bound, ""].samples_s, strict=True)
                assert all(sample >= least for sample, least in pairs)
    longest = zip(found[SEARCH, ""].samples_s, found["heft", "pct"].samples_s, strict=True)
    assert all(sample <= other for sample, other in longest)
    assert len(set(found["hash", "fifo"].samples_s)) == place.QUICK.draws
    assert (tmp_path / "place-quick.png").exists()
    assert f"| {ALONE} |" in "\n".join(tables(rows))


def test_the_quick_limits_have_a_row_for_each_partitioner_and_scheduler(tmp_path):
    file = limits.run(limits.QUICK, "limits-quick", tmp_path, Console(quiet=True))
    assert len(json.loads(file.read_text())["rows"]) == 8 + 1 + 3


@pytest.mark.parametrize("network", ["convolutional_network", "recurrent_network"])
def test_graphs_have_the_sizes_of_the_table(network):
    shape = PAPER[network]
    graph = random_dag(shape, Setting(), 0)
    assert len(graph.vertices) == shape.vertices
    assert sum(map(len, graph.successors)) == shape.edges
    assert sum(len(members) for members in graph.together) == shape.collocated
    assert len(critical_path(graph)) / shape.vertices == pytest.approx(shape.on_path, rel=0.15)
    assert {device.speed for device in graph.devices} <= set(range(10, 101))
    assert graph.rates[3][5] == graph.rates[5][3]


def test_the_table_says_how_many_times_as_fast_as_hash_with_fifo():
    def row(partitioner, scheduler, *samples, **facts):
        what = {"network": "n", "partitioner": partitioner, "scheduler": scheduler}
        return Row(what, samples, facts)

    rows = [row(PATH_BOUND, "", 1.0, on_path=0.25), row("hash", "fifo", 5.0, 7.0)]
    text = "\n".join(tables([*rows, row("heft", "pct", 3.0, 3.0)]))
    assert "| heft + pct | 3.0 ± 0.0 (2.00) |" in text
    assert "| hash + fifo | 6.0 ± 1.0 (1.00) |" in text
    assert "| vertices on the critical path | 25 % |" in text


# Real networks ----------------------------------------------------------------------------------


def test_a_drawn_step_keeps_its_edges_and_what_must_be_together():
    step = step_problem(STEPS["AlexNet-v2"], PROCESSOR)
    graph = drawn(step, Setting(devices=5), 0)
    assert [set(own) for own in graph.successors] == [set(own) for own in step.successors]
    assert graph.groups == step.groups
    assert len(graph.devices) == 5
    assert {vertex.operations for vertex in graph.vertices} <= set(range(1, 101))
    assert {tensor.bytes for tensor in graph.tensors} <= set(range(1, 101))
    assert {len(allowed) for allowed in graph.allowed} == {5}
    assert drawn(step, Setting(devices=5), 0) == graph != drawn(step, Setting(devices=5), 1)


def test_the_quick_search_says_how_much_faster_steps_are(tmp_path):
    file = searched.run(searched.QUICK, "search-quick", tmp_path, Console(quiet=True))
    (row,) = [Row(**row) for row in json.loads(file.read_text())["rows"]]
    assert row.facts["bound_s"] <= row.samples_s[0] <= row.facts["best_s"]
    lines = searched.tables([row])
    assert lines[0] == "| network, devices | rates 10-60 |"
    gain = row.facts["best_s"] / row.samples_s[0]
    assert lines[-1] == f"| geometric mean, of all {gain:.3f} | {gain:.3f} |"


def test_the_quick_placement_on_small_devices_says_what_fits(tmp_path):
    file = memory.run(memory.QUICK, "memory-quick", tmp_path, Console(quiet=True))
    limited, unlimited = [Row(**row) for row in json.loads(file.read_text())["rows"]]
    assert len(unlimited.facts["pairs_s"]) == 18
    assert unlimited.samples_s[0] <= unlimited.facts["one_s"]
    assert 0.6 <= limited.facts["memory_mib"] / limited.facts["needed_mib"] < 1
    assert limited.samples_s[0] <= min(limited.facts["pairs_s"].values())
    lines = memory.tables([limited, unlimited])
    assert "| not limited (" in lines[3]


def test_what_did_not_fit_has_no_numbers():
    what = {"network": "n", "count": 2, "share": 0.6, "computer": PROCESSOR}
    facts = {
        "one_s": 2.0,
        "needed_mib": 10.0,
        "memory_mib": 6.0,
        "pairs_s": {},
        "best": None,
        "used": 0,
    }
    (line,) = memory.tables([Row(what, (), facts, "nothing fits")])[2:]
    assert line == "| n | 2 cores | 6 (10) | 2.000 | none | none |  |  |"
    facts |= {"pairs_s": {"heft + pct": 6.0}, "best": "heft + pct", "used": 2}
    (line,) = memory.tables([Row(what, (3.0,), facts)])[2:]
    assert line.endswith("| 2.000 | 3.00, heft + pct (1) | 1.50 | 2.00 | 2 |")
