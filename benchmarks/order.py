"""In how many orders do transfers arrive, and how much do step times spread?

TicTac (section 2.2) found another order of the parameters' arrivals in each of 1000 steps of
ResNet-v2-50 and Inception-v3 with a parameter server, and 493 orders in VGG-16. Counted here for a
parameter server, for Caramel without a planned order and for one with it, on two hosts. Orders come
from traced steps, times from steps without a trace between them. With a parameter server an order
is that of arrivals at the worker, else that in which a worker begins to send.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.peers.data import Case
from benchmarks.pieces import COMPACT, piece, warn
from benchmarks.results import Row, write
from benchmarks.testbed import Testbed, difference
from benchmarks.workers import on_first_host, workers

UNORDERED = ("parameter_server", "all_reduce")
SYSTEMS = (*UNORDERED, "planned")
MIB = 2**20
TIMEOUT_S = 600
ROUND_S = 2.0  # a traced step of a cell with many, at most


@dataclass(frozen=True)
class Cell:
    """A network on hosts with links of some rate, as tc takes it.

    Each round has a traced step; `timed` rounds also have one without a trace. `threads` is how
    many ops TensorFlow may run at once on each host; with a single one, ops run, and are sent, in
    nearly always the same order.
    """

    network: str
    batch: int
    rate: str = "1gbit"
    threads: int = 8
    rounds: int = 30
    systems: tuple[str, ...] = UNORDERED
    timed: int | None = None  # all


@dataclass(frozen=True)
class Settings:
    """What is measured; each aggregation `network_repeats` times before a plan is made."""

    cells: tuple[Cell, ...]
    warm_up: int
    network_repeats: int = Case.network_repeats


# A K80 computes these batches no longer than parameters or gradients are on the wire. VGG-16 has
# fewer rounds and a faster link, for the benchmark to end in minutes.
FULL = Settings(
    cells=(
        Cell("inception_v1", 16),
        Cell("inception_v1", 16, threads=1),
        Cell("resnet_v1_50", 8),
        Cell("vgg_16", 4, "4gbit", rounds=12),
        Cell("inception_v1", 8, "4gbit", rounds=1000, systems=("all_reduce", "planned"), timed=250),
    ),
    warm_up=3,
)
QUICK = Settings(
    cells=(Cell("seq_32", 4, rounds=2, systems=("planned",)),), warm_up=1, network_repeats=1
)


def kendall_distance(order: Sequence[int], reference: Sequence[int]) -> float:
    """The part of all pairs that are the other way round: 0 for the same order, 1 for the reverse.

    Raises:
        ValueError: the orders are not of the same things.
    """
    if sorted(order) != sorted(reference) or len(set(order)) < len(order):
        raise ValueError(f"orders of different things: {sorted(order)}, {sorted(reference)}")
    place = {item: position for position, item in enumerate(reference)}
    places = np.array([place[item] for item in order])
    pairs = len(places) * (len(places) - 1) // 2
    swapped = int(np.triu(places[:, None] > places[None, :]).sum())
    return swapped / pairs if pairs else 0.0


def run(
    settings: Settings, name: str, directory: Path, console: Console, *, only: Sequence[str] = ()
) -> Path:
    """Measure everything, print a table, write a result file and a figure; returns the file.

    Args:
        only: networks to measure; the file keeps what it has of the others.

    Raises:
        ValueError: one of them is not in the settings.
    """
    path = directory / f"{name}.json"
    networks = list(dict.fromkeys(cell.network for cell in settings.cells))
    part = piece(networks, only, path, console)
    cells = [cell for cell in settings.cells if cell.network in part.networks]
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("order", total=sum(len(cell.systems) for cell in cells))
        for cell in cells:
            for system in cell.systems:
                progress.update(task, description=f"{cell.network}, {_words(system)}")
                rows.append(_measured_or_failed(cell, system, settings))
                progress.advance(task)
    rows, runs = part.all_rows(rows, networks), part.all_runs()
    console.print(*_tables(rows, name))
    warn(runs, console)
    described = {"command": part.command, **asdict(settings), "runs": runs}
    write(name, described, rows, load=part.load, directory=directory)
    _draw(rows, path.with_suffix(".png"))
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


def _measured_or_failed(cell: Cell, system: str, settings: Settings) -> Row:
    """A system that fails costs its own row only."""
    try:
        return _measure(cell, system, settings)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        last = str(error).strip().splitlines()[-1]
        return Row({**_described(cell), "system": system}, (), invalid=f"failed: {last}")


def _measure(cell: Cell, system: str, settings: Settings) -> Row:
    begin = time.monotonic()
    with (
        Testbed(hosts=2, rate=cell.rate, pin_cores=True) as bed,
        workers(bed, inter_op_threads=cell.threads) as at,
    ):
        case = {
            "network": cell.network,
            "batch": cell.batch,
            "system": system,
            "workers": at,
            "rounds": cell.rounds,
            "warm_up": settings.warm_up,
            "timed": cell.timed or cell.rounds,
            "network_repeats": settings.network_repeats,
        }
        before = bed.counters()
        measured = on_first_host(
            bed, "benchmarks.order_client", case, timeout_s=TIMEOUT_S + ROUND_S * cell.rounds
        )
        sent_bytes = [host.tx_bytes for host in difference(before, bed.counters())]
    traced = len(measured["orders"]) + measured["incomplete"]
    steps = traced + len(measured["samples_s"]) + 2 * settings.warm_up
    facts = {
        **statistics(measured["orders"], measured["samples_s"]),
        "transfers": len(measured["transfers"]),
        "sent_over_needed": min(sent_bytes) / (steps * measured["bytes"]),
        "seconds": time.monotonic() - begin,
        "incomplete_traces": measured["incomplete"],
        "names": measured["transfers"],
        "orders": [[" ".join(map(str, order)) for order in step] for step in measured["orders"]],
    }
    return Row(
        what={**_described(cell), "system": system},
        samples_s=tuple(measured["samples_s"]),
        facts=facts,
        invalid=_why_invalid(facts, measured["orders"], cell.rounds),
    )


def _described(cell: Cell) -> dict[str, Any]:
    return {key: value for key, value in asdict(cell).items() if key != "systems"}


def statistics(
    orders: Sequence[Sequence[Sequence[int]]], samples_s: Sequence[float]
) -> dict[str, Any]:
    """How many orders there are, how far they are from the first, and the spread of times.

    Args:
        orders: for each traced step the order of each worker.
        samples_s: seconds of the other steps.
    """
    first = orders[0][0]
    later = [order for step in orders for order in step][1:]
    seconds = np.asarray(samples_s)
    p5_s, p95_s = np.percentile(seconds, [5, 95])
    return {
        "traced_steps": len(orders),
        "unique_orders": len({tuple(order) for step in orders for order in step}),
        "steps_with_several_orders": sum(len(set(map(tuple, step))) > 1 for step in orders),
        "distances_to_first": [kendall_distance(order, first) for order in later],
        "median_s": float(np.median(seconds)),
        "p5_s": float(p5_s),
        "p95_s": float(p95_s),
        "spread_s": float(p95_s - p5_s),
        "max_s": float(seconds.max()),
        "variation": float(seconds.std(ddof=1) / seconds.mean()),
    }


def _why_invalid(
    facts: dict[str, Any], orders: Sequence[Sequence[Sequence[int]]], rounds: int
) -> str | None:
    if len(orders) < rounds:
        return f"only {len(orders)} of {rounds} traces have all transfers"
    if any(sorted(order) != list(range(facts["transfers"])) for step in orders for order in step):
        return "a transfer was seen twice"
    if facts["sent_over_needed"] < 1:
        return "fewer bytes crossed the wire than the steps need"
    return None


def _words(system: str) -> str:
    return system.replace("_", " ")


def _tables(rows: Sequence[Row], name: str) -> tuple[Table, Table]:
    """Orders, and times."""
    orders = Table(title=f"{name}: orders of transfers", **COMPACT)
    times = Table(title=f"{name}: steps without a trace, ms", **COMPACT)
    which = ("network", "rate", "threads", "system")
    for table, columns in (
        (orders, ("transfers", "orders", "steps", "workers differ", "distance")),
        (times, ("median", "p5", "p95", "p95 - p5", "max", "variation")),
    ):
        for column in (*which, *columns):
            table.add_column(column, justify="right")
    for row in rows:
        facts, own = row.facts, [_words(str(row.what[key])) for key in which[1:]]
        own = [str(row.what["network"]), *own]
        if not facts:
            orders.add_row(*own, "-", row.invalid)
            continue
        distances = facts["distances_to_first"]
        orders.add_row(
            *(*own, str(facts["transfers"])),
            *(row.invalid or str(facts["unique_orders"]), str(facts["traced_steps"])),
            str(facts.get("steps_with_several_orders", "-")),  # earlier files do not have it
            f"{np.mean(distances):.3f}" if distances else "-",
        )
        times.add_row(
            *own,
            *(f"{facts[key] * 1e3:.0f}" for key in ("median_s", "p5_s", "p95_s")),
            f"{(facts['p95_s'] - facts['p5_s']) * 1e3:.0f}",
            f"{facts['max_s'] * 1e3:.0f}",
            f"{facts['variation']:.1%}",
        )
    return orders, times


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Every step's time over the median of its row, and the number of orders above."""
    rows = [row for row in rows if row.samples_s]
    if not rows:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5, 1.3 * len(rows) + 1), 5), layout="constrained")
    axes = figure.add_subplot(ylabel="step time / median")
    colours = dict(zip(SYSTEMS, ("tab:orange", "tab:blue", "tab:green"), strict=True))
    random = np.random.default_rng(0)
    ratios = [seconds / row.median_s for row in rows for seconds in row.samples_s]
    top = max(ratios) + 0.04 * (max(ratios) - min(ratios))
    for position, row in enumerate(rows):
        relative = np.asarray(row.samples_s) / row.median_s
        places = position + random.uniform(-0.15, 0.15, len(relative))
        colour = colours[row.what["system"]]
        axes.boxplot(relative, positions=[position], widths=0.6, whis=(5, 95), showfliers=False)
        axes.plot(places, relative, "o", markersize=3, alpha=0.6, color=colour)
        text = f"{row.facts['unique_orders']} orders\nin {row.facts['traced_steps']} steps"
        axes.text(position, top, text, ha="center", va="bottom", fontsize=8)
    labels = [
        f"{row.what['network']}\n{_words(row.what['system'])}\n{row.what['rate']}, "
        f"threads: {row.what['threads']}\n{row.median_s * 1e3:.0f} ms"
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), labels, fontsize=7)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))
    axes.set_title("steps, boxes: quartiles, whiskers: 5 % and 95 %", fontsize=9)
    figure.savefig(path, dpi=120)
