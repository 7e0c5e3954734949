"""What does a step of Caramel's session cost over TensorFlow's own `Session.run`?

A network of 50 layers, so narrow that a step is short, on two hosts with an unlimited network. The
same distributed graph runs in three ways, a block of steps each in turn:

* `Session.step`, fed a batch that it splits, which watches the workers and averages the loss;
* a bare `tf.compat.v1.Session.run`, fed the parts, which fetches the losses of all workers;
* a callable of a bare session (`make_callable`), which looks its fetches and feeds up only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pieces import piece, warn
from benchmarks.results import Row, write
from benchmarks.workers import measured_on_two_hosts

STEP, RUN, CALLABLE = "Session.step", "bare run", "bare callable"
LIMIT_S = 1e-3
"""What a step may cost over a bare `Session.run`."""
RATE = "20gbit"
TIMEOUT_S = 300
NETWORK = "narrow"


@dataclass(frozen=True)
class Settings:
    """What is measured: a network of so many layers, in rounds of blocks of steps."""

    layers: int = 50
    width: int = 8
    batch: int = 8
    rounds: int = 20
    steps: int = 20


FULL = Settings()
QUICK = Settings(layers=10, rounds=2, steps=5)


def run(settings: Settings, name: str, directory: Path, console: Console) -> Path:
    """Measure, print a table, write a result file and a figure; returns the file."""
    own = piece([NETWORK], (), directory / f"{name}.json", console)
    measured = measured_on_two_hosts(
        "benchmarks.overhead_client", asdict(settings), timeout_s=TIMEOUT_S, rate=RATE
    )
    bare_s = float(np.median(measured["samples_s"][RUN]))
    rows = [
        Row(
            {"network": NETWORK, "system": system},
            tuple(samples_s),
            {"over_bare_run_s": float(np.median(samples_s)) - bare_s, "ops": measured["ops"]},
            None if np.isclose(measured["losses"][system], measured["losses"][RUN]) else "loss",
        )
        for system, samples_s in measured["samples_s"].items()
    ]
    described = {"command": own.command, **asdict(settings), "runs": own.all_runs()}
    path = write(name, described, rows, load=own.load, directory=directory)
    console.print(_table(rows, name))
    _draw(rows, path.with_suffix(".png"))
    warn(own.all_runs(), console)
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


def _table(rows: Sequence[Row], name: str) -> Table:
    table = Table(title=f"{name}: ms a step")
    for column in ("system", "median", "least", "over a bare run"):
        table.add_column(column, justify="right")
    for row in rows:
        over_ms = row.facts["over_bare_run_s"] * 1e3
        cells = (f"{row.median_s * 1e3:.2f}", f"{row.best_s * 1e3:.2f}", f"{over_ms:+.2f}")
        table.add_row(str(row.what["system"]), *cells)
    return table


def _draw(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes: Any = figure.add_subplot(ylabel="ms a step")
    milliseconds = [np.asarray(row.samples_s) * 1e3 for row in rows]
    axes.boxplot(milliseconds, whis=(5, 95), showfliers=False)
    axes.set_xticklabels([row.what["system"] for row in rows])
    axes.set_title("boxes: quartiles, whiskers: 5 % and 95 %", fontsize=9)
    figure.savefig(path, dpi=120)
