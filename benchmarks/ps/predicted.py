"""How far is what ``caramel simulate`` predicts off what was measured? Run as
``python -m benchmarks.ps.predicted``.

It takes the steps of training with emulated computation from `benchmarks/results/ps.json`, and
predicts them from the outline of the job, as the command does from a profile. Nothing is measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.emulate import kernel_times
from benchmarks.ps import bytes_per_s
from benchmarks.ps.cells import AHEAD, NONE, SEARCH, Settings
from benchmarks.ps.client import job_of
from caramel.core.time_facts import TimingTable
from caramel.core.workload import JobOutline
from caramel.planning.from_profile import outline_of
from caramel.planning.what_if.served import serve
from caramel.simulation.assumed import AssumedHost, assumed_hardware

RESULTS = Path(__file__).parents[1] / "results" / "ps.json"
BITS_PER_S, LATENCY_S = 1e9, 1e-4


def main() -> None:
    """Print a table."""
    outlines: dict[str, tuple[JobOutline, TimingTable]] = {}
    print(
        "| network | workers + servers | no order | ordered | ahead |", "|---" * 5 + "|", sep="\n"
    )
    for (network, workers, servers), measured in measured_steps_s().items():
        if network not in outlines:
            outlines[network] = outline(network)
        job, timing = outlines[network]
        hosts = [AssumedHost(BITS_PER_S, BITS_PER_S)] * workers
        hardware = assumed_hardware(hosts, LATENCY_S, timing)
        found = serve(job, hardware, hardware.hosts[:1] * servers)
        times_s = (found.unordered_s, found.ordered_s, found.ahead_s)
        off = [
            f"{time_s:.2f}, {time_s / measured[order] - 1:+.0%}"
            for time_s, order in zip(times_s, (NONE.name, SEARCH.name, AHEAD.name), strict=True)
        ]
        print("|", " | ".join([network, f"{workers} + {servers}", *off]), "|")


def measured_steps_s() -> dict[tuple[str, int, int], dict[str, float]]:
    """The median step of each order, by network, workers and servers."""
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in json.loads(RESULTS.read_text())["rows"]:
        what: dict[str, Any] = row["what"]
        if what["part"] == "training" and not row["invalid"]:
            key = what["network"], what["workers"], what["servers"]
            found.setdefault(key, {})[what["ordering"]] = median(row["samples_s"])
    return found


def outline(network: str) -> tuple[JobOutline, TimingTable]:
    """The job that was measured, and its times."""
    case = {
        "network": network,
        "batch": 32,
        "image": None,
        "rho": 1.0,
        "mode": "training",
        "bytes_per_s": bytes_per_s(Settings(()).rate),
    }
    context, _ = job_of(case)
    timing = TimingTable(kernel_times(context))
    return outline_of(context.op_graph, context.job, timing), timing


if __name__ == "__main__":
    main()
