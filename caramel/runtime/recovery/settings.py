"""What a user says of how a session survives the loss of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from caramel.core.errors import PlanError


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a session goes on after the loss of a worker (`ARModel.session`).

    Attributes:
        snapshot_every: after how many steps each worker copies its variables in its own memory. By
            default as often as costs 1 % of the time, by what snapshots and steps take. It is done
            earlier where what was fed since takes more than 268 MB.
        wait_s: how long to wait for a worker or server that was lost to answer again, in seconds.
            Those that `Cluster.local` started are started again.
        least_workers: with how many workers to go on where others do not come back. Of parameter
            servers one is enough.
        restarts: how many times in an hour to try to go on.

    Raises:
        PlanError: something cannot be.
    """

    snapshot_every: int | None = None
    wait_s: float = 60.0
    least_workers: int = 1
    restarts: int = 10

    def __post_init__(self) -> None:
        if self.snapshot_every is not None:
            _check_count("snapshot_every", self.snapshot_every)
        _check_count("least_workers", self.least_workers)
        _check_count("restarts", self.restarts)
        is_number = isinstance(self.wait_s, Real) and not isinstance(self.wait_s, bool)
        if not (is_number and 0 <= self.wait_s < math.inf):
            raise PlanError(f"wait_s must be a number of seconds, at least 0, not {self.wait_s!r}")


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise PlanError(f"{name} must be a whole number, at least 1, not {value!r}")
