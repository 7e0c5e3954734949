"""How near to the bound does the search come, as it predicts, and what does planning take?

The cells of the grids, without a bed: times of kernels follow from their flops, scaled for rho, and
the network is assumed to be that of the grid's beds. No worker runs, so the same code finds the
same plans on every machine. What steps really take is what the grids measure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks.pieces import piece, warn
from benchmarks.results import Row, write
from benchmarks.step.cells import FULL as SUITES
from benchmarks.step.cells import GRIDS, Cell
from caramel.cluster.quiet_start import quiet_start
from caramel.planning.options import Options


@dataclass(frozen=True)
class Settings:
    """Which cells, and how many tasks a search may simulate."""

    cells: tuple[Cell, ...] = tuple(cell for name in GRIDS for cell in SUITES[name].cells)
    budget_tasks: int = Options().budget_tasks


FULL = Settings()
QUICK = Settings((Cell("tiny", 4, accelerator="K80", rho=1.0),), budget_tasks=20_000)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Plan, print a table and write a result file; returns the file.

    Args:
        only: networks; the result file keeps the others.

    Raises:
        ValueError: a network that no cell has.
    """
    names = list(dict.fromkeys(cell.network for cell in settings.cells))
    own = piece(names, only, directory / f"{name}.json", console)
    cells = [cell for cell in settings.cells if cell.network in own.networks]
    with quiet_start():
        from benchmarks.search_client import Searches
    searches = Searches(settings.budget_tasks)
    rows = [
        searches.plan(cell) for cell in track(cells, "planning", console=console, transient=True)
    ]
    described = {
        "command": own.command,
        "budget_tasks": settings.budget_tasks,
        "runs": own.all_runs(),
    }
    path = write(name, described, own.all_rows(rows, names), load=own.load, directory=directory)
    console.print(Markdown(markdown(directory, name)))
    warn(own.all_runs(), console)
    console.print(f"results: {path}")
    return path


def markdown(directory: Path, name: str = "search") -> str:
    """How many times the bound predicted steps take, and groups, as a table for docs/benchmarks."""
    rows = [Row(**row) for row in json.loads((directory / f"{name}.json").read_text())["rows"]]
    return "\n".join(["`python -m benchmarks search`", "", *_lines(rows)])


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield "| network | workers | " + " | ".join(f"rho {rho:g}" for rho in _ratios(rows)) + " | s |"
    yield "|---|---|" + "---|" * len(_ratios(rows)) + "---|"
    jobs = dict.fromkeys((row.what["network"], row.what["workers"]) for row in rows)
    for network, workers in jobs:
        own = [r for r in rows if (r.what["network"], r.what["workers"]) == (network, workers)]
        by_ratio = {row.what["rho"]: row for row in own}
        cells = [_cell(by_ratio[rho]) if rho in by_ratio else "" for rho in _ratios(rows)]
        longest_s = max(row.best_s for row in own)
        yield f"| {network} | {workers} | {' | '.join(cells)} | {longest_s:.1f} |"
    over = [row.facts["over_bound"] for row in rows]
    seconds = [row.best_s for row in rows]
    yield ""
    yield (
        f"{len(rows)} plans: {np.mean(over):.3f} times the bound in the mean, {max(over):.3f} at "
        f"most; {np.mean(seconds):.1f} s of planning in the mean, {max(seconds):.1f} at most"
    )


def _ratios(rows: Sequence[Row]) -> list[float]:
    return sorted({row.what["rho"] for row in rows})


def _cell(row: Row) -> str:
    return f"{row.facts['over_bound']:.3f} ({row.facts['groups']})"
