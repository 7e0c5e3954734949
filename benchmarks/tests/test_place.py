"""The experiment of the partitioning paper runs, and its graphs have the sizes that they should."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import place
from benchmarks.place import limits
from benchmarks.place.dags import PAPER, Setting, random_dag
from benchmarks.place.show import ALONE, PATH_BOUND, SEARCH, WORK_BOUND, markdown
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
    assert f"| {ALONE} |" in markdown(rows)


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
    text = markdown([*rows, row("heft", "pct", 3.0, 3.0)])
    assert "| heft + pct | 3.0 ± 0.0 (2.00) |" in text
    assert "| hash + fifo | 6.0 ± 1.0 (1.00) |" in text
    assert "| vertices on the critical path | 25 % |" in text
