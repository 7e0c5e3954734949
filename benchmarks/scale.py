"""How do build time, memory and graph size grow with the number of workers?

Graphs of real networks, on images so small that computation is not the point, are built for up to
64 workers and run with up to 8, all in one process. A large one is opened with up to 16, and does
no step: a session is there, and all variables have their values; and then once more, when the
process has the memory already that the kernel must hand out the first time. Every measurement is a
process of its own. What grows as ``workers ** exponent`` shows as a line on logarithmic axes;
exponents are fitted from two workers on, since one worker has nothing to aggregate.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.environment import TENSORFLOW
from benchmarks.pieces import COMPACT, piece, warn
from benchmarks.results import Row, write

MB, GB = 1e6, 1e9
TIMEOUT_S = 400
MEMORY_SHARE = 0.8  # of what is free; beyond it, a measurement is left out
LEAST_FUNCTION_S = 0.05
LEAST_PART_S = 0.1
STEEP = 1.2  # an exponent above this counts as faster than linear
GROWTH = {"nodes": "nodes", "graph_bytes": "GraphDef", "build_s": "build", "built_bytes": "memory"}


@dataclass(frozen=True)
class Cell:
    """A network, the sizes of its input, and how many workers it is built for, run and opened with.

    It has a plain plan, or is planned by simulation from assumed facts.
    """

    network: str
    image: int | None
    built: tuple[int, ...]
    run: tuple[int, ...]
    batch: int = 1
    planned: bool = False
    opened: tuple[int, ...] = ()

    def steps(self, workers: int, steps: int) -> int | None:
        """Steps after the first to do with so many workers: 0 opens only, None builds only."""
        if workers in self.run:
            return steps
        return 0 if workers in self.opened else None


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        cells: the networks.
        steps: steps after the first, where a graph is run.
        profiled: two numbers of workers whose builds are profiled, for the first network.
    """

    cells: tuple[Cell, ...]
    steps: int
    profiled: tuple[int, int]


COUNTS = (1, 2, 4, 8, 16, 32, 64)
FULL = Settings(
    cells=(
        Cell("resnet_v1_50", 32, COUNTS, (1, 2, 4, 8)),
        Cell("inception_v3", 75, COUNTS, (1, 2, 4, 8)),
        Cell("vgg_16", 32, COUNTS, ()),  # eight copies of it and its gradients are 17 GB
        Cell("resnet_v2_152", None, COUNTS[1:], (), batch=32, planned=True, opened=(2, 4, 8, 16)),
    ),
    steps=5,
    profiled=(8, 32),
)
QUICK = Settings(cells=(Cell("seq_32", None, (2, 4), (2,), opened=(4,)),), steps=3, profiled=(2, 4))


def exponent(workers: Sequence[int], values: Sequence[float]) -> float | None:
    """The slope of a line through the logarithms; None if there are fewer than two points."""
    if len(set(workers)) < 2:
        return None
    return float(np.polyfit(np.log(workers), np.log(values), 1)[0])


def run(
    settings: Settings, name: str, directory: Path, console: Console, *, only: Sequence[str] = ()
) -> Path:
    """Measure everything, print tables, write a result file and a figure; returns the file.

    Args:
        only: networks to measure; the file keeps what it has of the others.

    Raises:
        ValueError: one of them is not in the settings.
    """
    path = directory / f"{name}.json"
    networks = [cell.network for cell in settings.cells]
    part = piece(networks, only, path, console)
    functions = part.settings.get("functions", [])
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("scale", total=sum(len(cell.built) for cell in settings.cells))
        for cell in settings.cells:
            for workers in cell.built if cell.network in part.networks else ():
                progress.update(task, description=f"{cell.network}, {workers} workers")
                rows.append(_measure(cell, workers, settings, rows))
                progress.advance(task)
        if networks[0] in part.networks:
            progress.update(task, description="profile")
            functions = profile(settings)
    rows, runs = part.all_rows(rows, networks), part.all_runs()
    fits = growth(rows)
    for table in (
        _built_table(rows, name),
        _run_table(rows, name),
        _growth_table(fits),
        _function_table(functions, settings.profiled),
    ):
        console.print(table)
    warn(runs, console)
    described = {**asdict(settings), "runs": runs, "growth": fits, "functions": functions}
    described["command"] = part.command
    write(name, described, rows, load=part.load, directory=directory)
    _draw(rows, fits, path.with_suffix(".png"))
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


# Measurements -----------------------------------------------------------------------------------


