"""What the client of a run is told."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.faults.jobs import Kind


@dataclass(frozen=True)
class Case:
    """A training that a fault disturbs.

    Attributes:
        kind: of the job.
        count: how many workers.
        servers: how many parameter servers.
        tasks: the addresses of workers, and behind them of servers; None for processes that the
            client starts.
        steps: how many steps.
        save_every: after how many steps a checkpoint is written.
        wait_s: how long lost workers are waited for, in seconds.
        resumes: whether it goes on from its newest checkpoint, and saves one if told to end.
        directory: where it tells its steps.
        checkpoints: where checkpoints go.
    """

    kind: Kind
    count: int
    servers: int
    tasks: list[str] | None
    steps: int
    save_every: int
    wait_s: float
    resumes: bool
    directory: str
    checkpoints: str
