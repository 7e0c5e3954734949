"""Who computes: the workers of a job, where they listen, and how to find out.

This file starts no TensorFlow server (`servers` does) and does not import TensorFlow.
"""

from __future__ import annotations

import numbers
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from caramel.cluster import processes
from caramel.cluster.launchers import MOST_WORKERS, read_environment
from caramel.core.devices import Device
from caramel.core.errors import ClusterError, WorkerStartError

Kind = Literal["embedded", "local", "remote"]

BASE_PORT = 12321
"""The port of the first worker on each machine where Slurm says which machines there are."""

# Worker i of Caramel is the i-th task in this order of jobs.
_JOBS = ("chief", "worker")
# A host name, an IPv4 address, or an IPv6 one in brackets, perhaps with its interface (``%eth0``).
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):(?P<port>[0-9]+)")
_MOST_DIGITS = 18  # of what may be a port
_PORT_RACES = 3  # how often `Cluster.local` tries again with other ports
_PROBE_S = 2.0  # how long one attempt to connect may take


@runtime_checkable
class ClusterSpecLike(Protocol):
    """What Caramel uses of a `tf.train.ClusterSpec`."""

    def as_dict(self) -> Mapping[str, Any]:
        """Job names and the addresses of their tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """One worker: a task of a job, and the ``host:port`` it listens on (None when embedded)."""

    job: str
    index: int
    address: str | None = None

    @property
    def device(self) -> str:
        """The task's device name, ``/job:worker/task:3``; it names no device type."""
        return str(Device(job=self.job, task=self.index))


