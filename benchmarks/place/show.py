"""What the experiment of the partitioning paper shows: a table, and bars as in its Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import Row

SEARCH = "search"
ALONE = "fastest device alone"
PATH_BOUND = "bound: critical path on the fastest device"
WORK_BOUND = "bound: all work on all devices"
_OTHERS = (SEARCH, ALONE, PATH_BOUND, WORK_BOUND)


def tables(rows: Sequence[Row]) -> list[str]:
    """Makespans of each network, and by how much hash with fifo is slower, as a table."""
    networks = list(dict.fromkeys(str(row.what["network"]) for row in rows))
    found = {_key(row): row for row in rows}
    lines = [
        f"| partitioner + scheduler | {' | '.join(networks)} |",
        "|---" * (1 + len(networks)) + "|",
    ]
    for what in dict.fromkeys((row.what["partitioner"], row.what["scheduler"]) for row in rows):
        cells = [
            _cell(found[(network, *what)], found[network, "hash", "fifo"]) for network in networks
        ]
        lines.append(f"| {' + '.join(filter(None, what))} | {' | '.join(cells)} |")
    shares = [
        f"{100 * found[network, PATH_BOUND, ''].facts['on_path']:.0f} %" for network in networks
    ]
    return [*lines, f"| vertices on the critical path | {' | '.join(shares)} |"]


def _key(row: Row) -> tuple[str, str, str]:
    what = row.what
    return str(what["network"]), str(what["partitioner"]), str(what["scheduler"])


def speedup(row: Row, base: Row) -> float:
    """How many times as fast as another one, by means as in the paper."""
    return float(np.mean(base.samples_s) / np.mean(row.samples_s))


def _cell(row: Row, base: Row) -> str:
    mean, deviation = np.mean(row.samples_s), np.std(row.samples_s)
    return f"{mean:.1f} ± {deviation:.1f} ({speedup(row, base):.2f})"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Bars by partitioner and scheduler; lines are the search, one device, and the bounds."""
    from matplotlib.figure import Figure

    networks = list(dict.fromkeys(str(row.what["network"]) for row in rows))
    figure = Figure(figsize=(11, 3.2 * len(networks)), layout="constrained")
    for axes, network in zip(
        figure.subplots(len(networks), squeeze=False).ravel(), networks, strict=True
    ):
        own = [row for row in rows if row.what["network"] == network]
        bars = [row for row in own if row.what["scheduler"]]
        partitioners = list(dict.fromkeys(row.what["partitioner"] for row in bars))
        schedulers = list(dict.fromkeys(row.what["scheduler"] for row in bars))
        width = 0.8 / len(schedulers)
        for number, scheduler in enumerate(schedulers):
            chosen = [row for row in bars if row.what["scheduler"] == scheduler]
            axes.bar(
                [
                    partitioners.index(row.what["partitioner"]) - 0.4 + (number + 0.5) * width
                    for row in chosen
                ],
                [float(np.mean(row.samples_s)) for row in chosen],
                width,
                yerr=[float(np.std(row.samples_s)) for row in chosen],
                label=scheduler,
                error_kw={"ecolor": "gray"},
            )
        for row, style in zip(
            [row for name in _OTHERS for row in own if row.what["partitioner"] == name],
            ("-", "--", ":", "-."),
            strict=True,
        ):
            height, label = float(np.mean(row.samples_s)), str(row.what["partitioner"])
            axes.axhline(height, color="black", linewidth=0.8, linestyle=style, label=label)
        axes.set_xticks(range(len(partitioners)), partitioners, fontsize=8)
        axes.set(ylabel="makespan", title=network)
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=120)
