"""Parameter servers with synchronous workers: between-graph replication as TensorFlow 1 does it.

Each host runs a worker. The first host, or every one (`servers`: "one", "all"), also runs a server.
Parameters are spread by size: each goes to the server that has the least so far. Gradients are
averaged by `SyncReplicasOptimizer` on the servers; a step ends when its update is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import Setting, versions_of
from benchmarks.peers.data import Case
from benchmarks.peers.rank import POLL_S, Rank, leave
from benchmarks.peers.running import Run, Running, launch

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

SERVER, WORKER = "ps", "worker"


class ParameterServers:
    """`replica_device_setter` and `SyncReplicasOptimizer`."""

    name = "parameter_servers"

    def versions(self) -> dict[str, str]:
        """TensorFlow's."""
        return versions_of("tensorflow")

    def available(self) -> str | None:
        """Always: it is part of TensorFlow."""
        return None

    def settings(self) -> list[dict[str, Any]]:
        """One server, or one on every host."""
        return [{"servers": "one"}, {"servers": "all"}]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """A worker sends its gradients, a server its parameters to each worker elsewhere."""
        spread = Spread(_servers(workers, setting))
        for size in sizes:
            spread.place(size)
        loads = [*spread.loads, *[0] * (workers - len(spread.loads))]
        return [float((workers - 1) * load + sum(sizes) - load) for load in loads]

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host, and the servers."""

        def start_all(run: Run) -> None:
            servers = run.addresses(_servers(len(bed.hosts), setting))
            cluster = {SERVER: servers, WORKER: run.addresses()}
            for number in range(len(servers)):
                run.start(bed.hosts[number], run.command(number, cluster=cluster, job=SERVER))
            for number, host in enumerate(bed.hosts):
                run.start(host, run.command(number, cluster=cluster, job=WORKER))

        return launch(self, __name__, bed, case, setting, start_all)


PEER = ParameterServers()


def _servers(workers: int, setting: Setting) -> int:
    return workers if setting["servers"] == "all" else 1


class Spread:
    """Places parameters, in the order in which they are made, where the least bytes are.

    The first of several equal servers gets the parameter.
    """

    def __init__(self, servers: int) -> None:
        self.loads = [0] * servers

    def place(self, size: int) -> int:
        """The server for a parameter of `size` bytes."""
        least = self.loads.index(min(self.loads))
        self.loads[least] += size
        return least


def _strategy(servers: int) -> Any:
    """`Spread` as `replica_device_setter` wants it; the step's counters are on the first server."""
    spread = Spread(servers)

    def server_of(op: Any) -> int:
        if op.type != "VarHandleOp" or op.get_attr("dtype").is_integer:
            return 0
        shape = [dimension.size for dimension in op.get_attr("shape").dim]
        return spread.place(int(np.prod(shape)) * op.get_attr("dtype").size)

    return server_of


def main() -> None:
    """One worker or server."""
    import tensorflow as tf

    from benchmarks.peers import graph

    rank = Rank.read()
    tf1 = tf.compat.v1
    job_name, cluster = rank.extra["job"], tf.train.ClusterSpec(rank.extra["cluster"])
    server = tf.distribute.Server(
        cluster, job_name=job_name, task_index=rank.number, config=graph.config(rank.case)
    )
    if job_name == SERVER:
        server.join()
    task = f"/job:{WORKER}/task:{rank.number}"
    place = tf1.train.replica_device_setter(
        cluster=cluster,
        worker_device=task,
        ps_strategy=_strategy(len(rank.extra["cluster"][SERVER])),
    )
    optimizers = []

    def synchronous(case: Case) -> Any:
        optimizer = tf1.train.SyncReplicasOptimizer(graph.optimizer(case), rank.workers)
        optimizers.append(optimizer)
        return optimizer

    job = graph.build(rank, task=task, device=place, optimizer_of=synchronous)
    optimizer, chief = optimizers[0], rank.number == 0
    with job.graph.as_default():
        runner = optimizer.get_chief_queue_runner() if chief else None
        config = graph.config(rank.case, device_filters=[f"/job:{SERVER}", task])
        session = tf1.Session(server.target, graph=job.graph, config=config)
    initialised = Path(rank.directory) / "initialised"
    while not chief and not initialised.exists():
        time.sleep(POLL_S)
    graph.initialise(session, job, chief=chief)
    if runner is not None:
        # No tokens in advance: a worker would go on with parameters that are not updated yet.
        runner.create_threads(session, daemon=True, start=True)
        initialised.touch()

    def parameters() -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = session.run(job.parameters)
        return values

    rank.measure(graph.step_of(session, job), parameters)
    leave()


if __name__ == "__main__":
    main()
