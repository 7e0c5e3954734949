"""The documentation has what it must have, its code runs, and its links lead somewhere."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import caramel
from caramel.cluster.processes import free_ports
from caramel.core import errors
from tests.support import forking

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
CLASSES = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.CaramelError)
]
EPOCHS = re.compile(r"range\(50\)")


def anchors(page):
    """What can be linked to in a page: its headings, as MyST names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_has_an_entry_that_says_what_to_do(error):
    text = (DOCS / "troubleshooting.md").read_text()
    entry = re.search(rf"^### {error.__name__}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert entry, f"docs/troubleshooting.md has no entry for {error.__name__}"
    if error is not errors.CaramelError:
        assert "**What you see.**" in entry[1]
        assert "**What to do.**" in entry[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_and_pictures_lead_somewhere(page):
    text = re.sub(r"^```(?!\{).*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"\{image\} (\S+)", text)
    for target in targets:
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


def test_result_files_that_pages_name_are_there():
    results = ROOT / "benchmarks" / "results"
    kinds = "step|ablation|ranking|order|scale|search|overhead|decided|avx2"
    for page in [*DOCS.glob("benchmarks/*.md"), *DOCS.glob("decisions/*.md")]:
        for name in re.findall(rf"`((?:{kinds})[\w/-]*\.json)`", page.read_text()):
            assert (results / name).exists(), f"{page.name} names {name}"


def test_public_names_are_in_the_reference():
    text = (DOCS / "api.md").read_text()
    for name in caramel.__all__:
        assert name == "__version__" or f"caramel.{name}\n" in text, name


def test_functions_of_the_walks_exist():
    """Each name in the walks of the architecture is defined somewhere in the package."""
    _, _, walks = (DOCS / "architecture.md").read_text().partition("## Walk 1")
    source = "\n".join(path.read_text() for path in (ROOT / "caramel").rglob("*.py"))
    named = set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`", walks)) - {"session.step"}
    assert len(named) > 30
    defined = set(re.findall(r"(?:(?:def|class) |^)(\w+)", source, re.MULTILINE))
    assert {name for name in named if name.rpartition(".")[2] not in defined} == set()
    hops = re.findall(r"^(\d+)\. ", walks, re.MULTILINE)
    assert max(map(int, hops)) <= 10


def programs_of(page):
    """The programs of a page, by file name."""
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {name: EPOCHS.sub("range(12)", code) for name, code in blocks}


def run(program, directory, *arguments):
    """What a program prints."""
    done = forking.run(
        [sys.executable, program, *arguments],
        forks=True,
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    # TensorFlow's messages are hidden.
    assert all(line.startswith("caramel: ") for line in done.stderr.splitlines()), done.stderr
    return done.stdout


@pytest.fixture
def programs(tmp_path):
    pages = ("get-started.md", "checkpoints-failures.md")
    for name, code in [each for page in pages for each in programs_of(page).items()]:
        (tmp_path / name).write_text(code)
    return tmp_path


@pytest.mark.slow
def test_get_started_trains_alike_on_one_device_and_on_four_workers(programs):
    shown = [run(name, programs).split() for name in ("single.py", "four.py")]
    for words in shown:
        assert words[::2] == ["loss", "accuracy"]
    single, four = ([float(word) for word in words[1::2]] for words in shown)
    assert four == pytest.approx(single, rel=1e-3)
    assert (programs / "checkpoints" / "four.ckpt.index").exists()


@pytest.mark.slow
def test_the_program_that_stops_early_ends_with_the_best_variables(programs):
    words = run("early.py", programs).split()
    assert words[::2] == ["steps", "best", "restored", "accuracy"]
    steps, best, restored, accuracy = map(float, words[1::2])
    assert 30 < steps < 1000
    assert restored == pytest.approx(best, rel=1e-5)
    assert accuracy > 0.3
    kept = sorted((programs / "checkpoints").glob("best-*.index"))
    assert f"best-{int(steps) - 30}.index" in [path.name for path in kept]
    assert len(kept) == 2


@pytest.mark.processes
def test_get_started_trains_on_workers_that_run_already(programs):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    command = [sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(addresses)]
    workers = [
        forking.Popen(
            [*command, "--task", str(task)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task in range(2)
    ]
    try:
        assert run("machines.py", programs, ",".join(addresses)).startswith("loss")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
