"""How the numbers of the step benchmark are printed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.results import Row, ratio_of_medians
from benchmarks.step.cells import PLAIN, Cell

REPORTED = {
    "communication_s": "link busy s",
    "link_pauses_s": "idle before + between + after, s",
    "groups": "groups",
    "deferred_bytes": "deferred MB",
}
"""What systems may report: when a link is in use and when not, in traced steps, and the plan."""


def bound_s(row: Row) -> float:
    """No step is shorter: computation and wire limit, the longer one."""
    return max(row.facts["computation_s"], row.facts["wire_limit_s"])


def table(cell: Cell, rows: Sequence[Row]) -> Table:
    """The rows of one cell, for a terminal of 80 columns; `markdown` has more of them."""
    own = [row for row in rows if row.what["cell"] == str(cell)]
    first = next((row for row in own if row.samples_s), None)
    limits = (
        f"\nC {first.facts['computation_s']:.3f} s, wire limit {first.facts['wire_limit_s']:.3f} s"
        f", rho {first.facts['wire_limit_s'] / first.facts['computation_s']:.2f}"
        if first
        else ""
    )
    shown = Table(title=f"{cell}{limits}", box=box.SIMPLE_HEAD, padding=0)
    shown.add_column("system", overflow="fold", min_width=14)
    columns = ["median s", "/ plain (95 %)", "/ max(C, wire)", "alpha", "U", "CPU s"]
    for column in columns:
        shown.add_column(column, justify="right")
    shown.add_column("", overflow="fold")
    for row in own:
        if not row.samples_s:
            shown.add_row(row.what["system"], *[""] * len(columns), row.invalid)
            continue
        is_plain = row.what["system"] == str(PLAIN)
        ratio = "1" if is_plain else ratio_of_medians(row.samples_s, row.facts["plain_samples_s"])
        shown.add_row(
            row.what["system"],
            f"{row.median_s:.3f}",
            str(ratio),
            f"{row.median_s / bound_s(row):.2f}",
            *(f"{row.facts[key]:.2f}" if key in row.facts else "" for key in ("alpha", "U")),
            f"{row.facts['processor_s']:.2f}",
            row.invalid or "",
        )
    return shown


def reported(row: Row) -> list[str]:
    """What a system reported of itself, where it did, as `REPORTED` lists it."""
    found = row.facts.get("reported", {})
    if not found:
        return [""] * len(REPORTED)
    deferred = f"{found['deferred_bytes'] / 1e6:.0f}"
    pauses = " + ".join(f"{pause_s:.3f}" for pause_s in found.get("link_pauses_s", ()))
    return [f"{found['communication_s']:.3f}", pauses, str(found["groups"]), deferred]


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each cell: a bar for each system, with C, the wire limit and their maximum."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys(row.what["cell"] for row in rows))
    heights = [2 + sum(row.what["cell"] == cell for row in rows) for cell in cells]
    figure = Figure(figsize=(8, 0.28 * sum(heights) + 0.5), layout="constrained")
    panels = figure.subplots(len(cells), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, cell in zip(panels, cells, strict=True):
        own = [row for row in rows if row.what["cell"] == cell and row.samples_s]
        names = [row.what["system"] for row in own]
        axes.barh(
            names,
            [row.median_s for row in own],
            color=["C3" if row.invalid else "C0" for row in own],
            height=0.7,
        )
        for number, row in enumerate(own):
            axes.plot(row.samples_s, [number] * len(row.samples_s), "k.", markersize=2)
        if own:
            facts = own[0].facts
            axes.axvline(facts["computation_s"], color="C2", linestyle=":", label="C")
            axes.axvline(facts["wire_limit_s"], color="C1", linestyle="--", label="wire limit")
            axes.axvline(bound_s(own[0]), color="k", linewidth=1, label="max(C, wire limit)")
            axes.legend(fontsize=7)
        axes.invert_yaxis()
        axes.set_title(cell, fontsize=9)
        axes.tick_params(labelsize=8)
    panels[-1].set_xlabel("seconds a step; dots: samples; red: invalid")
    figure.savefig(path, dpi=110)