class Cluster:
    """The workers of a job. Made by `embedded`, `local`, `of` or `from_environment`.

    A context manager: leaving it ends the workers that `Cluster.local` started, and does nothing
    to others.

    TensorFlow's servers listen on all interfaces of their machine, without authentication: keep
    them on a network you trust.

    Attributes:
        kind: "embedded", "local" (this object started the workers) or "remote".
        tasks: the workers, in Caramel's order.
        task: the index in `tasks` of the worker that this process is, or None for a client that
            is no worker.
    """

    def __init__(
        self,
        kind: Kind,
        tasks: Sequence[Task],
        *,
        task: int | None = None,
        group: processes.ProcessGroup | None = None,
    ) -> None:
        self.kind = kind
        self.tasks = tuple(tasks)
        self.task = task
        self._group = group

    @property
    def where(self) -> tuple[str, ...]:
        """Its kind and the hosts of its workers, without their ports."""
        return (self.kind, *((task.address or "").rpartition(":")[0] for task in self.tasks))

    @classmethod
    def embedded(cls, n: int) -> Cluster:
        """`n` workers inside this process. They have no addresses yet.

        Raises:
            ClusterError: `n` is not a whole number of at least 1.
        """
        return cls("embedded", [Task("worker", index) for index in range(_worker_count(n))])

    @classmethod
    def of(
        cls,
        workers: Sequence[str] | Mapping[str, Any] | ClusterSpecLike,
        *,
        task: int | None = None,
    ) -> Cluster:
        """Workers that have been or will be started elsewhere (``caramel worker``).

        Args:
            workers: addresses ``host:port``; or a mapping from "chief" and "worker" to addresses;
                or a `tf.train.ClusterSpec` of these jobs.
            task: which of them this process is, as an index in `tasks`; None if none.

        Raises:
            ClusterError: an address has another form, is named twice, or has an impossible port;
                or the jobs are others; or `task` is none of the workers.
        """
        tasks = _tasks_of(workers)
        if task is not None and not 0 <= task < len(tasks):
            raise ClusterError(
                f"task {task} does not exist: the cluster has {_counted(len(tasks))}, "
                f"0 to {len(tasks) - 1}"
            )
        return cls("remote", tasks, task=task)

    @classmethod
    def local(cls, n: int, *, start_timeout_s: float = 60.0) -> Cluster:
        """Start `n` worker processes on this machine and wait until each listens.

        They end with `close`, when the context is left, when this object is no longer used, at
        the interpreter's exit, and soon after this process has been killed.

        Args:
            n: the number of workers.
            start_timeout_s: how long they may take together, in seconds.

        Raises:
            ClusterError: `n` is not a whole number of at least 1.
            WorkerStartError: a worker ended or was not listening in time; says which and what it
                wrote. No process is left.
        """
        count = _worker_count(n)
        deadline = time.monotonic() + start_timeout_s
        # A port is free only at the moment of asking: somebody else may take it before the worker
        # does.
        for races_left in reversed(range(_PORT_RACES)):
            cluster = cls._start(count)
            try:
                cluster._wait_until_listening(deadline, start_timeout_s)
            except _PortTakenError as race:
                cluster.close()
                if not races_left:
                    raise WorkerStartError(str(race)) from None
            except BaseException:
                cluster.close()
                raise
            else:
                return cluster
        raise AssertionError("the last attempt either returns or raises")

    @classmethod
    def _start(cls, count: int) -> Cluster:
        addresses = [f"127.0.0.1:{port}" for port in processes.free_ports(count)]
        try:
            group = processes.ProcessGroup(
                [processes.worker_command(addresses, index) for index in range(count)]
            )
        except OSError as error:
            raise WorkerStartError(f"no worker process can be started: {error}") from error
        tasks = [Task("worker", index, address) for index, address in enumerate(addresses)]
        return cls("local", tasks, group=group)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, base_port: int = BASE_PORT
    ) -> Cluster:
        """The cluster this process was started in, as its launcher describes it.

        Looked for in this order: `TF_CONFIG`; Slurm's variables, unless they belong to an
        ``mpirun`` inside a Slurm job (OMPI_COMM_WORLD_SIZE is set); an MPI launcher's variables.
        With MPI this is a collective call: every rank must make it.

        Args:
            environ: the environment; this process's own by default.
            base_port: under Slurm, the port of the first worker on each machine; further workers
                on the machine get the next ones.

        Raises:
            ClusterError: there is no such description, or it contradicts itself.
        """
        launch = read_environment(os.environ if environ is None else environ, base_port)
        try:
            cluster = cls.of(launch.workers)
        except ClusterError as error:
            raise ClusterError(f"{launch.source}: {error}") from None
        names = [(task.job, task.index) for task in cluster.tasks]
        if launch.own is None or launch.own in names:
            own = None if launch.own is None else names.index(launch.own)
            return cls("remote", cluster.tasks, task=own)
        raise ClusterError(
            f"{launch.source}: this process is task {launch.own[1]} of job {launch.own[0]}, which "
            f"the cluster does not have: {', '.join(cluster.devices)}"
        )

    @classmethod
    def coerce(cls, workers: Any) -> Cluster:
        """The cluster that `workers` stands for.

        Args:
            workers: a `Cluster`, returned as it is; a number of embedded workers; or what
                `Cluster.of` accepts.

        Raises:
            ClusterError: `workers` is something else, or is not valid.
        """
        if isinstance(workers, Cluster):
            return workers
        if isinstance(workers, numbers.Integral):
            return cls.embedded(_worker_count(workers))
        if _is_list(workers) or isinstance(workers, Mapping | ClusterSpecLike):
            return cls.of(workers)
        raise ClusterError(
            f"workers is {workers!r} ({type(workers).__name__}); expected a number of workers "
            "inside this process, a list of addresses ['host:port', ...], a mapping "
            "{'worker': ['host:port', ...]}, a tf.train.ClusterSpec or a caramel.Cluster"
        )

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.tasks)

    @property
    def devices(self) -> tuple[str, ...]:
        """The workers' device names, ``/job:worker/task:0`` and so on."""
        return tuple(task.device for task in self.tasks)

    def as_dict(self) -> dict[str, list[str]]:
        """Job names and addresses, as `tf.train.ClusterSpec` takes them.

        Raises:
            ClusterError: the workers are embedded and have no addresses.
        """
        jobs: dict[str, list[str]] = {}
        for task in self.tasks:
            if task.address is None:
                raise ClusterError("embedded workers have no addresses until a session starts them")
            jobs.setdefault(task.job, []).append(task.address)
        return jobs

    def describe(self, task: Task | int, *, wait_s: float = 0.0) -> str:
        """Which worker `task` is, in words: its number, name, address, and process if known.

        Args:
            wait_s: how long a process that is ending has to tell how it ended, in seconds.
        """
        number = task if isinstance(task, int) else self.tasks.index(task)
        which = self.tasks[number]
        where = f"at {which.address}" if which.address else "in this process"
        process = ""
        if self._group is not None:
            process = f", pid {self._group.pid(number)}"
            # A process that has just broken a connection may still be ending.
            code = self._group.exit_code(number, wait_s=wait_s)
            if code is not None:
                process += f", {processes.describe_exit(code)}"
        return f"worker {number} ({which.device} {where}{process})"

    def unreachable(self, timeout_s: float = _PROBE_S) -> tuple[Task, ...]:
        """The workers that do not accept a TCP connection now, tried all at once.

        A worker process of `Cluster.local` that has ended counts; embedded workers never do.

        Args:
            timeout_s: how long a connection may take, in seconds.
        """
        answers = _answers(self.tasks, timeout_s)
        return tuple(
            task
            for number, (task, answer) in enumerate(zip(self.tasks, answers, strict=True))
            # Where a worker has ended, another process may answer on its port.
            if not answer or self._exit_code(number) is not None
        )

    def silent(self, timeout_s: float = _PROBE_S) -> tuple[Task, ...]:
        """The workers that accept a TCP connection and then say nothing, tried all at once.

        A server of TensorFlow begins by itself to talk HTTP/2. What does not is a proxy or port
        forwarding in its place; or the worker's process was stopped, or has no time at all.

        Args:
            timeout_s: how long they may take, in seconds.
        """
        accepted = _answers(self.tasks, timeout_s)
        talked = _answers(self.tasks, timeout_s, talk=True)
        return tuple(
            task
            for task, accepts, talks in zip(self.tasks, accepted, talked, strict=True)
            if accepts and not talks
        )

    def wait_until_reachable(self, timeout_s: float) -> None:
        """Wait until every worker accepts TCP connections. Embedded workers always do.

        Args:
            timeout_s: how long to wait for all of them together, in seconds.

        Raises:
            WorkerStartError: not all of them did in time, or a worker process of `Cluster.local`
                has ended; names each that is missing.
        """
        start = time.monotonic()
        while True:
            left_s = start + timeout_s - time.monotonic()
            missing = self.unreachable(min(_PROBE_S, max(left_s, 0.1)))
            if not missing:
                return
            # Waiting does not help where a process has ended.
            lost = [task for task in missing if self._exit_code(self.tasks.index(task)) is not None]
            if lost:
                raise WorkerStartError(f"{self._describe_all(lost)} ended before it was needed")
            if left_s <= 0:
                raise WorkerStartError(
                    f"{len(missing)} of {_counted(self.size)} cannot be reached after "
                    f"{time.monotonic() - start:.1f} s: {self._describe_all(missing)}"
                )
            time.sleep(min(0.2, max(left_s, 0.0)))

    def close(self) -> None:
        """End the worker processes that `Cluster.local` started; nothing else to do otherwise."""
        if self._group is not None:
            self._group.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.kind == "embedded":
            return f"Cluster.embedded({self.size})"
        workers = ", ".join(f"{task.device} at {task.address}" for task in self.tasks)
        own = "" if self.task is None else f", this process is worker {self.task}"
        return f"<Cluster, {self.kind}: {workers}{own}>"

    def _describe_all(self, tasks: Sequence[Task]) -> str:
        return ", ".join(self.describe(task) for task in tasks)

    def _exit_code(self, number: int) -> int | None:
        return None if self._group is None else self._group.exit_code(number)

    def _wait_until_listening(self, deadline: float, timeout_s: float) -> None:
        assert self._group is not None
        waiting = list(range(self.size))
        while waiting:
            for number in waiting:
                if self._group.exit_code(number) is not None:
                    self._raise_not_started(number, "ended before it listened")
            waiting = [
                number
                for number in waiting
                if processes.LISTENING not in self._group.output(number)
            ]
            if waiting and time.monotonic() > deadline:
                self._raise_not_started(waiting[0], f"did not listen within {timeout_s:g} s")
            time.sleep(0.05)

    def _raise_not_started(self, number: int, what: str) -> None:
        assert self._group is not None
        errors = self._group.errors_tail(number)
        wrote = f"its last errors:\n{errors}" if errors else "it wrote no error"
        kind = _PortTakenError if processes.CANNOT_LISTEN in errors else WorkerStartError
        raise kind(f"{self.describe(number)} {what}; {wrote}")


