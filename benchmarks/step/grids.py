"""How close planned steps come to the bound on emulated accelerators: all grids in one table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Row
from benchmarks.step.cells import PLAIN, SEARCHED, Cell
from benchmarks.step.predicted import pairs
from benchmarks.step.show import bound_s

AIM = 1.06  # times the bound: what a planned step should take at most


@dataclass(frozen=True)
class Pairing:
    """What a cell showed: the row of the searched plan beside that of the plain one."""

    cell: Cell
    planned: Row
    plain: Row

    @property
    def over_bound(self) -> float:
        """The planned step over max(C, wire limit)."""
        return self.planned.median_s / bound_s(self.planned)

    @property
    def over_plain(self) -> float:
        """The planned step over the plain one."""
        return self.planned.median_s / self.plain.median_s

    def __str__(self) -> str:
        return f"{self.cell.network}, {self.cell.workers} workers, rho {self.cell.rho:g}"


@dataclass(frozen=True)
class Grid:
    """The cells of a result file in which both were measured, of so many that it should have."""

    file: str
    pairings: tuple[Pairing, ...]
    cells: int


def read(path: Path) -> Grid:
    """What a result file of a grid has."""
    content = json.loads(path.read_text())
    rows = (Row(**row) for row in content["rows"])
    valid = {
        (row.what["cell"], row.what["system"]): row
        for row in rows
        if row.samples_s and not row.invalid
    }
    cells = [Cell(**cell) for cell in content["settings"]["cells"]]
    found = []
    for cell in cells:
        planned, plain = (valid.get((str(cell), str(system))) for system in (SEARCHED, PLAIN))
        if planned is not None and plain is not None:
            found.append(Pairing(cell, planned, plain))
    return Grid(path.name, tuple(found), len(cells))


def markdown(paths: Sequence[Path]) -> str:
    """A line for each grid, and one for all of them together.

    Those above `AIM` are cells whose planned step is more than so many times the bound.
    """
    grids = [read(path) for path in paths]
    every = tuple(pairing for grid in grids for pairing in grid.pairings)
    total = Grid("all", every, sum(grid.cells for grid in grids))
    lines = [
        f"| file | cells | ÷ bound, median | ÷ bound, worst | above {AIM} "
        "| ÷ plain, worst | error of predictions, median | worst |",
        "|---" * 8 + "|",
        *(_line(grid) for grid in (*grids, total) if grid.pairings),
    ]
    return "\n".join(["`python -m benchmarks grids`", "", *lines])


def _line(grid: Grid) -> str:
    found = grid.pairings
    worst = max(found, key=lambda each: each.over_bound)
    slowest = max(found, key=lambda each: each.over_plain)
    above = sum(round(each.over_bound, 2) > AIM for each in found)
    errors = [pair.error for pair in pairs([each.planned for each in found])]
    texts = [
        f"`{grid.file}`" if grid.file != "all" else "all",
        f"{len(found)} of {grid.cells}",
        f"{statistics.median(each.over_bound for each in found):.2f}",
        f"{worst.over_bound:.2f} ({worst})",
        str(above),
        f"{slowest.over_plain:.3f} ({slowest})",
        f"{statistics.median(errors):.1%}",
        f"{max(errors):.1%}",
    ]
    return f"| {' | '.join(texts)} |"


def draw(paths: Sequence[Path], path: Path) -> None:
    """A panel for each number of workers: every cell's planned and plain step over the bound."""
    from matplotlib.figure import Figure

    grids = [grid for grid in map(read, paths) if grid.pairings]
    cells = [each.cell for grid in grids for each in grid.pairings]
    networks = list(dict.fromkeys(cell.network for cell in cells))
    ratios = sorted({cell.rho or 0.0 for cell in cells})
    figure = Figure(figsize=(3.2 * len(grids), 0.35 * len(networks) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(grids), squeeze=False, sharex=True, sharey=True).flatten()
    for axes, grid in zip(panels, grids, strict=True):
        for each in grid.pairings:
            among = ratios.index(each.cell.rho or 0.0) - (len(ratios) - 1) / 2
            place = networks.index(each.cell.network) + 0.25 * among
            plain = each.over_bound / each.over_plain
            axes.plot([each.over_bound, plain], [place, place], color="0.85", zorder=1)
            axes.plot(plain, place, "o", color="0.6", markersize=4)
            axes.plot(each.over_bound, place, "o", color="C1", markersize=4)
        axes.axvline(1.0, color="k", linewidth=1, linestyle="--")
        axes.set_title(f"{grid.pairings[0].cell.workers} workers", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(networks)), networks)
    panels[0].invert_yaxis()
    rhos = ", ".join(f"{rho:g}" for rho in ratios)
    text = f"step ÷ max(C, wire limit): planned, and (gray) plain; from above with rho {rhos}"
    figure.supxlabel(text, fontsize=8)
    figure.savefig(path, dpi=130)
