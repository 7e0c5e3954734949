"""How much faster are steps with the search than with the best of the paper's 18 pairs?

Steps of six networks with random sizes, as in the paper's experiment, on few and on many devices,
with a slow network, with the paper's, and with a fast one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.place import PAPER_PARTITIONERS
from benchmarks.place.dags import Setting
from benchmarks.place.steps import PROCESSOR, STEPS, Step, drawn, step_problem
from benchmarks.results import Row
from caramel.planning.placement.bounds import least_makespan_s
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.search import BUDGET, search
from caramel.planning.placement.simulate import simulate


@dataclass(frozen=True)
class Settings:
    """Which steps, on how many devices, at which rates, and what a search may simulate."""

    graphs: Mapping[str, Step] = field(default_factory=lambda: STEPS)
    devices: tuple[int, ...] = (8, 50)
    rates: tuple[tuple[int, int], ...] = ((1, 6), (10, 60), (100, 600))
    budget: int = BUDGET


FULL = Settings()
QUICK = Settings({"AlexNet-v2": STEPS["AlexNet-v2"]}, (3,), ((10, 60),), budget=1)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Search, print a table and write a result file; returns the file.

    Args:
        only: networks; the result file keeps the others.

    Raises:
        ValueError: a network that is not in the settings.
    """
    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=list(settings.graphs),
        measure=lambda network: [
            _row(network, devices, rates, settings)
            for devices, rates in itertools.product(settings.devices, settings.rates)
        ],
        tables=tables,
    )


def _row(network: str, devices: int, rates: tuple[int, int], settings: Settings) -> Row:
    setting = Setting(devices, rates=rates)
    problem = drawn(step_problem(settings.graphs[network], PROCESSOR), setting, 0)
    best_s, best = min(_pairs(problem))
    begin = time.process_time()
    found = search(problem, budget=settings.budget)
    facts = {
        "best": best,
        "best_s": best_s,
        "bound_s": least_makespan_s(problem),
        "processor_s": time.process_time() - begin,
    }
    what = {"network": network, "devices": devices, "rates": list(rates)}
    return Row(what, (found.makespan_s,), facts)


def _pairs(problem: Problem) -> Iterator[tuple[float, str]]:
    """The makespan of each pair, and what it is called."""
    for partitioner in PAPER_PARTITIONERS:
        placement = PARTITIONERS[partitioner](problem)
        for scheduler in SCHEDULERS:
            schedule = simulate(problem, placement, scheduler)
            yield schedule.makespan_s, f"{partitioner} + {scheduler}"


def tables(rows: Sequence[Row]) -> list[str]:
    """How many times as fast as the best pair the search is: a table, and geometric means."""
    rates = list(dict.fromkeys(tuple(row.what["rates"]) for row in rows))
    cells = list(dict.fromkeys((row.what["network"], row.what["devices"]) for row in rows))
    heads = [f"rates {least}-{most}" for least, most in rates]
    lines = [f"| network, devices | {' | '.join(heads)} |", "|---" * (1 + len(rates)) + "|"]
    found = {
        (row.what["network"], row.what["devices"], tuple(row.what["rates"])): row for row in rows
    }
    for network, devices in cells:
        own = [found[network, devices, each] for each in rates]
        shown = " | ".join(f"{_gain(row):.2f} ({row.facts['best']})" for row in own)
        lines.append(f"| {network}, {devices} | {shown} |")
    means = [_mean([row for row in rows if tuple(row.what["rates"]) == each]) for each in rates]
    shown = " | ".join(f"{mean:.3f}" for mean in means)
    return [*lines, f"| geometric mean, of all {_mean(rows):.3f} | {shown} |"]


def _gain(row: Row) -> float:
    return float(row.facts["best_s"]) / row.samples_s[0]


def _mean(rows: Sequence[Row]) -> float:
    return float(np.exp(np.mean([np.log(_gain(row)) for row in rows])))
