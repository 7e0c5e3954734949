"""One TensorFlow server adds up the tensors that all workers send, and all read the mean.

The server is a process of its own on the first host. The graph is one for all; the first worker is
its client.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group


@dataclass(frozen=True)
class System:
    """A parameter server."""

    name: str = "parameter_server"
    sleeps: bool = True

    def available(self) -> str | None:
        """Always: it is part of TensorFlow."""
        return None

    def versions(self) -> dict[str, str]:
        """TensorFlow's."""
        from benchmarks.peers.base import versions_of

        return versions_of("tensorflow")

    def start(self, group: Group) -> int:
        """A worker on each host, and the server."""
        hosts = group.bed.hosts
        worker_port, server_port = group.port(), group.port()
        cluster = {
            "worker": [f"{host.address}:{worker_port}" for host in hosts],
            "ps": [f"{hosts[0].address}:{server_port}"],
        }
        group.popen(hosts[0], group.command(__name__, 0, cluster=cluster, job="ps"))
        for task, host in enumerate(hosts):
            group.popen(host, group.command(__name__, task, cluster=cluster, job="worker"))
        return 1


def main() -> None:
    """One worker, or the server."""
    import tensorflow as tf

    from benchmarks.allreduce.systems.tensorflow_tensor import config

    tf1, place = tf.compat.v1, Place.read()
    tf1.disable_eager_execution()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(place.extra["cluster"]),
        job_name=place.extra["job"],
        task_index=place.rank,
        config=config(),
    )
    if place.extra["job"] == "ps" or place.rank:
        while True:
            time.sleep(1000)
    sessions: list[Any] = []

    def make(elements: int) -> Mapping[str, Cell]:
        while sessions:
            sessions.pop().close()
        with tf.Graph().as_default() as graph:
            owns, fills, steps, errors = [], [], [], []
            for worker in range(place.workers):
                with tf.device(f"/job:worker/task:{worker}"):
                    ramp = tf.cast(1 + tf.range(elements) % PERIOD, tf.float32)
                    own = tf1.get_variable(f"own_{worker}", [elements], use_resource=True)
                    fills.append(own.assign(ramp * (worker + 1.0), read_value=False))
                    owns.append(own.read_value())
            with tf.device("/job:ps/task:0"):
                total = tf.add_n(owns) / place.workers
            for worker in range(place.workers):
                with tf.device(f"/job:worker/task:{worker}"):
                    ramp = tf.cast(1 + tf.range(elements) % PERIOD, tf.float32)
                    mean = tf1.get_variable(f"mean_{worker}", [elements], use_resource=True)
                    steps.append(mean.assign(total, read_value=False))
                    expected = mean_factor(place.workers) * ramp
                    errors.append(tf.reduce_max(tf.abs(mean.read_value() - expected)))
            options = config()
            options.isolate_session_state = True
            session = tf1.Session(server.target, graph=graph, config=options)
        sessions.append(session)
        run = session.make_callable(steps)
        return {"": Cell(lambda: session.run(fills), run, lambda: max(session.run(errors)))}

    serve(place, make)


if __name__ == "__main__":
    main()
