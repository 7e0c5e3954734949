"""In which order should workers receive parameters from servers, and what is that worth?

What the papers on orders show (TicTac 2018, section 6; execution-ordering, section 3), with
`caramel.PSModel`: how many orders there are without a plan and with one; how much faster steps are
with each method, and how much they vary; whether the efficiency of an order tells how long a step
takes; and other systems beside it. Without an order it does what TensorFlow's own graphs with
parameter servers do.

| file         | what                                                           |
|--------------|----------------------------------------------------------------|
| `cells`      | which networks, hosts and orders are measured                  |
| `client`     | measures the orders of a cell, which take turns in one session |
| `all_reduce` | Caramel without parameter servers                              |
| `strategy`   | TensorFlow's `ParameterServerStrategy`, with real computation  |
| `show`       | tables and the figure                                          |
| `predicted`  | how far predictions are off what was measured                  |
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.pieces import piece, warn
from benchmarks.ps.cells import (
    ALL_REDUCE,
    FULL,
    NONE,
    ONE_AT_A_TIME,
    QUICK,
    STRATEGY,
    WARM_UP,
    Cell,
    Part,
    Settings,
)
from benchmarks.ps.show import draw, tables
from benchmarks.results import Row, busy_share, write
from benchmarks.testbed import PAYLOAD_SHARE, Testbed, difference
from benchmarks.workers import on_first_host, workers
from caramel.planning.ordering.metrics import out_of_place_share, unique_orders

__all__ = ["FULL", "QUICK", "Cell", "Settings", "run"]

TIMEOUT_S = 900
_TRACED_S = 5  # at most, of both orders whose steps are counted
_BITS = {"gbit": 1e9, "mbit": 1e6}


def run(
    settings: Settings,
    name: str,
    directory: Path,
    console: Console,
    *,
    only: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> Path:
    """Measure everything, print tables, write a result file and a figure; returns the file.

    Args:
        only: networks to measure; the file keeps what it has of the others.
        parts: of these networks; the file keeps what it has of other parts.

    Raises:
        ValueError: one of them is not in the settings.
    """
    path = directory / f"{name}.json"
    if unknown := set(parts) - set(get_args(Part)):
        raise ValueError(f"there is no part '{min(unknown)}'; there are {get_args(Part)}")
    cells = [cell for cell in settings.cells if not parts or cell.part in parts]
    networks = list(dict.fromkeys(cell.network for cell in settings.cells))
    if parts and not only:
        only = list(dict.fromkeys(cell.network for cell in cells))
    part = piece(
        networks,
        only,
        path,
        console,
        stays=lambda row: bool(parts) and row.what["part"] not in parts,
    )
    rows: list[Row] = []
    cells = [cell for cell in cells if cell.network in part.networks]

    def save() -> list[Row]:
        described = {"command": part.command, **asdict(settings), "runs": part.all_runs()}
        found = part.all_rows(rows, networks)
        write(name, described, found, load=part.load, directory=directory)
        return found

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("ps", total=len(cells))
        for cell in cells:
            progress.update(task, description=f"{cell.part}: {cell.network}, {cell.mode}")
            rows += _measured_or_failed(cell, settings)
            save()  # a run takes long, and may be interrupted
            progress.advance(task)
    found = save()
    console.print("\n".join(tables(found)), markup=False, highlight=False, soft_wrap=True)
    warn(part.all_runs(), console)
    draw(found, path.with_suffix(".png"))
    console.print(f"results: {path}, figure: {path.with_suffix('.png')}")
    return path


def _measured_or_failed(cell: Cell, settings: Settings) -> Iterator[Row]:
    """A system that fails costs its own rows only."""
    for names, measure in (
        ([order.name for order in cell.orders], _orders),
        *(([system], _SYSTEMS[system]) for system in cell.systems),
    ):
        try:
            yield from measure(cell, settings)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            last = str(error).strip().splitlines()[-1]
            for name in names:
                yield Row({**cell.what, "ordering": name}, (), invalid=f"failed: {last}")


# Orders -----------------------------------------------------------------------------------------


@contextmanager
def _hosts(cell: Cell, settings: Settings, servers: int) -> Iterator[tuple[Testbed, Any]]:
    """A bed, and what a client has to be told of it."""
    with (
        Testbed(cell.workers + servers, settings.rate, pin_cores=True, both_ways=True) as bed,
        workers(bed, servers=servers, inter_op_threads=settings.threads) as at,
    ):
        addresses = {"workers": at[: cell.workers], "servers": at[cell.workers :]}
        yield bed, {**asdict(cell), **addresses, "bytes_per_s": bytes_per_s(settings.rate)}


def bytes_per_s(rate: str) -> float:
    """What a link of some rate carries, as tc takes it, without headers."""
    number, unit = rate[:-4], rate[-4:]
    return float(number) * _BITS[unit] / 8 * PAYLOAD_SHARE


def _orders(cell: Cell, settings: Settings) -> Iterator[Row]:
    """A row for each order."""
    begin, busy = time.monotonic(), busy_share()
    with _hosts(cell, settings, cell.servers) as (bed, case):
        before = bed.counters()
        timeout_s = TIMEOUT_S + _TRACED_S * cell.counted
        told = on_first_host(bed, "benchmarks.ps.client", case, timeout_s=timeout_s)
        sent = [host.tx_bytes for host in difference(before, bed.counters())]
    needed = told["steps"] * cell.workers * sum(told["bytes"])
    share = sum(sent[cell.workers :]) / needed
    common = {
        "computation_s": told["computation_s"],
        "least_s": told["least_s"],
        "transfers": len(told["variables"]),
        "bytes": sum(told["bytes"]),
        "sent_over_needed": share,
        "busy_share_before": busy,
        "seconds": {**told["took_s"], "all": time.monotonic() - begin},
    }
    why = None if share >= 1 else "fewer bytes crossed the wire than the steps need"
    for name, found in told["plans"].items():
        facts = {
            **{key: found[key] for key in ("same_as", "gates", "push_gates", "ahead", "predicted")},
            **traced_facts(found["traces"], found["order"], told["servers"]),
            **common,
        }
        # A thousand orders would only be long.
        if cell.counted and cell.part != "counts" and name in (NONE.name, ONE_AT_A_TIME.name):
            orders = [trace["orders"] for trace in found["traces"]]
            facts["names"] = told["variables"]
            facts["orders"] = [[" ".join(map(str, order)) for order in step] for step in orders]
        what = {**cell.what, "ordering": name}
        lacking = None if found["traces"] or not cell.traced else "no trace has all transfers"
        yield Row(what, tuple(found["samples_s"]), facts, why or lacking)


def traced_facts(
    traces: Sequence[Mapping[str, Any]], planned: Sequence[int], servers: Sequence[int]
) -> dict[str, Any]:
    """What traced steps of a plan tell together.

    Args:
        traces: what the client told of each.
        planned: numbers of the transfers in the planned order; empty if there is none.
        servers: of each transfer.
    """
    orders = [order for trace in traces for order in trace["orders"]]
    late: list[float] = []
    for order in orders if planned else ():
        for server in set(servers):
            own = [[str(n) for n in each if servers[n] == server] for each in (planned, order)]
            late.append(out_of_place_share(*own))
    return {
        "traced_steps": len(traces),
        "unique_orders": unique_orders([tuple(map(str, order)) for order in orders]),
        "out_of_place": float(np.mean(late)) if late else None,
        "traced_step_s": [trace["step_s"] for trace in traces],
        "traced_E": [trace["E"] for trace in traces],
        "received_E": [trace["received_E"] for trace in traces],
        "stragglers": [trace["straggler"] for trace in traces],
    }


# Other systems ----------------------------------------------------------------------------------


def _all_reduce(cell: Cell, settings: Settings) -> Iterator[Row]:
    """Caramel without parameter servers, planned for the same network."""
    busy = busy_share()
    with _hosts(cell, settings, 0) as (bed, case):
        told = on_first_host(bed, "benchmarks.ps.all_reduce", case, timeout_s=TIMEOUT_S)
    for name, samples_s in told["samples_s"].items():
        what = {**cell.what, "servers": 0, "ordering": name}
        yield Row(what, tuple(samples_s), {"busy_share_before": busy})


def _strategy(cell: Cell, settings: Settings) -> Iterator[Row]:
    """TensorFlow's `ParameterServerStrategy`."""
    from benchmarks.ps.strategy import serving

    busy = busy_share()
    with (
        Testbed(cell.workers + cell.servers, settings.rate, pin_cores=True, both_ways=True) as bed,
        serving(bed, cell.servers, settings.threads) as cluster,
    ):
        case = {**asdict(cell), "cluster": cluster}
        before = bed.counters()
        told = on_first_host(bed, "benchmarks.ps.strategy", case, timeout_s=TIMEOUT_S)
        sent = [host.tx_bytes for host in difference(before, bed.counters())]
    rounds = WARM_UP + cell.rounds
    facts = {"sent_bytes": [each / rounds for each in sent], "busy_share_before": busy}
    yield Row({**cell.what, "ordering": STRATEGY}, tuple(told["samples_s"]), facts)


_SYSTEMS = {ALL_REDUCE: _all_reduce, STRATEGY: _strategy}
