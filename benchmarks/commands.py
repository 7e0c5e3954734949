"""The commands of ``python -m benchmarks``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import document as document_of_tables
from benchmarks import held as held_benchmark
from benchmarks import keras as keras_benchmark
from benchmarks import order as order_benchmark
from benchmarks import overhead as overhead_benchmark
from benchmarks import place as place_benchmark
from benchmarks import placed as placed_benchmark
from benchmarks import protection as protection_benchmark
from benchmarks import ps as ps_benchmark
from benchmarks import scale as scale_benchmark
from benchmarks import search as search_benchmark
from benchmarks import when as when_measured
from benchmarks.faults import growth as memory_growth
from benchmarks.faults import malformed as malformed_inputs
from benchmarks.faults import runs as fault_runs
from benchmarks.faults import snapshots as snapshots_benchmark
from benchmarks.place import limits as place_limits
from benchmarks.place import memory as place_memory
from benchmarks.place import searched as place_searched
from benchmarks.results import RESULTS, Row, load_of_others, write
from benchmarks.step import cells as step_cells
from benchmarks.step import grids as grids_step
from benchmarks.step import headline as headline_step
from benchmarks.step import predicted
from benchmarks.step import run as run_step
from benchmarks.step.markdown import markdown, overview
from benchmarks.testbed import BedError

app = typer.Typer(help="Measure Caramel. Needs root and tc, for hosts with a real network.")

Quick = Annotated[bool, typer.Option("--quick", help="Few small cells, for under two minutes.")]
Networks = Annotated[
    list[str] | None,
    typer.Option("--network", help="Only this network; the result file keeps the others."),
]
Ratios = Annotated[
    list[float] | None,
    typer.Option("--rho", help="Only cells with this rho; the result file keeps the others."),
]
Results = Annotated[Path, typer.Option(help="Where result files go.")]


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    """What the user can correct ends the program with one line and exit code 2."""
    try:
        yield
    except (BedError, ValueError, FileNotFoundError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def order(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """In how many orders transfers arrive, and how much step times spread."""
    _run_one("order", order_benchmark, quick, results, only=network or ())


@app.command()
def scale(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """Build time, memory and size of the distributed graph, by number of workers and network."""
    _run_one("scale", scale_benchmark, quick, results, only=network or ())


@app.command()
def held(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What each device of a placed model holds in a step, predicted and measured."""
    _run_one("held", held_benchmark, quick, results, only=network or ())


@app.command()
def overhead(
    quick: Quick = False,
    results: Results = RESULTS,
) -> None:
    """What a step of Caramel's session costs over TensorFlow's own."""
    _run_one("overhead", overhead_benchmark, quick, results)


@app.command()
def step(
    quick: Quick = False,
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"What to measure, of {', '.join(step_cells.FULL)}; all by default."),
    ] = None,
    network: Networks = None,
    rho: Ratios = None,
    results: Results = RESULTS,
) -> None:
    """Time of a training step, beside all peers, with real and emulated computation."""
    known = {"quick": step_cells.QUICK} if quick else step_cells.FULL
    _run_suites("step", known, suite, network, results, rho or ())


@app.command()
def ablation(
    quick: Quick = False,
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"What to measure, of {', '.join(step_cells.ABLATION)}; all by default."),
    ] = None,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What each optimization of the plan brings: added in turn, and alone."""
    known = {"quick": step_cells.QUICK_ABLATION} if quick else step_cells.ABLATION
    _run_suites("ablation", known, suite, network, results)


@app.command()
def ranking(
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"What to measure, of {', '.join(step_cells.RANKING)}; all by default."),
    ] = None,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """Whether plans that are predicted to be faster are faster: twenty plans of each network."""
    _run_suites("ranking", step_cells.RANKING, suite, network, results)


@app.command()
def search(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """How near to the bound the search predicts its plans, for the grids, and what it takes."""
    _run_one("search", search_benchmark, quick, results, only=network or ())


_PLACE = {
    "paper": ("place", place_benchmark, place_benchmark.FULL),
    "networks": ("place-networks", place_benchmark, place_benchmark.NETWORKS),
    "search": ("place-search", place_searched, place_searched.FULL),
    "memory": ("place-memory", place_memory, place_memory.FULL),
    "limits": ("place-limits", place_limits, place_limits.FULL),
}
"""Suites of `place`: the result file, who runs it, and its settings."""


@app.command()
def place(
    quick: Quick = False,
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"What to simulate, of {', '.join(_PLACE)}; all by default."),
    ] = None,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """How long steps take by where ops are placed, as the partitioning paper simulates them."""
    with _errors_in_a_line():
        for name in suite or _PLACE:
            if name not in _PLACE:
                raise ValueError(f"there is no suite '{name}'; there are {', '.join(_PLACE)}")
            file, benchmark, full = _PLACE[name]
            settings = benchmark.QUICK if quick else full
            benchmark.run(
                settings, f"{file}-quick" if quick else file, results, Console(), network or ()
            )


@app.command()
def placed(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What a model costs that is spread over two hosts, and that one trains which fits on none."""
    _run_one("placed", placed_benchmark, quick, results, only=network or ())


@app.command()
def ps(
    quick: Quick = False,
    network: Networks = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only this part of the cells; the result file keeps the others."),
    ] = None,
    results: Results = RESULTS,
) -> None:
    """What orders of parameters from servers are worth, and how many there are without a plan."""
    _run_one("ps", ps_benchmark, quick, results, only=network or (), parts=part or ())


