"""Builds, and perhaps runs, one distributed graph: ``python -m ... CASE RESULT``.

The case names the network, its image and batch, the workers, how many steps to run after the first
(None: build only; 0: open a session, which gives all variables their values, and do no step) and
whether to profile the build. Peak memory is read after each part, so it includes all before.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import re
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

import caramel
from benchmarks import networks
from benchmarks.emulate.flops import flops_times
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.planning.candidate import Candidate
from caramel.simulation.network_model import assumed_network

TIMEOUT_S = 300
BYTES_PER_S, LATENCY_S = 1.2e8, 3e-4  # of the network that a plan is made for
_PART = re.compile(r"caramel: (?P<part>\w+) +(?P<seconds>[\d.]+) s")
_LEAST_FUNCTION_S = 1e-3


def peak_bytes() -> int:
    """The most memory this process has held since it began.

    Not `ru_maxrss`, which starts at what the parent process held.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found[1]) * 1024


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each part, size of the graph, memory, and seconds of steps if it is run."""
    caramel.keep_memory()
    job = networks.build(case["network"], batch=case["batch"], image=case["image"])
    started_bytes = peak_bytes()
    begin = time.perf_counter()
    context = job.context()
    context_s = time.perf_counter() - begin
    profile = cProfile.Profile() if case["profile"] else None
    options: dict[str, Any] = {"planner": "plain"}
    if case["planned"]:
        options = {"analyzers": assumed_facts(context, case["workers"], case["batch"])}
    said = io.StringIO()
    with redirect_stdout(said):
        begin = time.perf_counter()
        if profile:
            profile.enable()
        model = caramel.ARModel(context, case["workers"], verbose=True, **options)
        if profile:
            profile.disable()
        build_s = time.perf_counter() - begin
    measured: dict[str, Any] = {
        "context_s": context_s,
        "build_s": build_s,
        "parts_s": parts(said.getvalue()),
        "started_bytes": started_bytes,
        "built_bytes": peak_bytes(),
        "nodes_before": len(context.graph_def.node),
        **size(model),
    }
    if case["planned"]:
        measured["simulate_s"] = simulate_s(model)
    if case["steps"] is not None:
        measured |= run(model, job, case["steps"])
    if profile:
        measured["functions"] = functions(profile)
    return measured


def assumed_facts(context: caramel.Context, workers: int, batch: int) -> list[Any]:
    """Analyzers that give the times of a K80, and a network of 1 Gbit/s."""
    timing = TimingTable(flops_times(context, device="K80", batch=batch))
    network = assumed_network(workers, BYTES_PER_S, LATENCY_S)

    def assumed_timing() -> TimingTable:
        return timing

    def assumed_links() -> NetworkModel:
        return network

    return [assumed_timing, assumed_links]


def size(model: caramel.ARModel) -> dict[str, int]:
    """Nodes and bytes of the distributed graph, as a session sends it."""
    nodes, size = model.graph_size
    return {"nodes": nodes, "graph_bytes": size}


def simulate_s(model: caramel.ARModel) -> float:
    """The median time of a simulation of the plan."""
    outlook = model.decision.outlook
    assert outlook is not None
    candidate, seconds = Candidate.of(model.plan, "chosen"), []
    for _ in range(5):
        begin = time.perf_counter()
        outlook.predict(candidate)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def run(model: caramel.ARModel, job: networks.Job, steps: int) -> dict[str, Any]:
    """Open a session with all workers in this process, and train if steps are asked for.

    Without steps, a session is opened again, in memory that this process has by then; and a second
    plan is taken up, if one would be tried beside the first.

    Raises:
        RuntimeError: the loss is not finite.
    """
    feed = {
        name: np.concatenate([value] * model.plan.workers) for name, value in job.feed().items()
    }
    session, measured = opened(model)
    if not steps:
        session.close()
        session, again = opened(model)
        measured |= {"again_s": again["open_s"], "again_kernel_s": again["open_kernel_s"]}
    seconds, losses = [], []
    with session:
        if not steps and len(model.variants) > 1:
            begin = time.perf_counter()
            session.use(list(model.variants)[1])
            measured["second_plan_s"] = time.perf_counter() - begin
        for _ in range(1 + steps if steps else 0):
            begin = time.perf_counter()
            losses.append(float(session.step(feed)))
            seconds.append(time.perf_counter() - begin)
        if seconds:
            measured |= {
                "first_step_s": seconds[0],
                "steps_s": seconds[1:],
                "trained_bytes": peak_bytes(),
            }
    if not np.isfinite(losses).all():
        raise RuntimeError(f"the loss is not finite: {losses}")
    return measured


def opened(model: caramel.ARModel) -> tuple[caramel.Session, dict[str, Any]]:
    """A session, and what it took until all variables had their values."""
    said = io.StringIO()
    kernel_s, begin = kernel_seconds(), time.perf_counter()
    with redirect_stdout(said):
        session = model.session(start_timeout_s=TIMEOUT_S, step_timeout_s=TIMEOUT_S)
    took = parts(said.getvalue())
    return session, {
        "open_s": time.perf_counter() - begin,
        "open_kernel_s": kernel_seconds() - kernel_s,
        "connect_s": took["connect"],
        "place_s": took["place"],
        "initialise_s": took["initialise"],
        "opened_bytes": peak_bytes(),
    }


def kernel_seconds() -> float:
    """Processor time that this process has had in the kernel, which hands out memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def parts(said: str) -> dict[str, float]:
    """Seconds of each part, from what ``verbose=True`` prints."""
    return {found["part"]: float(found["seconds"]) for found in _PART.finditer(said)}


def functions(profile: cProfile.Profile) -> dict[str, list[float]]:
    """Calls, own seconds and seconds with callees of Caramel's functions that took any."""
    root = str(Path(caramel.__file__).parent)
    entries: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    found = {
        f"{Path(file).relative_to(root)}:{line} {name}": [calls, own_s, total_s]
        for (file, line, name), (_, calls, own_s, total_s, _) in entries.items()
        if file.startswith(root) and total_s >= _LEAST_FUNCTION_S
    }
    return dict(sorted(found.items(), key=lambda item: -item[1][2]))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
