"""The tables of the pages in ``docs/benchmarks``, as the result files have them.

Below a line with the command and its result file stand that file's tables, in short or, where the
first of them has a title of its own, in full. Everything else is prose, and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import held, search, tables, when
from benchmarks.faults import growth, malformed, runs, snapshots
from benchmarks.place import memory as place_memory
from benchmarks.place import searched as place_searched
from benchmarks.place import show as place
from benchmarks.placed import show as placed
from benchmarks.ps import show as ps
from benchmarks.results import Row
from benchmarks.step import grids, headline, predicted
from benchmarks.step.cells import GRIDS, HEADLINES
from benchmarks.step.markdown import markdown, overview

PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"

_OF_FILE = re.compile(r"`python -m benchmarks (\w+)([^`]*)`, result file `([^`]+)`")
_OF_ALL = re.compile(
    r"`python -m benchmarks (headline|grids|when|search)(?: --results benchmarks/results/(\w+))?`"
)
_TITLE = re.compile(r"\*\*\w+, batch .*\*\*: C ")
_SUMMARY = re.compile(r"\d+ (?:predicted steps|plans): ")
_HEAD = re.compile(r"\*\*[^*]+\*\*$")  # of one table among several
_TABLE = re.compile(rf"\||$|{_HEAD.pattern}|{_TITLE.pattern}|{_SUMMARY.pattern}|Predictions of ")

_ALONE: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "faults": runs.markdown,
    "growth": growth.markdown,
    "held": held.markdown,
    "keras": tables.keras,
    "malformed": malformed.markdown,
    "order": tables.order,
    "overhead": tables.overhead,
    "place": place.tables,
    "place --suite memory": place_memory.tables,
    "place --suite search": place_searched.tables,
    "placed": placed.tables,
    "ps": ps.tables,
    "scale": tables.scale,
    "snapshots": snapshots.markdown,
    "ranking": lambda rows: list(predicted.markdown(rows)),
}
"""How benchmarks are shown that are no suites of steps, by the command, with its options or not."""


def pages(directory: Path = PAGES) -> list[Path]:
    """The pages that have tables."""
    return sorted(directory.glob("*.md"))


def with_tables(text: str, results: Path) -> str:
    """A page with the tables of the result files in a directory.

    Raises:
        FileNotFoundError: there is no such result file.
    """
    lines = text.splitlines()
    written: list[str] = []
    while lines:
        written.append(lines.pop(0))
        of_file, of_all = _OF_FILE.match(written[-1]), _OF_ALL.match(written[-1])
        if of_file is None and of_all is None:
            continue
        old: list[str] = []
        while lines and _TABLE.match(lines[0]):
            old.append(lines.pop(0))
        if of_file is not None:
            new = _tables_of(of_file[1], of_file[2], results / of_file[3], old)
        elif of_all is not None:
            new = _summary_of(of_all[1], results / (of_all[2] or ""))
        written += ["", *new, ""]
    return "\n".join(written).rstrip() + "\n"


def _tables_of(command: str, options: str, path: Path, old: Sequence[str]) -> list[str]:
    """The tables of one result file, in the form that the page has."""
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    alone = _ALONE.get(command + options) or _ALONE.get(command)
    if alone is not None:
        return alone(rows)
    is_full = any(map(_TITLE.match, old))
    shown = _below_command((markdown if is_full else overview)(path))
    if any(map(_SUMMARY.match, old)):
        shown += ["", next(predicted.summary(rows))]
    return shown


def _summary_of(command: str, results: Path) -> list[str]:
    """The table of a command that sums up many result files."""
    if command == "when":
        return _below_command(when.markdown(results))
    if command == "search":
        return _below_command(search.markdown(results))
    shown, suites = (headline, HEADLINES) if command == "headline" else (grids, GRIDS)
    paths = [results / f"step-{suite}.json" for suite in suites]
    return _below_command(shown.markdown([path for path in paths if path.exists()]))


def _below_command(text: str) -> list[str]:
    """The lines of tables, without the command above them and blank lines around them."""
    return "\n".join(text.splitlines()[1:]).strip().splitlines()
