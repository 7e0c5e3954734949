"""Caramel without a plan: one aggregation per gradient, started whenever the gradient is there.

Host 0 has worker 0 and drives the job; the other hosts run ``caramel worker``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import (
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


class Plain:
    """Caramel with the plain plan."""

    name = "plain"

    def versions(self) -> dict[str, str]:
        """Caramel's and TensorFlow's."""
        from caramel import __version__

        return {"caramel": __version__, **versions_of("tensorflow")}

    def available(self) -> str | None:
        """Always."""
        return None

    def settings(self) -> list[dict[str, Any]]:
        """Every pattern."""
        return [{"pattern": name} for name in ("shuffle", "ring", "halving_doubling")]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What an all-reduce must send; halving-doubling sends more if N is no power of two."""
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host."""

        def start_all(run: Run) -> None:
            addresses = run.addresses()
            for number, host in enumerate(bed.hosts[1:], 1):
                run.start(host, _worker(addresses, number, case))
            run.start(bed.hosts[0], run.command(0, addresses=addresses))

        return launch(self, __name__, bed, case, setting, start_all, ranks=1)


PEER = Plain()


def _worker(addresses: Sequence[str], number: int, case: Case) -> list[str]:
    return [
        *(sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(addresses)),
        *("--task", str(number)),
        *("--intra-op-threads", str(case.threads)),
        *("--inter-op-threads", str(case.inter_op_threads)),
    ]


def main() -> None:
    """Worker 0."""
    import caramel
    from benchmarks.peers import graph

    rank = Rank.read()
    job = graph.build(rank.alone())  # Caramel itself gives each worker its shard
    emulated = rank.case.accelerator is not None  # nothing in the graph shows what is a gradient
    gradients = job.gradients if emulated else None
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss, gradients=gradients)
    cluster = caramel.Cluster.of(rank.extra["addresses"], task=0)
    model = caramel.ARModel(context, cluster, pattern=rank.setting["pattern"])
    session = model.session(config=graph.config(rank.case))
    session.run(job.assign, job.fed)
    session.run(job.start)

    def parameters() -> dict[str, Any]:
        values = session.variables()
        return {name: values[name] for name in job.parameters}

    rank.measure(session.step, parameters)
    leave()


if __name__ == "__main__":
    main()
