"""One worker that trains alone: what a step costs without aggregation.

Every host has such a worker at the same time, because they share the machine. The parameters that
are compared are those of one device on the batches of all workers together: the truth for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import Setting, versions_of
from benchmarks.peers.data import Case, write_values
from benchmarks.peers.rank import Rank, leave
from benchmarks.peers.running import Run, Running, launch

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed


class Alone:
    """One worker without aggregation."""

    name = "alone"

    def versions(self) -> dict[str, str]:
        """TensorFlow's."""
        return versions_of("tensorflow")

    def available(self) -> str | None:
        """Always."""
        return None

    def settings(self) -> list[dict[str, Any]]:
        """There is one."""
        return [{}]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """Nothing is sent."""
        return [0.0] * workers

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host."""

        def start_all(run: Run) -> None:
            for number, host in enumerate(bed.hosts):
                run.start(host, run.command(number))

        return launch(self, __name__, bed, case, setting, start_all)


PEER = Alone()


def _truth(rank: Rank) -> dict[str, np.ndarray]:
    """The parameters after the checked steps of one device with the batches of all."""
    from benchmarks.peers import graph

    job = graph.build(rank.alone(), batch=rank.case.batch * rank.workers)
    config = graph.config(rank.case)
    with graph.tf1.Session(graph=job.graph, config=config) as session:
        graph.initialise(session, job)
        step = graph.step_of(session, job)
        for _ in range(rank.case.checked_steps):
            step()
        values: dict[str, np.ndarray] = session.run(job.parameters)
        return values


def main() -> None:
    """One worker."""
    from benchmarks.peers import graph

    rank = Rank.read()
    if rank.number == 0:
        write_values(Path(rank.directory) / "parameters.npz", _truth(rank))
    job = graph.build(rank)
    session = graph.tf1.Session(graph=job.graph, config=graph.config(rank.case))
    graph.initialise(session, job)
    rank.measure(graph.step_of(session, job), None)
    leave()


if __name__ == "__main__":
    main()
