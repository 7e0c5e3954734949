"""How many seconds of a processor does placing a large graph take?

20,000 vertices and 36,000 edges on 50 devices, in one draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.place.dags import LARGE, Setting, Shape, random_dag
from benchmarks.results import Row
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.search import search
from caramel.planning.placement.simulate import simulate


@dataclass(frozen=True)
class Settings:
    """Which graph, and on which devices."""

    shape: Shape = LARGE
    devices: Setting = field(default_factory=Setting)


_NAME = "large"

FULL = Settings()
QUICK = Settings(Shape(60, 90, 18, 0.24), Setting(devices=8))


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print a table and write a result file; returns the file."""
    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=[_NAME],
        measure=lambda _: _rows(random_dag(settings.shape, settings.devices, 0)),
        tables=tables,
    )


def tables(rows: Sequence[Row]) -> list[str]:
    """What each way of placing takes, and what it finds."""
    lines = ["| what | seconds of a processor | makespan |", "|---" * 3 + "|"]
    for row in rows:
        cells = (row.what["what"], f"{row.best_s:.2f}", f"{row.facts.get('makespan_s', 0):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rows(problem: Problem) -> Iterator[Row]:
    """A row for each partitioner, and each scheduler with the placement of HEFT."""
    simulate(problem, (0,) * len(problem.vertices))  # for what a problem finds out only once
    for name, partition in PARTITIONERS.items():
        placement, seconds = _timed(partial(partition, problem))
        makespan_s = simulate(problem, placement).makespan_s
        yield _row(name, seconds, makespan_s=makespan_s)
    found, seconds = _timed(partial(search, problem))
    yield _row("search", seconds, makespan_s=found.makespan_s)
    placement = PARTITIONERS["heft"](problem)
    for scheduler in SCHEDULERS:
        schedule, seconds = _timed(partial(simulate, problem, placement, scheduler))
        yield _row(f"simulation, {scheduler}", seconds, makespan_s=schedule.makespan_s)


def _row(what: str, seconds: float, **facts: Any) -> Row:
    return Row({"network": _NAME, "what": what}, (seconds,), facts)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin
