"""Which workers take part: who is there after a loss, who is started again, and who comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Set

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import RecoveryError, WorkerStartError
from caramel.runtime.execution.liveness import unanswering
from caramel.runtime.recovery.settings import Recovery

_PROBE_S = 2.0
_POLL_S = 0.5
RETURN_EVERY_S = 5.0  # how often those that are missing are looked for while others go on

_log = logging.getLogger(__name__)


class Members:
    """The workers and servers of a session.

    Args:
        cluster: all that there are when everything is well.
        settings: how long to wait for those that are lost, and how many there must be.

    Attributes:
        cluster: those that take part.
    """

    def __init__(self, cluster: Cluster, settings: Recovery) -> None:
        self._all, self._settings = cluster, settings
        self._looked_s = 0.0
        self.cluster = cluster
        self._start_again()  # what an earlier session has lost

    @property
    def missing(self) -> tuple[Task, ...]:
        """Those that do not take part."""
        return tuple(task for task in self._all.tasks if task not in self.cluster.tasks)

    def describe(self, tasks: Iterable[Task]) -> tuple[str, ...]:
        """Names and addresses of tasks."""
        return tuple(self._all.describe(task) for task in tasks)

    def gather(self, lost: Iterable[Task]) -> None:
        """Start workers again that were lost, or wait for them; then go on with those that answer.

        Raises:
            RecoveryError: there are too few.
        """
        self._start_again(lost)
        deadline = time.monotonic() + self._settings.wait_s
        away = self._away()
        # Those that were missing before are not waited for.
        while not away <= set(self.missing) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._start_again()  # what has ended while it was started
            away = self._away()
        if few := self._too_few(away):
            missing = [task for task in self._all.tasks if task in away]
            raise RecoveryError(
                f"{few}; missing after {self._settings.wait_s:g} s: "
                f"{', '.join(self.describe(missing)) or 'none'}",
                tuple(missing),
            )
        self.cluster = self._all.without(away) if away else self._all

    def _too_few(self, away: Set[Task]) -> str | None:
        """Why nothing can go on without some tasks, if so."""
        left = [task for task in self._all.workers if task not in away]
        if len(left) < self._settings.least_workers:
            return (
                f"{len(left)} of {self._all.size} workers are left, and least_workers is "
                f"{self._settings.least_workers}"
            )
        if self._all.servers and away >= set(self._all.servers):
            return f"none of {len(self._all.servers)} parameter servers is left"
        return None

    def returned(self) -> bool:
        """Whether workers that were missing take part from now on."""
        if not self.missing or time.monotonic() - self._looked_s < RETURN_EVERY_S:
            return False
        self._start_again(self.missing)
        away = self._away() & set(self.missing)
        self._looked_s = time.monotonic()
        if away == set(self.missing):
            return False
        self.cluster = self._all.without(away) if away else self._all
        return True

    def _away(self) -> set[Task]:
        """Those that do not answer."""
        return {*self._all.ended, *unanswering(self._all, _PROBE_S)}

    def _start_again(self, lost: Iterable[Task] = ()) -> None:
        """Start what was lost, or has ended, of the processes that this one has started."""
        tasks = {*lost, *self._all.ended}
        if self._all.kind != "local" or not tasks:
            return
        try:
            self._all.restart([task for task in self._all.tasks if task in tasks])
        except WorkerStartError as error:
            _log.warning("a worker cannot be started again: %s", error)
