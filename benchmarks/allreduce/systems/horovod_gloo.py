"""Horovod with Gloo, in a TensorFlow graph.

Its background threads meet every cycle, also when there is nothing to do; so it is stopped between
its turns. What its environment needs is explained in `benchmarks.peers.horovod`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve
from benchmarks.environment import WITH_KERAS

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group

RENDEZVOUS_TIMEOUT_S = 60.0
STOPPED_TIMEOUT_S = "600"


@dataclass(frozen=True)
class System:
    """Horovod with a cycle time."""

    cycle_time_ms: str = "1.0"
    sleeps: bool = False

    @property
    def name(self) -> str:
        """With the cycle time."""
        return f"horovod_gloo {self.cycle_time_ms} ms"

    def available(self) -> str | None:
        """Whether its environment is there."""
        from benchmarks.peers.horovod import PEER

        return PEER.available()

    def versions(self) -> dict[str, str]:
        """Those of Horovod and its TensorFlow."""
        from benchmarks.peers.base import versions_of
        from benchmarks.peers.horovod import PYTHON

        versions = versions_of("horovod", "tensorflow", python=str(PYTHON))
        return {"horovod": versions["horovod"], "horovod's tensorflow": versions["tensorflow"]}

    def start(self, group: Group) -> int:
        """The server at which ranks find each other, and a rank on each host."""
        from benchmarks.peers.horovod import PYTHON

        hosts, python = group.bed.hosts, str(PYTHON)
        file = group.directory / f"rendezvous-{group.port()}"
        addresses = [host.address for host in hosts]
        group.popen(
            hosts[0],
            group.command(__name__, 0, python=python, file=str(file), rendezvous=addresses),
        )
        for rank, host in enumerate(hosts):
            command = group.command(__name__, rank, python=python, file=str(file))
            # The connections that carry data look up the hostname and nothing else.
            rename = ["sh", "-c", 'hostname "$0" && exec "$@"', host.address]
            group.popen(host, [*rename, *command], self._environment(rank, addresses))
        return len(hosts)

    def _environment(self, rank: int, addresses: list[str]) -> dict[str, str]:
        options: dict[str, Any] = {
            "RANK": rank,
            "SIZE": len(addresses),
            "LOCAL_RANK": 0,
            "LOCAL_SIZE": 1,
            "CROSS_RANK": rank,
            "CROSS_SIZE": len(addresses),
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
            "GLOO_IFACE": "eth0",
            "HOSTNAME": addresses[rank],
            "GLOO_RENDEZVOUS_ADDR": addresses[0],
            "CYCLE_TIME": self.cycle_time_ms,
            "GLOO_TIMEOUT_SECONDS": STOPPED_TIMEOUT_S,
            "STALL_CHECK_DISABLE": 1,
        }
        return {**WITH_KERAS, **{f"HOROVOD_{key}": str(value) for key, value in options.items()}}


def _serve_rendezvous(addresses: list[str], file: Path) -> None:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    hosts = parse_hosts(",".join(f"{address}:1" for address in addresses))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, len(addresses)))
    file.with_suffix(".new").write_text(str(port))
    file.with_suffix(".new").rename(file)
    while True:
        time.sleep(1000)


def main() -> None:
    """One rank, or the server at which they find each other."""
    place = Place.read()
    file = Path(place.extra["file"])
    if "rendezvous" in place.extra:
        _serve_rendezvous(place.extra["rendezvous"], file)
    import os

    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = file.read_text()

    import horovod.tensorflow as hvd
    import tensorflow as tf

    from benchmarks.allreduce.systems.tensorflow_tensor import config

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    hvd.init()
    sessions: list[Any] = []

    def make(elements: int) -> Mapping[str, Cell]:
        while sessions:
            sessions.pop().close()
        with tf.Graph().as_default() as graph:
            ramp = tf.cast(1 + tf.range(elements) % PERIOD, tf.float32)
            own = tf1.get_variable("own", [elements], use_resource=True)
            mean = tf1.get_variable("mean", [elements], use_resource=True)
            total = hvd.allreduce(own.read_value(), op=hvd.Average, name=f"of_{elements}")
            fill = own.assign(ramp * (place.rank + 1.0), read_value=False)
            step = mean.assign(total, read_value=False)
            expected = mean_factor(place.workers) * ramp
            error = tf.reduce_max(tf.abs(mean.read_value() - expected))
            session = tf1.Session(graph=graph, config=config())
        sessions.append(session)
        run = session.make_callable(step)
        return {
            "": Cell(lambda: session.run(fill), run, lambda: session.run(error)),
        }

    serve(place, make)


if __name__ == "__main__":
    main()
