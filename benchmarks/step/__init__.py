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

from rich.console import Console
from rich.progress import Progress

from benchmarks.pieces import piece, warn
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
    own = piece(
        networks,
        only or (networks if ratios else ()),
        directory / f"{name}.json",
        console,
        stays=lambda row: bool(ratios) and row.what["cell"] not in again,
    )
    cells = [cell for cell in chosen if cell.network in own.networks]
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=sum(len(suite.systems(cell)) for cell in cells))
        for cell in cells:
            progress.update(task, description=str(cell))
            rows += measure(
                cell, suite.systems(cell), suite.rounds, suite.steps, lambda: progress.advance(task)
            )
            console.print(table(cell, rows))
    described = {
        "command": own.command,
        "cells": [asdict(cell) for cell in suite.cells],
        "rounds": suite.rounds,
        "steps": suite.steps,
        "runs": own.all_runs(),
    }
    places = {str(cell): place for place, cell in enumerate(suite.cells)}
    all_rows = sorted(
        own.all_rows(rows, networks), key=lambda row: places.get(str(row.what["cell"]), len(places))
    )
    path = write(name, described, all_rows, load=own.load, directory=directory)
    draw(all_rows, path.with_suffix(".png"))
    for line in predicted.summary(all_rows):
        console.print(line)
    if predicted.draw(all_rows, beside := path.with_name(f"{path.stem}-predicted.png")):
        console.print(f"predicted against measured: {beside}")
    warn(own.all_runs(), console)
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path