class _PortTakenError(WorkerStartError):
    """Somebody else took a worker's port between its choice and its use."""


# What users may give ----------------------------------------------------------------------------


def _worker_count(n: Any) -> int:
    # True is a number to Python.
    if isinstance(n, bool) or not isinstance(n, numbers.Integral):
        raise ClusterError(f"the number of workers is {n!r}; expected a whole number of at least 1")
    if n < 1:
        raise ClusterError(f"the number of workers is {n}; expected at least 1")
    if int(n) > MOST_WORKERS:
        raise ClusterError(f"the number of workers is more than {MOST_WORKERS}")
    return int(n)


def _counted(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _tasks_of(workers: Any) -> list[Task]:
    if isinstance(workers, ClusterSpecLike):
        workers = workers.as_dict()
    jobs = workers if isinstance(workers, Mapping) else {"worker": workers}
    unknown = sorted(str(job) for job in jobs if job not in _JOBS)
    if unknown:
        raise ClusterError(
            f"Caramel computes on the jobs {' and '.join(_JOBS)} only; "
            f"the cluster also has {', '.join(unknown)}"
        )
    tasks = [
        Task(job, index, address)
        for job in _JOBS
        if job in jobs
        for index, address in enumerate(_addresses_of(job, jobs[job]))
    ]
    if not tasks:
        raise ClusterError("the cluster has no workers; expected at least one address host:port")
    _check_distinct(tasks)
    return tasks


def _addresses_of(job: str, addresses: Any) -> Iterator[str]:
    if isinstance(addresses, Mapping):  # the form of a ClusterSpec with numbered tasks
        if set(addresses) != set(range(len(addresses))):
            raise ClusterError(
                f"the tasks of job {job} are {list(addresses)}; expected 0, 1, ... without gaps"
            )
        addresses = [addresses[index] for index in range(len(addresses))]
    if not _is_list(addresses):
        raise ClusterError(
            f"the addresses of job {job} are {addresses!r}; expected a list of host:port"
        )
    for address in addresses:
        _host_and_port(address)
        yield address


def _host_and_port(address: Any) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None:
        raise ClusterError(
            f"{address!r} is not an address; expected host:port, such as 'node1:4321', "
            "'192.168.0.7:4321' or '[::1]:4321'"
        )
    port = match["port"]
    if len(port) > _MOST_DIGITS:
        raise ClusterError(f"the port of '{match['host']}' has {len(port)} digits")
    if not 1 <= int(port) <= 65535:
        raise ClusterError(f"the port of address '{address}' is {port}; expected 1 to 65535")
    return match["host"].strip("[]"), int(port)


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


# Who answers ------------------------------------------------------------------------------------


def _answers(tasks: Sequence[Task], timeout_s: float, *, talk: bool = False) -> list[bool]:
    """For each task whether it accepts a TCP connection within `timeout_s`, tried all at once.

    Args:
        talk: whether it has to say something, too.
    """
    # Embedded workers are in this process, so they are there.
    answers = [task.address is None for task in tasks]
    deadline = time.monotonic() + timeout_s

    def probe(number: int, host: str, port: int) -> None:
        try:
            with socket.create_connection((host, port), timeout_s) as connection:
                answers[number] = not talk or bool(connection.recv(1))
        except (OSError, UnicodeError):  # the latter from host names that cannot be encoded
            pass

    threads = [
        threading.Thread(target=probe, args=(number, *_host_and_port(task.address)), daemon=True)
        for number, task in enumerate(tasks)
        if task.address is not None
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # Python begins no thread while it ends: then nothing is known
        return [True] * len(tasks)
    for thread in threads:  # looking up a name has no time limit of its own
        thread.join(max(0.0, deadline - time.monotonic()))
    # A copy: threads that are late may still write.
    return list(answers)
