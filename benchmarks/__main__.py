"""Run benchmarks: ``python -m benchmarks NAME [--quick]``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import order as order_benchmark
from benchmarks import scale as scale_benchmark
from benchmarks.allreduce import driver as allreduce_driver
from benchmarks.allreduce.settings import FULL, QUICK
from benchmarks.results import RESULTS
from benchmarks.testbed import BedError

app = typer.Typer(help="Measure Caramel. Needs root and tc, for hosts with a real network.")


@app.callback()
def _root() -> None:
    """Keeps the names of benchmarks subcommands while there is only one."""


@app.command()
def allreduce(
    quick: Annotated[
        bool, typer.Option("--quick", help="A few small cells, for less than two minutes.")
    ] = False,
    workers: Annotated[
        list[int] | None,
        typer.Option(help="Only this number of workers; the result file keeps the others."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where result files go.")] = RESULTS,
) -> None:
    """Time to aggregate one tensor, by size, pattern, depth and number of workers, with peers."""
    settings = QUICK if quick else FULL
    known = [network.workers for network in settings.networks]
    if unknown := set(workers or ()).difference(known):
        raise typer.BadParameter(f"{min(unknown)} workers: there are {known}")
    networks = tuple(n for n in settings.networks if not workers or n.workers in workers)
    name = "allreduce-quick" if quick else "allreduce"
    try:
        allreduce_driver.run(
            replace(settings, networks=networks), name, results, Console(), add=bool(workers)
        )
    except BedError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def order(
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network, for less than two minutes.")
    ] = False,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only this network; the result file keeps the others."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where result files go.")] = RESULTS,
) -> None:
    """In how many orders transfers arrive, and how much step times spread."""
    settings = order_benchmark.QUICK if quick else order_benchmark.FULL
    name = "order-quick" if quick else "order"
    try:
        order_benchmark.run(settings, name, results, Console(), only=network or ())
    except (BedError, ValueError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def scale(
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network, for less than two minutes.")
    ] = False,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only this network; the result file keeps the others."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where result files go.")] = RESULTS,
) -> None:
    """Build time, memory and size of the distributed graph, by number of workers and network."""
    settings = scale_benchmark.QUICK if quick else scale_benchmark.FULL
    name = "scale-quick" if quick else "scale"
    try:
        scale_benchmark.run(settings, name, results, Console(), only=network or ())
    except ValueError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