def _measure(cell: Cell, workers: int, settings: Settings, rows: Sequence[Row]) -> Row:
    """One fresh process; left out if it would need more memory than there is."""
    what = {"network": cell.network, "workers": workers, "run": workers in cell.run}
    expected, free = _expected_bytes(cell, workers, rows), _free_bytes()
    if expected > MEMORY_SHARE * free:
        reason = f"left out: would need {expected / GB:.0f} GB of {free / GB:.0f} GB"
        return Row(what, (), invalid=reason)
    try:
        facts = _client(cell, workers, steps=cell.steps(workers, settings.steps))
    except subprocess.TimeoutExpired:
        return Row(what, (), invalid=f"took longer than {TIMEOUT_S} s")
    facts["nodes_per_worker"] = facts["nodes"] / workers
    facts["build_s_per_worker"] = facts["build_s"] / workers
    return Row(what, (facts["build_s"],), facts, invalid=_why_invalid(facts, workers))


def _why_invalid(facts: Mapping[str, Any], workers: int) -> str | None:
    if facts["nodes"] < 0.5 * workers * facts["nodes_before"]:
        return "the graph has fewer nodes than its replicas"
    if facts["graph_bytes"] >= 2**31:
        return "the GraphDef is larger than TensorFlow can send"
    return None


def _client(
    cell: Cell, workers: int, *, steps: int | None = None, profile: bool = False
) -> dict[str, Any]:
    """What `benchmarks.scale_client` measured; steps are those after the first, as of a cell.

    Raises:
        RuntimeError: it failed; with what it said.
        subprocess.TimeoutExpired: it took too long.
    """
    case = {
        "network": cell.network,
        "image": cell.image,
        "batch": cell.batch,
        "planned": cell.planned,
        "workers": workers,
        "steps": steps,
        "profile": profile,
    }
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale_client", json.dumps(case), str(result)],
            env={**os.environ, **TENSORFLOW},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if finished.returncode != 0:
            raise RuntimeError(
                f"{cell.network} with {workers} workers failed with exit code "
                f"{finished.returncode}:\n{finished.stdout}{finished.stderr}"
            )
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def _expected_bytes(cell: Cell, workers: int, rows: Sequence[Row]) -> float:
    """Twice as much as the last measurement of the same network took for half the workers."""
    same = [row for row in rows if row.what["network"] == cell.network and row.facts]
    if not same:
        return 0.0
    steps = cell.steps(workers, 1)
    peak = "built_bytes" if steps is None else "trained_bytes" if steps else "opened_bytes"
    return workers / same[-1].what["workers"] * float(same[-1].facts.get(peak, 0))


def _free_bytes() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) * 1024


def growth(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float | None]]]:
    """For each network, the exponents with which nodes, bytes, seconds and memory grow.

    Memory counts from what the process held before Caramel began. Besides the fit over all numbers
    of workers there is the exponent between the last two: what grows faster than linearly shows
    late. Parts of the build that take no time to speak of are left out.
    """
    fits = {}
    for network in dict.fromkeys(row.what["network"] for row in rows):
        own = [r for r in rows if r.what["network"] == network and r.facts]
        own = [r for r in own if r.what["workers"] > 1]
        parts = own[-1].facts["parts_s"] if own else {}
        named = [part for part, seconds in parts.items() if seconds >= LEAST_PART_S]
        fits[network] = {key: _exponents(own, key) for key in (*GROWTH, *named)}
    return fits


def _exponents(rows: Sequence[Row], key: str) -> dict[str, float | None]:
    points = [(row.what["workers"], _value(row, key)) for row in rows if _value(row, key) > 0]
    counts, values = [count for count, _ in points], [value for _, value in points]
    return {"all": exponent(counts, values), "last": exponent(counts[-2:], values[-2:])}


def _value(row: Row, key: str) -> float:
    value = float(row.facts.get(key) or row.facts["parts_s"].get(key, 0.0))
    return value - row.facts["started_bytes"] if key == "built_bytes" else value


def profile(settings: Settings) -> list[dict[str, Any]]:
    """Functions of Caramel that take the most of a build, with the exponent of their own time."""
    cell, (few, many) = settings.cells[0], settings.profiled
    before = _client(cell, few, profile=True)["functions"]
    after = _client(cell, many, profile=True)["functions"]
    found = []
    for name, (calls, own_s, total_s) in after.items():
        own_before_s = before.get(name, (0, 0.0, 0.0))[1]
        steep = own_before_s > 0 and own_s > LEAST_FUNCTION_S
        found.append(
            {
                "function": name,
                "calls": calls,
                "own_s": own_s,
                "total_s": total_s,
                "exponent": math.log(own_s / own_before_s, many / few) if steep else None,
            }
        )
    return sorted(found, key=lambda entry: -entry["own_s"])


# Tables and figure ------------------------------------------------------------------------------


