"""What does training a Keras model cost over training the same network as a graph of v1?

Two hosts with a link, a worker on each, and a client on the first. The same layers are trained in
three ways, a block of steps each in turn, with real computation:

* `Trainer.fit`, with its data, metrics and callbacks;
* `Session.step` of the trainer's own session, fed one batch again and again;
* `Session.step` of an `ARModel` of the same layers as a graph of `tf.compat.v1`.

Each has planned before, from what it has measured itself.

| file     | what                                          |
|----------|-----------------------------------------------|
| `models` | the models, and batches for them              |
| `as_v1`  | a model's layers, written as a graph of v1    |
| `client` | trains a model in the three ways              |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import tables
from benchmarks.pieces import run_in_pieces
from benchmarks.results import Row, ratio_of_medians
from benchmarks.workers import measured_on_two_hosts

FIT, STEP, V1 = "Trainer.fit", "its session's step", "graph of v1"
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Case:
    """A model, and the batch of both workers."""

    network: str
    batch: int


@dataclass(frozen=True)
class Settings:
    """What is measured, in rounds of blocks of steps.

    Attributes:
        warm_up: steps after which each way has planned, at most.
    """

    cases: tuple[Case, ...] = (Case("resnet_50", 8), Case("transformer", 32))
    rounds: int = 5
    steps: int = 6
    warm_up: int = 40


FULL = Settings()
QUICK = Settings((Case("dense", 32),), rounds=2, steps=3, warm_up=4)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print a table, write a result file and a figure; returns the file."""
    cases = {case.network: case for case in settings.cases}
    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=list(cases),
        measure=lambda network: _measured(cases[network], settings),
        tables=tables.keras,
        draw=_draw,
    )


def over_v1(rows: Sequence[Row]) -> float:
    """How many times as long as that of the graph of v1 a step of `Trainer.fit` is."""
    of = {row.what["system"]: row.samples_s for row in rows}
    return ratio_of_medians(of[FIT], of[V1]).value


def _measured(case: Case, settings: Settings) -> list[Row]:
    """A row for each way."""
    told = {**asdict(settings), **asdict(case)}
    measured = measured_on_two_hosts("benchmarks.keras.client", told, timeout_s=TIMEOUT_S)
    return [
        Row(
            {"network": case.network, "system": system, "batch": case.batch},
            tuple(samples_s),
            {"plan": measured["plans"][system], "lowering_s": measured["lowering_s"]},
            None if np.isfinite(measured["losses"][system]) else "loss",
        )
        for system, samples_s in measured["samples_s"].items()
    ]


def _draw(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    networks = list(dict.fromkeys(str(row.what["network"]) for row in rows))
    figure = Figure(figsize=(4 * len(networks), 3), layout="constrained")
    for number, network in enumerate(networks, 1):
        own = [row for row in rows if row.what["network"] == network]
        axes: Any = figure.add_subplot(1, len(networks), number, ylabel="ms a step", title=network)
        milliseconds = [np.asarray(row.samples_s) * 1e3 for row in own]
        axes.boxplot(milliseconds, whis=(5, 95), showfliers=False)
        axes.set_xticklabels([row.what["system"] for row in own], fontsize=8)
    figure.savefig(path, dpi=120)
