"""Horovod with Gloo: one all-reduce per gradient, fused by Horovod as it finds them ready.

It has an environment of its own (``make bench-horovod``). The first host also runs the server at
which the ranks find each other (`main` with ``rendezvous``); each rank's hostname is its address,
because the connections that carry data look that up and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import (
    POLL_S,
    REPOSITORY,
    PeerError,
    Rank,
    Run,
    Running,
    Setting,
    evenly,
    launch,
    leave,
    versions_of,
)
from benchmarks.peers.data import Case

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

PYTHON = REPOSITORY / ".venv-horovod" / "bin" / "python"
RENDEZVOUS_TIMEOUT_S = 60.0


class HorovodGloo:
    """Horovod."""

    name = "horovod_gloo"

    def versions(self) -> dict[str, str]:
        """Those of Horovod and its TensorFlow."""
        return versions_of("horovod", "tensorflow", python=str(PYTHON))

    def available(self) -> str | None:
        """Whether its environment is there."""
        if not PYTHON.exists():
            return "not installed"
        found = subprocess.run([PYTHON, "-c", "import horovod"], capture_output=True)
        return "not installed" if found.returncode else None

    def settings(self) -> list[dict[str, Any]]:
        """How often Horovod looks for gradients, in milliseconds: its default, and tuned ones."""
        return [{"cycle_time_ms": cycle} for cycle in (1.0, 0.1, 5.0)]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What a ring all-reduce sends."""
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a rank on each host."""

        def start_all(run: Run) -> None:
            python, file = str(PYTHON), run.directory / "rendezvous"
            server = run.command(0, python=python, rendezvous=[h.address for h in bed.hosts])
            run.start(bed.hosts[0], server)
            port = _wait_for(file)
            for number, host in enumerate(bed.hosts):
                env = _environment(number, len(bed.hosts), host.address, setting)
                env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = bed.hosts[0].address
                env["HOROVOD_GLOO_RENDEZVOUS_PORT"] = port
                rename = ["sh", "-c", 'hostname "$0" && exec "$@"', host.address]
                run.start(host, [*rename, *run.command(number, python=python)], env)

        return launch(self, __name__, bed, case, setting, start_all)


PEER = HorovodGloo()


def _wait_for(file: Path) -> str:
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while not file.exists() or not file.read_text():
        if time.monotonic() > deadline:
            raise PeerError("horovod_gloo: the rendezvous server did not start")
        time.sleep(POLL_S)
    return file.read_text()


def _environment(number: int, workers: int, address: str, setting: Setting) -> dict[str, str]:
    own = {"RANK": number, "SIZE": workers, "CROSS_RANK": number, "CROSS_SIZE": workers}
    alone = {"LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    options = {
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_IFACE": "eth0",
        "HOSTNAME": address,
        "CYCLE_TIME": setting["cycle_time_ms"],
    }
    return {f"HOROVOD_{key}": str(value) for key, value in {**own, **alone, **options}.items()}


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

    def aggregate(pairs: graph.Pairs) -> graph.Pairs:
        return [(hvd.allreduce(gradient, op=hvd.Average), v) for gradient, v in pairs]

    job = graph.build(rank, aggregate=aggregate)
    session = graph.tf1.Session(graph=job.graph, config=graph.config(rank.case))
    graph.initialise(session, job)

    def parameters() -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = session.run(job.parameters)
        return values

    rank.measure(graph.step_of(session, job), parameters)
    leave()


if __name__ == "__main__":
    main()
