"""Horovod: one all-reduce per gradient, fused by Horovod as it finds them ready; by Gloo or MPI.

It has an environment of its own (``make bench-horovod``). For Gloo, the first host also runs the
server at which the ranks find each other (`main` with ``rendezvous``); each rank's hostname is its
address, because the connections that carry data look that up and nothing else. MPI is MPICH, as in
`mpi`, started by the environment's own ``mpiexec``.

Horovod's ranks talk to each other in every cycle, whether or not there is a gradient.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.environment import WITH_KERAS
from benchmarks.peers import mpi
from benchmarks.peers.base import PeerError, Setting, evenly, versions_of
from benchmarks.peers.data import Case
from benchmarks.peers.rank import POLL_S, Rank, leave
from benchmarks.peers.running import REPOSITORY, Run, Running, launch

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

PYTHON = REPOSITORY / ".venv-horovod" / "bin" / "python"
RENDEZVOUS_TIMEOUT_S = 60.0
GLOO_TIMEOUT_S = 24 * 3600  # goes on while a rank is stopped between blocks of steps
MIB = 2**20


class Horovod:
    """Horovod."""

    name = "horovod"

    def versions(self) -> dict[str, str]:
        """Those of Horovod, its TensorFlow and its MPI."""
        return versions_of("horovod", "tensorflow", "mpich", python=str(PYTHON))

    def available(self) -> str | None:
        """Whether its environment is there."""
        if not PYTHON.exists():
            return "not installed"
        found = subprocess.run([PYTHON, "-c", "import horovod"], capture_output=True)
        return "not installed" if found.returncode else None

    def settings(self) -> list[dict[str, Any]]:
        """What carries the data, how often it looks for gradients (1 ms), what it fuses (128)."""
        tuned = [{"cycle_time_ms": 0.1}, {"cycle_time_ms": 5.0}, {"fusion_mib": 4.0}]
        gloo: list[dict[str, Any]] = [{"backend": "gloo", **other} for other in ({}, *tuned)]
        return [*gloo, {"backend": "mpi"}]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What Gloo's ring or MPI's algorithm sends."""
        if setting["backend"] == "mpi":
            return mpi.PEER.expected_bytes(sizes, workers, setting)
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a rank on each host."""
        start_all = {"gloo": _start_gloo, "mpi": _start_mpi}[setting["backend"]]
        return launch(self, __name__, bed, case, setting, start_all, restless=True)


PEER = Horovod()


def _options(setting: Setting, **others: Any) -> dict[str, str]:
    """Horovod's part of the environment."""
    options = {"CONTROLLER": setting["backend"], "CPU_OPERATIONS": setting["backend"], **others}
    if "cycle_time_ms" in setting:
        options["CYCLE_TIME"] = setting["cycle_time_ms"]
    if "fusion_mib" in setting:
        options["FUSION_THRESHOLD"] = int(setting["fusion_mib"] * MIB)
    return {**WITH_KERAS, **{f"HOROVOD_{key}": str(value) for key, value in options.items()}}


def _start_mpi(run: Run) -> None:
    env = {**mpi.TRANSPORT, **_options(run.setting)}
    run.start(None, mpi.command_of(run, str(PYTHON)), env)


def _start_gloo(run: Run) -> None:
    hosts, python = run.bed.hosts, str(PYTHON)
    run.start(hosts[0], run.command(0, python=python, rendezvous=[h.address for h in hosts]))
    port = _wait_for(run.directory / "rendezvous")
    for number, host in enumerate(hosts):
        env = _options(
            run.setting,
            RANK=number,
            SIZE=len(hosts),
            LOCAL_RANK=0,
            LOCAL_SIZE=1,
            CROSS_RANK=number,
            CROSS_SIZE=len(hosts),
            HOSTNAME=host.address,
            GLOO_IFACE=host.interface,
            GLOO_RENDEZVOUS_ADDR=hosts[0].address,
            GLOO_RENDEZVOUS_PORT=port,
            GLOO_TIMEOUT_SECONDS=GLOO_TIMEOUT_S,
        )
        rename = ["sh", "-c", 'hostname "$0" && exec "$@"', host.address]
        run.start(host, [*rename, *run.command(number, python=python)], env)


def _wait_for(file: Path) -> str:
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while not file.exists() or not file.read_text():
        if time.monotonic() > deadline:
            raise PeerError("horovod: the rendezvous server did not start")
        time.sleep(POLL_S)
    return file.read_text()


def _serve_rendezvous(rank: Rank) -> None:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    addresses = rank.extra["rendezvous"]
    hosts = parse_hosts(",".join(f"{address}:1" for address in addresses))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, len(addresses)))
    (Path(rank.directory) / "rendezvous").write_text(str(port))
    while True:
        time.sleep(1)


def main() -> None:
    """One rank, or the server at which they find each other."""
    rank = Rank.read()
    if "rendezvous" in rank.extra:
        _serve_rendezvous(rank)
        sys.exit()

    import horovod.tensorflow as hvd

    from benchmarks.peers import graph

    hvd.init()
    if (hvd.rank(), hvd.size()) != (rank.number, rank.workers):
        sys.exit(f"Horovod sees rank {hvd.rank()} of {hvd.size()}")

    def mean(pairs: graph.Pairs) -> graph.Pairs:
        return [(hvd.allreduce(gradient, op=hvd.Average), v) for gradient, v in pairs]

    def session_of(job: graph.Job) -> Any:
        session = graph.tf1.Session(graph=job.graph, config=graph.config(rank.case))
        graph.initialise(session, job)
        return session

    own = graph.build(rank)
    job = graph.build(rank, aggregate=mean)
    session = session_of(job)

    def parameters() -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = session.run(job.parameters)
        return values

    own_step = graph.step_of(session_of(own), own)
    rank.measure(graph.step_of(session, job), parameters, own_step=own_step)
    leave()


if __name__ == "__main__":
    main()