@app.command()
def protection(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What it costs that strangers stay outside: steps with and without relays, and their rate."""
    _run_one("protection", protection_benchmark, quick, results, only=network or ())


@app.command()
def faults(
    quick: Quick = False,
    suite: Annotated[
        str, typer.Option(help=f"Which jobs and faults: {', '.join(fault_runs.SUITES)}.")
    ] = fault_runs.WORKERS_ALONE,
    fault: Annotated[
        list[str] | None, typer.Option(help="Only this one; an unknown one tells which there are.")
    ] = None,
    goes_on: Annotated[
        bool, typer.Option("--go-on", help="Only runs that the result file does not have yet.")
    ] = False,
    results: Results = RESULTS,
) -> None:
    """Does training end as if nothing had happened, whatever fault comes at whatever moment?"""
    _run_one("faults", fault_runs, quick, results, only=fault or (), goes_on=goes_on, suite=suite)


@app.command()
def snapshots(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What snapshots cost that training goes on from after a loss: time and memory."""
    _run_one("snapshots", snapshots_benchmark, quick, results, only=network or ())


@app.command()
def growth(
    quick: Quick = False,
    results: Results = RESULTS,
) -> None:
    """Does memory grow with steps and sessions?"""
    load, console = load_of_others(), Console()
    steps, sessions = (50, 5) if quick else (memory_growth.STEPS, memory_growth.SESSIONS)
    rows = memory_growth.rows(memory_growth.measure(steps, sessions))
    console.print(Markdown("\n".join(memory_growth.markdown(rows))))
    settings = {"command": "python -m benchmarks growth", "steps": steps, "sessions": sessions}
    name = "growth-quick" if quick else "growth"
    write(name, settings, rows, load=load, directory=results)


@app.command()
def malformed(
    seed: Annotated[int, typer.Option(help="Of the inputs.")] = 41,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 2000,
    results: Results = RESULTS,
) -> None:
    """Is everything that is malformed refused, by one clear error?"""
    load, console = load_of_others(), Console()
    report = malformed_inputs.run(seed, count)
    for each in report.faults:
        console.print(each, markup=False)
    rows = malformed_inputs.rows(report)
    console.print(Markdown("\n".join(malformed_inputs.markdown(rows))))
    command = f"python -m benchmarks malformed --seed {seed} --count {count}"
    settings = {"command": command, "seed": seed, "count": count}
    write("malformed", settings, rows, load=load, directory=results)
    raise typer.Exit(1 if report.faults else 0)


@app.command()
def keras(
    quick: Quick = False,
    network: Networks = None,
    results: Results = RESULTS,
) -> None:
    """What training a Keras model costs over training the same network as a graph of v1."""
    _run_one("keras", keras_benchmark, quick, results, only=network or ())


def _run_one(name: str, benchmark: Any, quick: bool, results: Path, **options: Any) -> None:
    """Run a benchmark that is no suite."""
    settings = benchmark.QUICK if quick else benchmark.FULL
    with _errors_in_a_line():
        benchmark.run(settings, f"{name}-quick" if quick else name, results, Console(), **options)


def _run_suites(
    name: str,
    known: Mapping[str, step_cells.Suite],
    suites: Sequence[str] | None,
    networks: Sequence[str] | None,
    results: Path,
    ratios: Sequence[float] = (),
) -> None:
    with _errors_in_a_line():
        for suite in suites or known:
            if suite not in known:
                raise ValueError(f"there is no suite '{suite}'; there are {', '.join(known)}")
            file = f"{name}-{suite}"
            run_step(known[suite], file, results, Console(), only=networks or (), ratios=ratios)


@app.command()
def headline(results: Results = RESULTS) -> None:
    """Caramel beside the best of each peer, from result files: a table, and `headline.png`.

    The picture shows each network once: those of the first suite.
    """
    _sum_up(headline_step, step_cells.HEADLINES, results, "headline.png", drawn=1)


@app.command()
def grids(results: Results = RESULTS) -> None:
    """How close plans come to the bound, from the grids' files: a table, and `grids.png`."""
    _sum_up(grids_step, step_cells.GRIDS, results, "grids.png")


@app.command()
def when(results: Results = RESULTS) -> None:
    """When was what measured, and on which processor, from the result files."""
    print(when_measured.markdown(results))


def _sum_up(
    shown: Any, suites: Sequence[str], results: Path, picture: str, *, drawn: int | None = None
) -> None:
    """Print one table of the result files of suites, and draw all of them or the first ones."""
    paths = [results / f"step-{suite}.json" for suite in suites]
    found = [path for path in paths if path.exists()]
    with _errors_in_a_line():
        if not found:
            raise ValueError(f"measure first: there is no {paths[0]}")
        print(shown.markdown(found))
        shown.draw(found[:drawn], results / picture)


@app.command()
def tables(
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Result files of step, ablation and ranking.",
        ),
    ],
    full: Annotated[bool, typer.Option(help="A table for each cell, with all numbers.")] = False,
) -> None:
    """Print result files as Markdown, as the pages in docs/benchmarks have them."""
    for file in files:
        if not file.name.startswith(("step", "ablation", "ranking")):
            raise typer.BadParameter(f"{file} is no result of step, ablation or ranking")
        print(markdown(file) if full else overview(file))
        rows = [Row(**row) for row in json.loads(file.read_text())["rows"]]
        print("\n".join(predicted.summary(rows)))


@app.command()
def document(
    pages: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, dir_okay=False, help="By default those in docs/benchmarks."),
    ] = None,
    results: Results = RESULTS,
) -> None:
    """Put the tables of the result files that pages name into these pages."""
    with _errors_in_a_line():
        for page in pages or document_of_tables.pages():
            page.write_text(document_of_tables.with_tables(page.read_text(), results))
