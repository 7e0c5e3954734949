"""How long does it take to aggregate one tensor, and how near is that to the wire limit?

Time against size, pattern and depth, as in Figures 4c, 13 and 14 of the Caramel paper. What is
timed is a whole step of a session that only aggregates: the call from the client, the transfers,
the additions and the assignment of the result. Peers are not in it yet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.results import Row, is_loaded, load_of_others, write
from benchmarks.testbed import PAYLOAD_SHARE, Testbed, difference
from benchmarks.workers import on_first_host, workers
from caramel.patterns import PATTERNS


@dataclass(frozen=True)
class Settings:
    """What is measured; `rate` as tc takes it, and the same in bits per second."""

    sizes_bytes: tuple[int, ...]
    depths: tuple[int, ...]
    patterns: tuple[str, ...]
    workers: tuple[int, ...]
    rate: str
    rate_bits_per_s: float
    rounds: int
    warm_up: int


FULL = Settings(
    sizes_bytes=(64, 4096, 65536, 2**20, 2**22, 2**24, 2**26, 100_000_000),
    depths=(1, 2, 4, 8),
    patterns=PATTERNS,
    workers=(2,),
    rate="1gbit",
    rate_bits_per_s=1e9,
    rounds=12,
    warm_up=3,
)
QUICK = Settings(
    sizes_bytes=(64, 65536, 2**20),
    depths=(1, 4),
    patterns=PATTERNS,
    workers=(2,),
    rate="200mbit",
    rate_bits_per_s=2e8,
    rounds=5,
    warm_up=2,
)


def wire_limit_s(size_bytes: int, worker_count: int, settings: Settings) -> float:
    """The least time in which a worker can send what an aggregation needs of it.

    Every worker has to send ``2 (N - 1) / N`` times the tensor, at the payload rate of a TCP
    stream on its link. Tensors smaller than a link's burst of 256 KB may be faster.
    """
    sent_bytes = 2 * (worker_count - 1) / worker_count * size_bytes
    return sent_bytes * 8 / (settings.rate_bits_per_s * PAYLOAD_SHARE)


def run(settings: Settings, name: str, directory: Path, console: Console) -> Path:
    """Measure everything, print a table, write a result file and a figure; returns the file."""
    load = load_of_others()
    if is_loaded(load):
        console.print(f"[yellow]this machine is busy (load {load:.1f} for each core)[/yellow]")
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(
            "allreduce", total=len(settings.workers) * len(settings.sizes_bytes)
        )
        for count in settings.workers:
            with (
                Testbed(hosts=count, rate=settings.rate, pin_cores=True) as bed,
                workers(bed) as at,
            ):
                for size_bytes in settings.sizes_bytes:
                    rows += _measure(bed, at, size_bytes, settings)
                    progress.advance(task)
    console.print(_table(rows, name))
    described = {"command": " ".join(sys.argv), **settings.__dict__}
    path = write(name, described, rows, load=load, directory=directory)
    _draw(rows, path.with_suffix(".png"))
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


def _measure(bed: Testbed, at: list[str], size_bytes: int, settings: Settings) -> list[Row]:
    """All patterns and depths at one size, interleaved."""
    case = {
        "workers": at,
        "sizes_bytes": [size_bytes],
        "patterns": settings.patterns,
        "depths": settings.depths,
        "rounds": settings.rounds,
        "warm_up": settings.warm_up,
    }
    before, begin = bed.counters(), time.monotonic()
    measured: Any = on_first_host(bed, "benchmarks.allreduce_client", case, timeout_s=900)
    sent_bytes = [host.tx_bytes for host in difference(before, bed.counters())]
    cells = len(settings.patterns) * len(settings.depths) * (settings.rounds + settings.warm_up)
    least = min(sent_bytes) / (cells * 2 * (len(at) - 1) / len(at) * size_bytes)
    return [
        Row(
            what={**row["cell"], "workers": len(at)},
            samples_s=tuple(row["samples_s"]),
            facts={
                "wire_limit_s": wire_limit_s(size_bytes, len(at), settings),
                "sent_over_needed": least,
                "seconds": time.monotonic() - begin,
            },
            invalid=None if least >= 1 else "fewer bytes crossed the wire than aggregation needs",
        )
        for row in measured
    ]


def _table(rows: Sequence[Row], name: str) -> Table:
    table = Table(title=f"{name}: one tensor aggregated")
    for column in ("workers", "bytes", "pattern", "depth", "median ms", "best ms", "limit ms"):
        table.add_column(column, justify="right")
    table.add_column("median / limit", justify="right")
    for row in rows:
        limit_s = row.facts["wire_limit_s"]
        table.add_row(
            *(str(row.what[key]) for key in ("workers", "size_bytes", "pattern", "depth")),
            f"{row.median_s * 1e3:.2f}",
            f"{row.best_s * 1e3:.2f}",
            f"{limit_s * 1e3:.2f}",
            row.invalid or f"{row.median_s / limit_s:.2f}",
        )
    return table


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Time against size on logarithmic axes: for each pattern its best depth, and the limit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="bytes", ylabel="ms")
    for count in sorted({row.what["workers"] for row in rows}):
        own = [row for row in rows if row.what["workers"] == count]
        sizes = sorted({row.what["size_bytes"] for row in own})
        for pattern in sorted({row.what["pattern"] for row in own}):
            best_ms = [
                1e3
                * min(
                    row.median_s
                    for row in own
                    if (row.what["size_bytes"], row.what["pattern"]) == (size, pattern)
                )
                for size in sizes
            ]
            axes.plot(sizes, best_ms, marker="o", label=f"{pattern}, {count} workers")
        limit_ms = {row.what["size_bytes"]: row.facts["wire_limit_s"] * 1e3 for row in own}
        axes.plot(sizes, [limit_ms[s] for s in sizes], "k--", label=f"wire limit, {count} workers")
    axes.legend()
    figure.savefig(path)
