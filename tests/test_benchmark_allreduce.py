"""The allreduce benchmark: what it needs of each row, and that a quick run gives valid rows."""

from __future__ import annotations

import pytest
from commands import quick_benchmark

from benchmarks.allreduce import drawing, driver, report, validity
from benchmarks.allreduce.settings import FULL, QUICK, Network, turns, wire_limit_s
from benchmarks.results import Row
from benchmarks.testbed import missing

LINK = Network(2, "1gbit", 1e9, ())


def row(system, ms, *, workers=2, size=2**20, pattern=None, depth=None, invalid=None, run=1):
    what = {"workers": workers, "size_bytes": size, "system": system}
    facts = {"wire_limit_s": 1e-3, "processors_busy": 0.5, "run": run}
    samples = () if invalid else (ms * 1e-3,) * 3
    return Row({**what, "pattern": pattern, "depth": depth}, samples, facts, invalid)


def test_the_wire_limit_is_what_a_worker_must_send_at_the_payload_rate():
    limit_s = wire_limit_s(2**20, LINK)
    assert limit_s == pytest.approx(2**20 * 8 / (1e9 * 1448 / 1514))
    assert wire_limit_s(2**20, Network(4, "1gbit", 1e9, ())) == pytest.approx(1.5 * limit_s)


@pytest.mark.parametrize("limit_s", [1e-6, 0.05, 0.2, 2.0])
def test_no_size_gets_more_rounds_than_asked_for(limit_s):
    assert 1 <= turns(limit_s, 3).rounds <= 3


def test_a_parameter_server_needs_as_many_bytes_in_all_as_an_all_reduce_but_on_one_link():
    server = validity.needed_bytes("parameter_server", 1000, 4)
    assert server == [3000, 1000, 1000, 1000]
    assert sum(server) == sum(validity.needed_bytes("caramel", 1000, 4)) == 6000


@pytest.mark.parametrize(
    ("error", "sent", "message"),
    [
        (0.0, [1e6, 1e6], None),
        (0.0, [1.09e6, 1e6], None),
        (0.0, [0.9e6, 1e6], "1,900,000 bytes crossed the wire; 2,000,000 are needed"),
        (0.0, [1.2e6, 1e6], "host 0 sent 1,200,000 bytes, more than"),
        (0.1, [1e6, 1e6], "the mean is wrong by 1.0e-01"),
        (float("nan"), [1e6, 1e6], "the mean is wrong by nan"),
    ],
)
def test_a_row_counts_if_the_mean_is_right_and_its_bytes_crossed_the_wire(error, sent, message):
    found = validity.problem(error=error, sent_bytes=sent, needed=[1e6, 1e6], resent=[0, 0])
    assert (found is None) == (message is None)
    assert message is None or found.startswith(message)


def test_what_tcp_sent_again_may_be_counted_twice():
    sent, resent = [1.2e6, 1e6], [100, 0]
    assert validity.problem(error=0, sent_bytes=sent, needed=[1e6, 1e6], resent=resent) is None


def test_the_best_cell_is_the_one_with_the_least_median_among_those_that_count():
    rows = [
        row("caramel", 3, pattern="ring", depth=1),
        row("caramel", 2, pattern="shuffle", depth=1),
        row("mpi", 1),
        row("mirrored", 0, invalid="the mean is wrong by 1.0e-01"),
    ]
    assert report.fastest(report.valid(rows), system="caramel").what["pattern"] == "shuffle"
    assert report.fastest(report.valid(rows), system="mirrored") is None


def test_the_table_and_the_figures_can_do_with_rows_that_do_not_count(tmp_path):
    rows = [
        *(
            row("caramel", workers + depth, workers=workers, pattern=pattern, depth=depth)
            for workers in (2, 4)
            for pattern in FULL.patterns
            for depth in FULL.depths
        ),
        row("mpi", 5),
        row("mpi", 0, workers=4, invalid="mpi has ended: a long story"),
        row("torch_gloo", 0, size=None, invalid="not installed"),
        row("torch_gloo", 0, size=None, workers=4, invalid="not installed"),
    ]
    assert report.table(rows, "x").row_count == 2
    for figure in drawing.draw(rows, tmp_path / "x.json"):
        assert figure.stat().st_size > 1000


def test_a_run_of_a_part_keeps_the_other_rows_of_the_result_file():
    old = [row("mpi", 1, workers=4), row("mpi", 1, run=2), row("mpi", 1, workers=4, size=64, run=2)]
    runs = [{"date": 1}, {"date": 2}]
    before = {"rows": [each.__dict__ for each in old], "settings": {"runs": runs}}
    rows, described = driver.merged(before, [row("mpi", 7, workers=4)], {"runs": [{"date": 3}]})
    found = [(each.what["workers"], each.what["size_bytes"], each.median_s) for each in rows]
    assert found == [(2, 2**20, 0.001), (4, 64, 0.001), (4, 2**20, 0.007)]
    assert described == {"runs": [{"date": 2}, {"date": 3}]}


def test_a_part_of_the_settings_has_the_sizes_and_workers_asked_for():
    part = FULL.only([4, 8], [64])
    assert [(n.workers, n.sizes_bytes) for n in part.networks] == [(4, (64,)), (8, (64,))]
    assert FULL.only([], []) == FULL
    assert FULL.only([3], []).networks == ()


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_allreduce_benchmark_gives_valid_numbers(tmp_path):
    content = quick_benchmark("allreduce", tmp_path)
    cells = len(QUICK.patterns) * len(QUICK.depths)
    sizes = QUICK.networks[0].sizes_bytes
    measured = [row for row in content["rows"] if row["invalid"] != "not installed"]
    for each in measured:
        assert each["invalid"] is None
        assert min(each["samples_s"]) > 0
        assert each["facts"]["error"] <= validity.TOLERANCE
    for system, count in (("caramel", cells), ("mirrored", 1), ("parameter_server", 1)):
        found = [row for row in measured if row["what"]["system"] == system]
        assert len(found) == count * len(sizes)
    for figure in ("allreduce-quick.png", "allreduce-quick-depth.png"):
        assert (tmp_path / figure).stat().st_size > 1000
