"""How long is a training step, with Caramel and with each peer, and what bounds it?

| file        | question                                                       |
|-------------|----------------------------------------------------------------|
| `cells`     | which networks, hosts and systems are measured?                |
| `measure`   | what did the systems show, a block of steps in turn?           |
| `show`      | how are the numbers printed and drawn?                         |
| `predicted` | how well were the steps predicted?                             |
| `headline`  | how does Caramel stand beside the best of each peer?           |
| `grids`     | how close do plans come to the bound?                          |

For each cell, C is the step of a worker that trains alone (an emulated one: the kernels' sum), and
N the wire limit: the bytes an all-reduce needs at the payload rate of the link. Then, as in section
3.1 of the Caramel paper,

- rho = N / C, the communication to computation ratio (here of the case, not of a system: whatever
  a system adds to the least possible N lowers its alpha),
- alpha = (N + C - T) / min(N, C), the overlap (1: nothing more to hide; negative: T > N + C),
- U = C / T = 1 / (1 + rho - alpha min(rho, 1)), the utilization.

No step can be shorter than max(C, N) as long as all workers compute what one computes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.pieces import Piece, check_network, piece, warn
from benchmarks.results import Row, write
from benchmarks.step import predicted
from benchmarks.step.cells import Suite
from benchmarks.step.measure import measure
from benchmarks.step.show import draw, table


def run(
    suite: Suite,
    name: str,
    directory: Path,
    console: Console,
    *,
    only: Sequence[str] = (),
    ratios: Sequence[float] = (),
) -> Path:
    """Measure all cells, print tables, write a result file and a figure; returns the file.

    The file is written when all cells of a network are measured.

    Args:
        only: networks to measure; of the others the file keeps what it has.
        ratios: likewise; with which rho, of cells that are made for one.

    Raises:
        ValueError: a network or a rho that the suite does not have.
    """
    networks = list(dict.fromkeys(cell.network for cell in suite.cells))
    for rho in ratios:
        if rho not in (known := {cell.rho for cell in suite.cells}):
            has = ", ".join(f"{each:g}" for each in sorted(r for r in known if r is not None))
            raise ValueError(f"there is no cell with rho {rho:g} here; there are: {has or 'none'}")
    chosen = [cell for cell in suite.cells if not ratios or cell.rho in ratios]
    again = {str(cell) for cell in chosen}
    for each in only:
        check_network(each, networks)
    measured = [each for each in networks if each in (only or networks)]
    cells = [cell for cell in chosen if cell.network in measured]
    path = directory / f"{name}.json"
    rows: list[Row] = []
    runs: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=sum(len(suite.systems(cell)) for cell in cells))
        for network in measured:  # a piece each: whoever ends a long suite early keeps the others
            own = piece(
                networks,
                [network],
                path,
                console,
                stays=lambda row: bool(ratios) and row.what["cell"] not in again,
            )
            found: list[Row] = []
            for cell in (each for each in cells if each.network == network):
                progress.update(task, description=str(cell))
                found += measure(
                    *(cell, suite.systems(cell), suite.rounds, suite.steps),
                    lambda: progress.advance(task),
                )
                console.print(table(cell, found))
            rows, runs = _in_order(suite, own.all_rows(found, networks)), own.all_runs()
            write(name, _described(suite, own), rows, load=own.load, directory=directory)
    draw(rows, path.with_suffix(".png"))
    for line in predicted.summary(rows):
        console.print(line)
    if predicted.draw(rows, beside := path.with_name(f"{path.stem}-predicted.png")):
        console.print(f"predicted against measured: {beside}")
    warn(runs, console)
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


def _described(suite: Suite, own: Piece) -> dict[str, Any]:
    """The settings that a result file keeps."""
    return {
        "command": own.command,
        "cells": [asdict(cell) for cell in suite.cells],
        "rounds": suite.rounds,
        "steps": suite.steps,
        "runs": own.all_runs(),
    }


def _in_order(suite: Suite, rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of the suite's cells."""
    places = {str(cell): place for place, cell in enumerate(suite.cells)}
    return sorted(rows, key=lambda row: places.get(str(row.what["cell"]), len(places)))
