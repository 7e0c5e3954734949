"""The tasks of a job: what users may say of them, and what is made of it."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from caramel.cluster.addresses import addresses_of
from caramel.cluster.launchers import MOST_WORKERS
from caramel.core.devices import Device
from caramel.core.errors import ClusterError

SERVER_JOB = "ps"
"""The job whose tasks are parameter servers."""

# Worker i of Caramel is the i-th task in this order of jobs.
_WORKER_JOBS = ("chief", "worker")
_JOBS = (*_WORKER_JOBS, SERVER_JOB)


@runtime_checkable
class ClusterSpecLike(Protocol):
    """What Caramel uses of a `tf.train.ClusterSpec`."""

    def as_dict(self) -> Mapping[str, Any]:
        """Job names and the addresses of their tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process of a job, and the ``host:port`` it listens on (None when embedded)."""

    job: str
    index: int
    address: str | None = None

    @property
    def device(self) -> str:
        """The task's device name, ``/job:worker/task:3``; it names no device type."""
        return str(Device(job=self.job, task=self.index))


def addresses_by_job(tasks: Iterable[Task]) -> dict[str, list[str]]:
    """Job names and addresses, as `tf.train.ClusterSpec` takes them.

    Raises:
        ClusterError: the tasks are embedded and have no addresses.
    """
    jobs: dict[str, list[str]] = {}
    for task in tasks:
        if task.address is None:
            raise ClusterError("embedded workers have no addresses until a session starts them")
        jobs.setdefault(task.job, []).append(task.address)
    return jobs


def worker_count(n: Any) -> int:
    """A number of workers.

    Raises:
        ClusterError: it cannot be one.
    """
    return _count(n, "workers")


def server_count(n: Any) -> int:
    """A number of parameter servers, none where nothing is said.

    Raises:
        ClusterError: it cannot be one.
    """
    return 0 if n is None else _count(n, "parameter servers")


def _count(n: Any, what: str) -> int:
    # True is a number to Python.
    if isinstance(n, bool) or not isinstance(n, numbers.Integral):
        raise ClusterError(f"the number of {what} is {n!r}; expected a whole number of at least 1")
    if n < 1:
        raise ClusterError(f"the number of {what} is {n}; expected at least 1")
    if int(n) > MOST_WORKERS:
        raise ClusterError(f"the number of {what} is more than {MOST_WORKERS}")
    return int(n)


def counted_servers(count: int) -> str:
    """So many parameter servers, in words."""
    return f"{count} parameter server" if count == 1 else f"{count} parameter servers"


def numbered(workers: int, servers: int) -> list[Task]:
    """So many tasks of each kind, which have no addresses yet."""
    return [
        *(Task("worker", index) for index in range(workers)),
        *(Task(SERVER_JOB, index) for index in range(servers)),
    ]


def jobs_of(workers: Any, servers: Any) -> Mapping[str, Any]:
    """The addresses of each job, which may still be wrong.

    Args:
        workers: as `caramel.Cluster.of` takes them.
        servers: addresses of parameter servers, or None.

    Raises:
        ClusterError: the servers are given twice, or are none.
    """
    if isinstance(workers, ClusterSpecLike):
        workers = workers.as_dict()
    jobs = workers if isinstance(workers, Mapping) else {"worker": workers}
    if servers is None:
        return jobs
    if jobs.get(SERVER_JOB):
        raise ClusterError(
            "the parameter servers are given twice: as parameter_servers, and as the job ps"
        )
    if not servers:
        raise ClusterError(
            "parameter_servers names no address; expected at least one address host:port"
        )
    return {**jobs, SERVER_JOB: servers}


def tasks_of(jobs: Mapping[str, Any]) -> list[Task]:
    """The tasks of jobs, the workers first.

    Raises:
        ClusterError: a job is none that is known, an address none, or one is given twice.
    """
    unknown = sorted(str(job) for job in jobs if job not in _JOBS)
    if unknown:
        raise ClusterError(
            f"Caramel knows the jobs {', '.join(_WORKER_JOBS)} and {SERVER_JOB} only; "
            f"the cluster also has {', '.join(unknown):.200}"
        )
    tasks = [
        Task(job, index, address)
        for job in _JOBS
        if job in jobs
        for index, address in enumerate(addresses_of(job, jobs[job]))
    ]
    if not any(task.job in _WORKER_JOBS for task in tasks):
        raise ClusterError("the cluster has no workers; expected at least one address host:port")
    _check_distinct(tasks)
    return tasks


def _check_distinct(tasks: Sequence[Task]) -> None:
    seen: dict[str, Task] = {}
    for task in tasks:
        assert task.address is not None
        # Host names know no upper case.
        other = seen.setdefault(task.address.lower(), task)
        if other is not task:
            raise ClusterError(
                f"the address '{task.address}' is given twice, for {other.device} and {task.device}"
            )