def _built_table(rows: Sequence[Row], name: str) -> Table:
    table = Table(title=f"{name}: the distributed graph against the number of workers", **COMPACT)
    for column in ("network", "workers", "nodes", "per worker", "MB", "build s", "per worker"):
        table.add_column(column, justify="right")
    for column in ("peak GB", "simulation ms"):
        table.add_column(column, justify="right")
    for row in rows:
        facts, first = row.facts, (row.what["network"], str(row.what["workers"]))
        if not facts:
            table.add_row(*first, row.invalid)
            continue
        table.add_row(
            *first,
            f"{facts['nodes']:,}",
            f"{facts['nodes_per_worker']:,.0f}",
            row.invalid or f"{facts['graph_bytes'] / MB:.1f}",
            f"{facts['build_s']:.2f}",
            f"{facts['build_s_per_worker']:.3f}",
            f"{facts['built_bytes'] / GB:.2f}",
            f"{facts['simulate_s'] * 1e3:.0f}" if "simulate_s" in facts else "",
        )
    return table


def _run_table(rows: Sequence[Row], name: str) -> Table:
    table = Table(title=f"{name}: all workers in one process", **COMPACT)
    for column in ("network", "workers", "open s", "place s", "first values s"):
        table.add_column(column, justify="right")
    for column in ("kernel s", "open again s", "kernel s"):
        table.add_column(column, justify="right")
    for column in ("peak GB", "second plan s", "first step s", "step ms"):
        table.add_column(column, justify="right")
    for row in rows:
        facts = row.facts
        if "connect_s" in facts:
            stepped = "steps_s" in facts
            table.add_row(
                *(row.what["network"], str(row.what["workers"])),
                f"{facts.get('open_s', facts['connect_s'] + facts['initialise_s']):.2f}",
                _seconds(facts, "place_s"),
                f"{facts['initialise_s']:.2f}",
                *(_seconds(facts, key) for key in ("open_kernel_s", "again_s", "again_kernel_s")),
                f"{facts['trained_bytes' if stepped else 'opened_bytes'] / GB:.2f}",
                _seconds(facts, "second_plan_s"),
                f"{facts['first_step_s']:.2f}" if stepped else "",
                f"{np.median(facts['steps_s']) * 1e3:.0f}" if stepped else "",
            )
    return table


def _seconds(facts: Mapping[str, Any], key: str) -> str:
    return f"{facts[key]:.2f}" if key in facts else ""


def _growth_table(fits: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Table:
    table = Table(title="exponents of growth, over all / from the last but one", **COMPACT)
    table.add_column("of")
    for network in fits:
        table.add_column(network, justify="right")
    for key in dict.fromkeys(key for fit in fits.values() for key in fit):
        pairs = (fit.get(key, {}) for fit in fits.values())
        texts = (f"{_text(pair.get('all'))} / {_text(pair.get('last'))}" for pair in pairs)
        table.add_row(GROWTH.get(key, f"  {key}"), *texts)
    return table


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _function_table(functions: Sequence[Mapping[str, Any]], profiled: tuple[int, int]) -> Table:
    table = Table(
        title=f"profile of a build for {profiled[1]} workers (against {profiled[0]})", **COMPACT
    )
    for column in ("function", "calls", "own s", "with callees s", "exponent"):
        table.add_column(column, justify="left" if column == "function" else "right")
    for entry in functions[:15]:
        steepness = entry["exponent"]
        text = _text(steepness)
        table.add_row(
            *(entry["function"], f"{entry['calls']:,}"),
            *(f"{entry['own_s']:.2f}", f"{entry['total_s']:.2f}"),
            f"[red]{text}[/red]" if (steepness or 0) > STEEP else text,
        )
    return table


def _draw(
    rows: Sequence[Row], fits: Mapping[str, Mapping[str, Mapping[str, float | None]]], path: Path
) -> None:
    """Four panels on logarithmic axes."""
    from matplotlib.figure import Figure

    panels = {
        "build_s": ("build, s", 1.0),
        "nodes": ("nodes", 1.0),
        "graph_bytes": ("GraphDef, MB", MB),
        "built_bytes": ("memory for the build, GB", GB),
    }
    figure = Figure(figsize=(10, 8), layout="constrained")
    for (key, (label, unit)), axes in zip(panels.items(), figure.subplots(2, 2).flat, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel=label)
        for network, fit in fits.items():
            own = [r for r in rows if r.what["network"] == network and r.facts]
            counts = [row.what["workers"] for row in own]
            slope = fit[key]["all"]
            text = network if slope is None else f"{network}: workers^{slope:.2f}"
            axes.plot(counts, [_value(row, key) / unit for row in own], marker="o", label=text)
        shown = sorted({row.what["workers"] for row in rows})
        axes.set_xticks(shown, [str(count) for count in shown])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
