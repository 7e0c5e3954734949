"""What do rings of many hosts take, by what TCP's congestion control is?

A bed for each of them, of which one at a time is used: tensors are aggregated there, one and some
at a time, as `caramel profile` does it. They take turns. What a stream can send at most is the same
everywhere.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks.pieces import piece, warn
from benchmarks.results import Row, ratio_of_medians, write
from benchmarks.testbed import CONGESTION_CONTROL, Testbed
from benchmarks.wire import wire_limit_s
from benchmarks.workers import on_first_host, workers

PATTERN = "ring"
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        names: of the congestion controls, as the kernel has them.
        hosts: of each bed.
        mbit_per_s: rate of each host's link, both ways.
        sizes: of tensors, in bytes; of the largest also as much in four tensors at a time.
        rounds: turns of each.
        repeats: aggregations of each size in a turn.
    """

    names: tuple[str, ...] = (CONGESTION_CONTROL, "reno", "bbr")
    hosts: int = 8
    mbit_per_s: int = 200
    sizes: tuple[int, ...] = (4 * 2**20, 16 * 2**20)
    rounds: int = 2
    repeats: int = 12


FULL = Settings()
QUICK = Settings((CONGESTION_CONTROL,), hosts=2, sizes=(2**16, 2**18), rounds=1, repeats=2)


def run(settings: Settings, name: str, directory: Path, console: Console) -> Path:
    """Measure, print a table and write a result file; returns the file."""
    own = piece(["none"], (), directory / f"{name}.json", console)
    samples_s: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        beds = {}
        for each in settings.names:
            bed = Testbed(
                settings.hosts,
                f"{settings.mbit_per_s}mbit",
                pin_cores=True,
                both_ways=True,
                congestion_control=each,
            )
            stack.enter_context(bed)
            beds[each] = bed, stack.enter_context(workers(bed, inter_op_threads=settings.hosts))
        turns = [(each, *beds[each]) for _ in range(settings.rounds) for each in settings.names]
        for each, bed, addresses in track(turns, name, console=console, transient=True):
            case = {
                "workers": addresses,
                "pattern": PATTERN,
                "sizes": settings.sizes,
                "repeats": settings.repeats,
            }
            measured = on_first_host(
                bed, "benchmarks.congestion_client", case, timeout_s=_TIMEOUT_S
            )
            for tensors, size, seconds in measured["aggregations"]:
                samples_s[each, tensors, size] += seconds
    rows = [
        Row(
            {"network": "none", "system": each, "tensors": tensors, "bytes": size},
            tuple(seconds),
            {"wire_limit_s": wire_limit_s(size, settings.hosts, settings.mbit_per_s * 1e6)},
        )
        for (each, tensors, size), seconds in samples_s.items()
    ]
    described = {"command": own.command, **asdict(settings), "runs": own.all_runs()}
    path = write(name, described, rows, load=own.load, directory=directory)
    console.print(Markdown(markdown(directory, name)))
    warn(own.all_runs(), console)
    console.print(f"results: {path}")
    return path


def markdown(directory: Path, name: str = "congestion") -> str:
    """How many times the wire limit aggregations take, as a table for BENCHMARKS.md."""
    rows = [Row(**row) for row in json.loads((directory / f"{name}.json").read_text())["rows"]]
    return "\n".join(["`python -m benchmarks congestion`", "", *_lines(rows)])


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    sizes = sorted({(row.what["tensors"], row.what["bytes"]) for row in rows})
    by_cell = {(r.what["system"], r.what["tensors"], r.what["bytes"]): r for r in rows}
    names = list(dict.fromkeys(row.what["system"] for row in rows))
    titles = (f"{tensors} of {size / tensors / 2**20:g} MiB" for tensors, size in sizes)
    yield f"| congestion control | {' | '.join(titles)} |"
    yield "|---|" + "---|" * len(sizes)
    for name in names:
        yield f"| {name} | {' | '.join(_cell(by_cell, name, names[0], *at) for at in sizes)} |"


def _cell(
    by_cell: dict[tuple[str, int, int], Row], name: str, first: str, tensors: int, size: int
) -> str:
    """The median over the wire limit, and how it compares with that of the first."""
    row = by_cell[name, tensors, size]
    text = f"{row.median_s / row.facts['wire_limit_s']:.3f}"
    if name == first:
        return text
    ratio = ratio_of_medians(row.samples_s, by_cell[first, tensors, size].samples_s)
    return f"{text}, {ratio}"
