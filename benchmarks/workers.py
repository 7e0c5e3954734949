"""Caramel workers and parameter servers on the hosts of a bed, and a client on the first one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.environment import TENSORFLOW
from benchmarks.peers.data import Case
from benchmarks.testbed import Testbed

PORT = 4321
RATE = "1gbit"
"""Of the links of two hosts, where a suite says nothing else."""


def addresses(bed: Testbed, port: int = PORT) -> list[str]:
    """Where the workers of a bed listen, one on each host."""
    return [f"{host.address}:{port}" for host in bed.hosts]


@contextmanager
def on_each_host(bed: Testbed, programs: Sequence[Sequence[str]]) -> Iterator[None]:
    """A program on each host of a bed, ended in the end.

    Args:
        programs: what ``python -m`` is told for each, the module first.
    """
    started = [
        bed.popen(
            host,
            [sys.executable, "-m", *program],
            env=TENSORFLOW,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for host, program in zip(bed.hosts, programs, strict=True)
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


@contextmanager
def workers(
    bed: Testbed,
    *,
    servers: int = 0,
    threads: int = 1,
    inter_op_threads: int | None = None,
    port: int = PORT,
    certificates: Path | None = None,
) -> Iterator[list[str]]:
    """One worker or server process on each host, ended in the end; gives their addresses.

    Args:
        servers: how many of the hosts are parameter servers: the last ones.
        threads: intra-op threads of each process.
        inter_op_threads: ops that each may run at once; by default as many as its host has cores.
        port: where each listens.
        certificates: those of all hosts, if strangers are to stay outside.
    """
    listed = addresses(bed, port)
    count = len(listed) - servers
    options = ["--cluster", ",".join(listed[:count])]
    if servers:
        options += ["--ps", ",".join(listed[count:])]
    options += ["--intra-op-threads", str(threads)]
    if inter_op_threads is not None:
        options += ["--inter-op-threads", str(inter_op_threads)]
    if certificates is not None:
        options += ["--secure", "--certificates", str(certificates)]
    tasks = [("worker", task) for task in range(count)] + [("ps", task) for task in range(servers)]
    programs = [
        ["caramel", "worker", *options, "--job", job, "--task", str(task)] for job, task in tasks
    ]
    with on_each_host(bed, programs):
        yield listed


def on_first_host(
    bed: Testbed, module: str, case: Mapping[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    """Run ``python -m MODULE CASE RESULT`` on the first host; returns what it wrote.

    Raises:
        RuntimeError: the program failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        argv: Sequence[str] = [sys.executable, "-m", module, json.dumps(dict(case)), str(result)]
        process = bed.popen(
            0, argv, env=TENSORFLOW, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output, _ = process.communicate(timeout=timeout_s)
        if process.returncode != 0 or not result.exists():
            raise RuntimeError(f"{module} failed with exit code {process.returncode}:\n{output}")
        content: dict[str, Any] = json.loads(result.read_text())
        return content


@contextmanager
def two_hosts(rate: str = RATE) -> Iterator[tuple[Testbed, list[str]]]:
    """A bed of two hosts of one core each, and the addresses of a worker on each."""
    with Testbed(hosts=2, rate=rate, pin_cores=True) as bed, workers(bed) as at:
        yield bed, at


def measured_on_two_hosts(
    module: str, case: Mapping[str, Any], *, timeout_s: float, rate: str = RATE
) -> dict[str, Any]:
    """What ``python -m MODULE CASE RESULT`` wrote, on the first of two hosts.

    Args:
        case: gets the addresses of the workers, as ``workers``.
        rate: of the link of each.

    Raises:
        RuntimeError: as `on_first_host`.
    """
    with two_hosts(rate) as (bed, at):
        return on_first_host(bed, module, {**case, "workers": at}, timeout_s=timeout_s)


# Links let the first 256 KB of a burst through at once: small tensors say nothing of their rate.
PROFILED_BYTES = (64, 4 * 2**20, 16 * 2**20)


def measured_profile(
    context: Any,
    cluster: Any,
    config: Any = None,
    *,
    timing: Any = None,
    accelerator: str | None = None,
    network: Path | None = None,
    repeats: int = Case.network_repeats,
) -> Any:
    """The `caramel.core.profile.Profile` of a job on running workers: its ops, and the network.

    Args:
        timing: the `caramel.core.time_facts.TimingTable` of the job's ops; needed unless they are
        emulated. accelerator: the one that the job's computation emulates, if any. Times of ops are
        then what
            it was told to emulate.
        network: a file with measurements of the network, which is written if it is not there.
        repeats: how often each aggregation is measured for it.

    Raises:
        ValueError: neither `timing` nor `accelerator` is given.
    """
    if timing is None and accelerator is None:
        raise ValueError("times of ops are needed, or an accelerator that is emulated")
    import tensorflow as tf

    from benchmarks.emulate import kernel_times
    from caramel.core.measurements import Measurements
    from caramel.core.profile import Profile
    from caramel.core.time_facts import TimingTable
    from caramel.core.util.fingerprint import graph_hash
    from caramel.core.util.json_records import from_json_value, to_json_value
    from caramel.profiling.network import measure_network
    from caramel.profiling.ops import machine
    from caramel.simulation.network_model import fit_network

    if network is not None and network.exists():
        measured = from_json_value(Measurements, json.loads(network.read_text()))
    else:
        measured = measure_network(
            cluster, sizes=PROFILED_BYTES, repeats=repeats, pairs=False, config=config
        )
        if network is not None:
            network.write_text(json.dumps(to_json_value(measured)))
    on = machine("/CPU:0")
    if accelerator is not None:
        timing, on = TimingTable(kernel_times(context)), replace(on, device=accelerator)
    return Profile(
        tensorflow=tf.__version__,
        machine=on,
        graph=graph_hash(context.graph_def),
        timing=timing,
        networks=(fit_network(measured),),
        measurements=(measured,),
    )
