"""MPI as in the papers: each gradient is fetched, added up by MPI through NumPy, and fed back.

Computation, aggregation and update follow each other. MPICH's ``mpiexec`` starts one rank on each
host of the bed; shared memory, its default on one machine, would bypass the network, so it is told
to use TCP on the bed's interface.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import Setting, evenly, versions_of
from benchmarks.peers.data import Case
from benchmarks.peers.rank import Rank, leave
from benchmarks.peers.running import Run, Running, launch

if TYPE_CHECKING:
    from benchmarks.testbed import Host, Testbed

TRANSPORT = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    "MPIR_CVAR_NOLOCAL": "1",  # no rank shares memory with another
    "MPIR_CVAR_CH4_NETMOD": "ucx",
}


class Mpi:
    """mpi4py on MPICH."""

    name = "mpi"

    def versions(self) -> dict[str, str]:
        """Those of TensorFlow, mpi4py and MPICH."""
        return versions_of("tensorflow", "mpi4py", "mpich")

    def available(self) -> str | None:
        """Whether the packages mpi4py and mpich are there."""
        there = find_spec("mpi4py") is not None and Path(_mpiexec(sys.executable)).exists()
        return None if there else "not installed"

    def settings(self) -> list[dict[str, Any]]:
        """There is one."""
        return [{}]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What recursive halving and doubling sends, MPICH's way for large arrays.

        With P the largest power of two up to N, each even rank below 2 (N - P) first gives its
        gradients to the next one, which takes part for both and gives the sums back
        (Thakur, Rabenseifner & Gropp, 2005). Small arrays, sent whole, are a small part.
        """
        total, power = sum(sizes), 1 << (workers.bit_length() - 1)
        halving = evenly(sizes, power)[0]
        paired = [float(total), halving + total] * (workers - power)
        return paired + [halving] * (workers - len(paired))

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a rank on each host."""

        def start_all(run: Run) -> None:
            run.start(None, command_of(run), TRANSPORT)

        return launch(self, __name__, bed, case, setting, start_all)


PEER = Mpi()


def _mpiexec(python: str) -> str:
    """The launcher of the package mpich, which is beside the interpreter."""
    return str(Path(python).parent / "mpiexec.hydra")


def command_of(run: Run, python: str = sys.executable) -> list[str]:
    """The command that starts one rank on each host."""
    command = [_mpiexec(python)]
    for number, host in enumerate(run.bed.hosts):
        command += [":"] if number else []
        command += ["-n", "1", *_on_host(host), *run.command(number, python=python)]
    return command


def _on_host(host: Host) -> list[str]:
    enter = ["ip", "netns", "exec", host.namespace, "unshare", "--uts"]
    pin = [] if host.core is None else ["taskset", "-c", str(host.core)]
    return [*enter, "sh", "-c", 'hostname "$0" && exec "$@"', host.name, *pin]


def main() -> None:
    """One rank."""
    from mpi4py import MPI

    from benchmarks.peers import graph

    rank, world = Rank.read(), MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (rank.number, rank.workers):
        sys.exit(f"MPI sees rank {world.Get_rank()} of {world.Get_size()}")
    means: list[Any] = []

    def feed(pairs: graph.Pairs) -> graph.Pairs:
        means.extend(graph.tf1.placeholder(g.dtype, v.shape) for g, v in pairs)
        return [(mean, variable) for mean, (_, variable) in zip(means, pairs, strict=True)]

    job = graph.build(rank, aggregate=feed)
    session = graph.tf1.Session(graph=job.graph, config=graph.config(rank.case))
    graph.initialise(session, job)
    gradients = [gradient for gradient, _ in job.gradients]
    compute = session.make_callable([gradients, *job.averages])
    apply = session.make_callable(job.apply, means)

    def step() -> None:
        own: list[np.ndarray] = compute()[0]
        totals = []
        for value in own:
            total = np.empty_like(value)
            world.Allreduce(value, total)
            total /= rank.workers
            totals.append(total)
        apply(*totals)

    def parameters() -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = session.run(job.parameters)
        return values

    rank.measure(step, parameters)
    leave()


if __name__ == "__main__":
    main()
