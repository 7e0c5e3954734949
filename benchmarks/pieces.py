"""A benchmark that is run in pieces, some networks at a time, into one result file.

A piece replaces the rows of its networks and keeps the others. The file's settings tell of each
piece when it was run, how, and how busy the machine was (`runs`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks.results import Row, busy_share, is_loaded, load_of_others, machine, write

# Options of tables with a dozen columns, for a terminal of 80.
COMPACT: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 0, 0, 1), "pad_edge": False}


@dataclass(frozen=True)
class Piece:
    """A run of some networks, and what the result file had before of the others.

    Attributes:
        networks: what this run measures.
        load: the machine's load in the minute before it, for each core.
        busy: which share of the processors others used right before it.
        rows: earlier rows of other networks.
        runs: the earlier runs, with the networks that are still theirs.
        settings: the earlier settings; empty if there is no earlier file.
    """

    networks: tuple[str, ...]
    load: float
    busy: float
    rows: tuple[Row, ...] = ()
    runs: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @property
    def command(self) -> str:
        """What was typed, but for where the results go."""
        words = sys.argv[1:]
        if "--results" in words:
            at = words.index("--results")
            words = words[:at] + words[at + 2 :]
        return " ".join(["python", "-m", "benchmarks", *words])

    def all_runs(self) -> list[dict[str, Any]]:
        """The earlier runs and this one."""
        own = {
            "networks": list(dict.fromkeys(self.networks)),
            "date": self.date,
            "processor": machine()["processor"],
            "tcp": machine()["tcp"],
            "command": self.command,
            "load_before_per_core": round(self.load, 2),
            "busy_share_before": round(self.busy, 2),
            "loaded": is_loaded(self.busy),
        }
        return [*self.runs, own]

    def all_rows(self, rows: Iterable[Row], networks: Sequence[str]) -> list[Row]:
        """The earlier rows and those of this run, in the order of `networks`."""
        return sorted([*self.rows, *rows], key=lambda row: networks.index(str(row.what["network"])))


def piece(
    networks: Sequence[str],
    only: Sequence[str],
    path: Path,
    console: Console,
    *,
    stays: Callable[[Row], bool] = lambda row: False,
) -> Piece:
    """What is to be run: all networks, or `only` some; says so if the machine is busy.

    Args:
        stays: whether an earlier row of one of these networks is kept, since it is not run again.

    Raises:
        ValueError: a network that is not among `networks`.
    """
    for name in only:
        check_network(name, networks)
    load, busy = load_of_others(), busy_share()  # a load alone may be that of a job that has ended
    if is_loaded(busy):
        console.print(f"[yellow]others use {busy:.0%} of this machine[/yellow]")
    chosen = tuple(name for name in networks if name in (only or networks))
    if not only or not path.exists():
        return Piece(chosen, load, busy)
    before = json.loads(path.read_text())
    rows = [Row(**row) for row in before["rows"]]
    replaced = set(chosen) - {row.what["network"] for row in rows if stays(row)}
    runs = []
    for run in before["settings"]["runs"]:
        left = [name for name in run["networks"] if name in networks and name not in replaced]
        if left:
            runs.append({**run, "networks": left})
    remaining = {name for run in runs for name in run["networks"]}
    kept = tuple(
        row
        for row in rows
        if row.what["network"] in remaining and (row.what["network"] not in chosen or stays(row))
    )
    return Piece(chosen, load, busy, kept, tuple(runs), before["settings"])


def run_in_pieces(
    settings: Any,
    name: str,
    directory: Path,
    console: Console,
    only: Sequence[str],
    *,
    networks: Sequence[str],
    measure: Callable[[str], Iterable[Row]],
    tables: Callable[[Sequence[Row]], Iterable[str]],
    draw: Callable[[Sequence[Row], Path], None] | None = None,
) -> Path:
    """Measure all networks, or `only` some, print tables and write a result file; returns that.

    Args:
        settings: a dataclass of what is measured; the file has it.
        name: of the file.
        networks: all that can be measured, in this order.
        measure: the rows of one.
        tables: the lines of tables in Markdown.
        draw: a figure, into a file beside the result file.

    Raises:
        ValueError: a network that is not among `networks`.
    """
    path = directory / f"{name}.json"
    own = piece(networks, only, path, console)
    found = [
        row
        for network in track(own.networks, name, console=console, transient=True)
        for row in measure(network)
    ]
    rows, runs = own.all_rows(found, networks), own.all_runs()
    described = {"command": own.command, **asdict(settings), "runs": runs}
    write(name, described, rows, load=own.load, directory=directory)
    console.print(Markdown("\n".join(tables(rows))))
    warn(runs, console)
    console.print(f"results: {path}")
    if draw is not None:
        draw(rows, path.with_suffix(".png"))
        console.print(f"figure: {path.with_suffix('.png')}")
    return path


def check_network(name: str, networks: Sequence[str]) -> None:
    """Raise a `ValueError` unless a network is among others."""
    if name not in networks:
        raise ValueError(f"there is no network '{name}' here; there are {', '.join(networks)}")


def warn(runs: Iterable[dict[str, Any]], console: Console) -> None:
    """Say which rows come from a busy machine."""
    for run in runs:
        if run["loaded"]:
            names = ", ".join(run["networks"])
            console.print(f"[yellow]the machine was busy when {names} ran ({run['date']})[/yellow]")
