"""Run benchmarks: ``python -m benchmarks NAME [--quick]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import allreduce as allreduce_benchmark
from benchmarks.results import RESULTS
from benchmarks.testbed import BedError

app = typer.Typer(help="Measure Caramel. Needs root and tc, for hosts with a real network.")


@app.callback()
def _root() -> None:
    """Keeps the names of benchmarks subcommands while there is only one."""


@app.command()
def allreduce(
    quick: Annotated[
        bool, typer.Option(help="A few small cells, for less than two minutes.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Where result files go.")] = RESULTS,
) -> None:
    """Time to aggregate one tensor, by size, pattern and depth."""
    settings = allreduce_benchmark.QUICK if quick else allreduce_benchmark.FULL
    name = "allreduce-quick" if quick else "allreduce"
    try:
        allreduce_benchmark.run(settings, name, results, Console())
    except BedError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
