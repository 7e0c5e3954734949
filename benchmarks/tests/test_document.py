"""The tables of docs/benchmarks are those of the result files."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import when
from benchmarks.commands import app
from benchmarks.document import PAGES, pages, with_tables
from benchmarks.ps.predicted import measured_steps_s
from benchmarks.results import RESULTS, Row

NETWORKS = {"ResNet-50 v2": "resnet_v2_50", "Inception v3": "inception_v3"}
ONE_AND_ONE = {"workers": 1, "servers": 1}
SHOWN = (
    ("orderings", "unordered"),
    ("orderings", "search"),
    ("training", "unordered"),
    ("training", "search"),
    ("training", "search, ahead"),
)
COMMAND = "`python -m benchmarks step --suite grid-2`, result file `step-grid-2.json`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_pages_say_what_was_measured(page):
    """If this fails: ``python -m benchmarks document``, and read the prose around what changed."""
    text = page.read_text()
    assert with_tables(text, RESULTS) == text


def test_what_targets_rest_on_has_a_page():
    text = "\n".join(page.read_text() for page in pages())
    for name in (*(f"step-grid-{n}" for n in (2, 4, 8)), "step-headline", "ablation-real-2"):
        assert f"result file `{name}.json`\n\n" in text


def rows_of(page, cells):
    """The rows of a page of `docs` that are about these networks and have so many cells."""
    lines = (PAGES.parent / page).read_text().splitlines()
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] in NETWORKS and len(row) == cells]


def test_what_orders_gain_is_what_was_measured():
    """If this fails: correct the table of docs/parameter-servers.md, and the prose around it."""
    found = [Row(**row) for row in json.loads((RESULTS / "ps.json").read_text())["rows"]]
    rows = rows_of("parameter-servers.md", 6)
    assert len(rows) == 2
    for network, *shown in rows:
        for (part, order), text in zip(SHOWN, shown, strict=True):
            what = {"part": part, "network": NETWORKS[network], "ordering": order}
            own = [row for row in found if row.what | what | ONE_AND_ONE == row.what]
            assert float(text) == pytest.approx(own[0].median_s, abs=0.006)


def test_how_far_predictions_are_off_is_told_of_what_was_measured():
    """If this fails: ``python -m benchmarks.ps.predicted`` prints the table."""
    measured = measured_steps_s()
    rows = rows_of("explain.md", 5)
    assert len(rows) == 4
    for network, hosts, *shown in rows:
        workers, servers = map(int, hosts.split("+"))
        own = measured[NETWORKS[network], workers, servers]
        for order, text in zip(("unordered", "search", "search, ahead"), shown, strict=True):
            predicted_s, off = text.removesuffix(" %").split(",")
            assert float(off) == pytest.approx(100 * (float(predicted_s) / own[order] - 1), abs=1)


def test_numbers_are_put_right_and_prose_stays():
    old = f"Before.\n\n{COMMAND}\n\n| a number | 1 |\n\n3 predicted steps: good\nAfter | it.\n"
    new = with_tables(old, RESULTS)
    assert new.startswith(f"Before.\n\n{COMMAND}\n\n| cell (bound")
    assert new.endswith("\nAfter | it.\n")
    assert "a number" not in new
    assert "| vgg_16, rho 2 |" in new
    assert new.count("predicted steps:") == 1
    assert "3 predicted steps: good" not in new
    assert with_tables(new, RESULTS) == new


def test_tables_are_in_short_or_in_full_as_they_were():
    assert "**" not in with_tables(f"{COMMAND}\n\n| short | 1 |\n", RESULTS)
    full = with_tables(f"{COMMAND}\n\n**vgg_16, batch 32**: C 1 s\n", RESULTS)
    assert full.count("**: C ") >= 27


def test_a_missing_result_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"step-grid-2\.json"):
        with_tables(f"{COMMAND}\n", tmp_path)
    shown = CliRunner().invoke(
        app, ["document", str(PAGES / "real.md"), "--results", str(tmp_path)]
    )
    assert shown.exit_code == 2
    assert len(shown.stderr.splitlines()) == 1
    assert "benchmarks: error: " in shown.stderr


def test_a_table_tells_when_each_network_was_measured_and_where(tmp_path):
    runs = [
        {"networks": ["b"], "date": "2026-02-02 10:11:12", "processor": "X(R) Y"},
        {"networks": ["a", "c"], "date": "2026-01-01 10:11:12"},
    ]
    for name in ("step-one", "step-quick"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"settings": {"runs": runs}}))
    assert when.markdown(tmp_path).splitlines()[4:] == [
        "| `step-one.json` | a, c | 2026-01-01 10:11 | not recorded |",
        "| `step-one.json` | b | 2026-02-02 10:11 | X Y |",
    ]


def test_single_benchmarks_have_tables_of_their_own():
    for name, heads in (
        ("order", "| network, link |"),
        ("overhead", "| way to run the step |"),
        ("scale", "| network | workers |"),
    ):
        command = f"`python -m benchmarks {name}`, result file `{name}.json`"
        new = with_tables(f"{command}\n", RESULTS)
        assert new.splitlines()[2].startswith(heads)
        assert with_tables(new, RESULTS) == new


def test_a_summary_of_another_directory(tmp_path):
    (tmp_path / "slow").mkdir()
    content = json.loads((RESULTS / "step-headline.json").read_text())
    of_one = [row for row in content["rows"] if row["what"]["network"] == "vgg_16"]
    (tmp_path / "slow/step-headline.json").write_text(json.dumps({**content, "rows": of_one}))
    command = "`python -m benchmarks headline --results benchmarks/results/slow`"
    new = with_tables(f"{command}\n\n| old | 1 |\n", tmp_path)
    assert new.splitlines()[2] == "|  | vgg_16, batch 2 |"
    assert "| old" not in new
