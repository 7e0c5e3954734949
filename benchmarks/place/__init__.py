"""Where is each op executed? The experiment of the partitioning and scheduling paper (section 5).

How long steps take with each partitioner and each scheduler on 50 devices, in simulation, beside
one device alone and the bounds. No bed is needed, and the same code finds the same numbers on every
machine. Numbers are in the paper's unit of time, and called seconds.

============ =======================================================================================
`dags`       random graphs of the sizes of the paper's networks, and random devices
`limits`     how many seconds of a processor does placing a large graph take?
`memory`     what does a step take on devices on each of which the model does not fit?
`searched`   how much faster are steps with the search, on fast and on slow networks?
`show`       a table, and bars as in the paper's Figure 3
`steps`      steps of six real networks as placement problems
============ =======================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.place.dags import PAPER, Setting, Shape, random_dag
from benchmarks.place.show import ALONE, PATH_BOUND, SEARCH, WORK_BOUND, draw, tables
from benchmarks.place.steps import PROCESSOR, STEPS, Step, drawn, step_problem
from benchmarks.results import Row
from caramel.planning.placement.bounds import path_bound_s, work_bound_s
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.ranks import critical_path
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.search import search
from caramel.planning.placement.simulate import simulate

__all__ = ["FULL", "NETWORKS", "PAPER_PARTITIONERS", "QUICK", "Settings", "run"]

PAPER_PARTITIONERS = ("hash", "batch_split", "critical_path", "mite", "dfs", "heft")
"""The six strategies of section 5.2; with three schedulers these are its 18 pairs."""


@dataclass(frozen=True)
class Settings:
    """Which graphs, on which devices, how often each is drawn, and what a search may simulate.

    Attributes:
        graphs: sizes of random graphs, or steps of real networks.
        devices: how many there are, and ranges of random numbers.
        draws: how often all random numbers are drawn.
        budget: how many vertices a search may simulate.
    """

    graphs: Mapping[str, Shape | Step] = field(default_factory=lambda: PAPER)
    devices: Setting = field(default_factory=Setting)
    draws: int = 10
    budget: int = 1_000_000


FULL = Settings()
NETWORKS = Settings(STEPS, budget=100_000)
QUICK = Settings({"small": Shape(60, 90, 18, 0.24)}, Setting(devices=8), draws=2, budget=3_000)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Simulate, print a table, write a result file and a figure; returns the file.

    Args:
        only: networks; the result file keeps the others.

    Raises:
        ValueError: a network that is not in the settings.
    """
    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=list(settings.graphs),
        measure=lambda network: _rows(network, settings),
        tables=tables,
        draw=draw,
    )


def _rows(network: str, settings: Settings) -> Iterator[Row]:
    """A row for each partitioner and scheduler, one device alone, and the bounds."""
    samples: dict[tuple[str, str], list[float]] = {}
    for seed in range(settings.draws):
        problem = _problem(settings.graphs[network], settings.devices, seed)
        for pair, sample in _makespans(problem, seed, settings.budget):
            samples.setdefault(pair, []).append(sample)
    on_path = samples.pop(("on_path", ""))
    for (partitioner, scheduler), own in samples.items():
        what = {"network": network, "partitioner": partitioner, "scheduler": scheduler}
        facts = {"on_path": sum(on_path) / len(on_path)} if partitioner == PATH_BOUND else {}
        yield Row(what, tuple(own), facts)


def _problem(graph: Shape | Step, devices: Setting, seed: int) -> Problem:
    if isinstance(graph, Step):
        return drawn(step_problem(graph, PROCESSOR), devices, seed)
    return random_dag(graph, devices, seed)


def _makespans(problem: Problem, seed: int, budget: int) -> Iterator[tuple[tuple[str, str], float]]:
    yield ("on_path", ""), len(critical_path(problem)) / len(problem.vertices)
    yield (PATH_BOUND, ""), path_bound_s(problem)
    yield (WORK_BOUND, ""), work_bound_s(problem)
    fastest = max(range(len(problem.devices)), key=lambda n: (problem.devices[n].speed, -n))
    alone = simulate(problem, (fastest,) * len(problem.vertices))
    yield (ALONE, ""), alone.makespan_s
    for partitioner, partition in PARTITIONERS.items():
        placement = partition(problem, seed=seed)
        for scheduler in SCHEDULERS:
            schedule = simulate(problem, placement, scheduler, seed=seed)
            yield (partitioner, scheduler), schedule.makespan_s
    yield (SEARCH, ""), search(problem, seed=seed, budget=budget).makespan_s
