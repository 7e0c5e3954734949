"""What does a step take on devices on each of which the model does not fit?

Four devices each have 35 % of what one device would need, two have 60 %: variables with optimizers'
state, and the tensors that are there at once. Where the variable that needs the most needs more,
with its gradient, they have a tenth more than that. They are connected by 1 Gbit/s, one transfer at
a time in each direction, and compared with one device that has enough memory. Four devices with
enough memory are there, too, as cores and as accelerators: then nothing need be sent at all. Times
and bytes are real (`steps`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.place import PAPER_PARTITIONERS
from benchmarks.place.steps import (
    ACCELERATOR,
    PROCESSOR,
    STEPS,
    Step,
    on_equal_devices,
    step_problem,
)
from benchmarks.results import Row
from benchmarks.testbed import PAYLOAD_SHARE
from caramel.core.errors import PlanError
from caramel.planning.placement.memory import least_memory, peaks, tensor_share
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.place import Placed, place
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.search import search
from caramel.planning.placement.simulate import simulate

_BYTES_PER_S = 125e6 * PAYLOAD_SHARE  # of 1 Gbit/s
_LATENCY_S = 0.2e-3
_MIB = 2**20
_LARGEST = 1.1  # times what the variable needs that needs the most


@dataclass(frozen=True)
class Devices:
    """Devices that are alike.

    Attributes:
        count: how many.
        share: of what one device would need, what each has as memory; None if it is not limited.
        computer: what they are.
    """

    count: int
    share: float | None = None
    computer: str = PROCESSOR


@dataclass(frozen=True)
class Settings:
    """Which steps, on which devices, and what a search may simulate.

    A step of the LSTM needs 9 MB, so it is not there.
    """

    graphs: Mapping[str, Step] = field(
        default_factory=lambda: {name: step for name, step in STEPS.items() if name != "LSTM"}
    )
    devices: tuple[Devices, ...] = (
        Devices(4, 0.35),
        Devices(2, 0.6),
        Devices(4),
        Devices(4, computer=ACCELERATOR),
    )
    budget: int = 600_000


FULL = Settings()
QUICK = Settings({"AlexNet-v2": STEPS["AlexNet-v2"]}, (Devices(2, 0.6), Devices(2)), budget=1)


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
            _row(network, settings.graphs[network], devices, settings.budget)
            for devices in settings.devices
        ],
        tables=tables,
    )


def _row(network: str, step: Step, devices: Devices, budget: int) -> Row:
    graph = step_problem(step, devices.computer)
    # As TensorFlow executes it without an order.
    alone = (0,) * len(graph.vertices)
    schedule = simulate(graph, alone, "fifo")
    needed = peaks(graph, alone, schedule)[0]
    memory = math.inf
    if devices.share is not None:
        memory = max(devices.share * needed, _LARGEST * least_memory(graph))
    problem = on_equal_devices(graph, devices.count, memory, _BYTES_PER_S, _LATENCY_S)
    pairs = dict(_pairs(problem))
    best = min(pairs, key=lambda pair: pairs[pair], default=None)
    begin = time.process_time()
    found = _searched(problem, budget)
    facts = {
        "one_s": schedule.makespan_s,
        "needed_mib": needed / _MIB,
        "memory_mib": None if devices.share is None else memory / _MIB,
        "pairs_s": pairs,
        "best": best,
        "used": 0 if found is None else len(set(found.placement)),
        "processor_s": time.process_time() - begin,
    }
    what = {"network": network, **asdict(devices)}
    if found is None:
        return Row(what, (), facts, "no placement was found that fits")
    return Row(what, (found.makespan_s,), facts)


def _pairs(problem: Problem) -> Iterator[tuple[str, float]]:
    """The makespans of those of the paper's pairs that find a placement that fits."""
    share = tensor_share(problem)
    for partitioner in PAPER_PARTITIONERS:
        if math.isinf(problem.devices[0].memory_bytes):
            # Then there is one placement for all schedulers.
            placement = PARTITIONERS[partitioner](problem, share=share)
            for scheduler in SCHEDULERS:
                schedule = simulate(problem, placement, scheduler, links="one")
                yield f"{partitioner} + {scheduler}", schedule.makespan_s
            continue
        for scheduler in SCHEDULERS:
            try:
                placed = place(problem, partitioner, scheduler, share=share, links="one")
            except PlanError:
                continue
            yield f"{partitioner} + {scheduler}", placed.makespan_s


def _searched(problem: Problem, budget: int) -> Placed | None:
    try:
        return search(problem, share=tensor_share(problem), links="one", budget=budget)
    except PlanError:
        return None


def tables(rows: Sequence[Row]) -> list[str]:
    """What steps take, as multiples of those on one device with enough memory."""
    lines = [
        "| network | devices | memory of each, MB (one alone) | one with enough memory, s "
        "| best pair that fits (of 18) | search | search by pair | devices that it uses |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        facts, what = row.facts, row.what
        kind = "cores" if what["computer"] == PROCESSOR else what["computer"]
        needed_mb, memory = facts["needed_mib"] * _MIB / 1e6, "not limited"
        if facts["memory_mib"] is not None:
            memory = f"{facts['memory_mib'] * _MIB / 1e6:.0f}"
        pair = "none"
        if facts["best"] is not None:
            times = facts["pairs_s"][facts["best"]] / facts["one_s"]
            pair = f"{times:.2f}, {facts['best']} ({len(facts['pairs_s'])})"
        lines.append(
            f"| {what['network']} | {what['count']} {kind} "
            f"| {memory} ({needed_mb:.0f}) | {facts['one_s']:.3f} | {pair} "
            f"| {' | '.join(_found(row))} |"
        )
    return lines


def _found(row: Row) -> tuple[str, str, str]:
    facts: Mapping[str, Any] = row.facts
    if not row.samples_s:
        return "none", "", ""
    gain = "" if facts["best"] is None else f"{_gain(row):.2f}"
    return f"{row.best_s / facts['one_s']:.2f}", gain, str(facts["used"])


def _gain(row: Row) -> float:
    """How many times as fast as the best pair the search is."""
    return float(row.facts["pairs_s"][row.facts["best"]]) / row.best_s
