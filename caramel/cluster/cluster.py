"""Who computes and who serves: the tasks of a job, where they listen, and how to find out.

This file starts no TensorFlow server (`servers` does) and does not import TensorFlow.
"""

from __future__ import annotations

import logging
import numbers
import os
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from caramel.cluster import probes, processes
from caramel.cluster.addresses import is_list
from caramel.cluster.client_relay import ClientRelay
from caramel.cluster.launchers import read_environment
from caramel.cluster.local_tasks import LocalTasks, NotListeningError
from caramel.cluster.parsing import parse_servers, parse_workers
from caramel.cluster.tasks import (
    SERVER_JOB,
    ClusterSpecLike,
    Task,
    addresses_by_job,
    counted_servers,
    jobs_of,
    numbered,
    server_count,
    tasks_of,
    worker_count,
)
from caramel.core.errors import ClusterError, WorkerStartError
from caramel.core.util.arguments import SECONDS, at_least, checked
from caramel.core.util.progress import working

_log = logging.getLogger(__name__)

Kind = Literal["embedded", "local", "remote"]

BASE_PORT = 12321
"""The port of the first task on each machine where Slurm says which machines there are."""

_PORT_RACES = 3  # how often `Cluster.local` tries again with other ports
_PROBE_S = 2.0  # how long one attempt to connect may take
_LONG_S = 5.0  # who waits longer wants to know for whom, also without `caramel.show_progress`
_WHY_MISSING: Mapping[str, str] = {
    "refuses": "nobody listens there",
    "silent": "no answer (is it another name, or a firewall?)",
}


class Cluster:
    """The workers and parameter servers of a job.

    Made by `embedded`, `local`, `of` or `from_environment`. A context manager: leaving it ends the
    processes that `Cluster.local` started, and does nothing to others.

    TensorFlow's servers listen on all interfaces of their machine, without authentication: keep
    them on a network you trust, or have them protected (`certificates`, `secure`).

    Attributes:
        kind: "embedded", "local" (this object started the processes) or "remote".
        tasks: the workers, in Caramel's order, and after them the parameter servers.
        task: the index in `tasks` of what this process is, or None for a client that is neither.
        whole: the cluster that its servers know, of which it may lack some tasks (`without`).
    """

    def __init__(
        self,
        kind: Kind,
        tasks: Sequence[Task],
        *,
        task: int | None = None,
        local: LocalTasks | None = None,
        whole: Cluster | None = None,
        relay: ClientRelay | None = None,
    ) -> None:
        self.kind = kind
        self.tasks = tuple(tasks)
        self.task = task
        self.whole = whole or self
        self._local, self._relay = local, relay

    @property
    def where(self) -> tuple[str, ...]:
        """Its kind and the hosts of its tasks, without their ports; those of servers say so."""
        hosts = ((task.address or "").rpartition(":")[0] for task in self.tasks)
        serving = ("ps " if task.job == SERVER_JOB else "" for task in self.tasks)
        return (self.kind, *map(str.__add__, serving, hosts))

    @classmethod
    def embedded(cls, n: int, *, parameter_servers: int | None = None) -> Cluster:
        """`n` workers inside this process, and so many servers. They have no addresses yet.

        Raises:
            ClusterError: a number is not a whole number of at least 1.
        """
        return cls("embedded", numbered(worker_count(n), server_count(parameter_servers)))

    @classmethod
    @checked(ClusterError, apart=("workers",))
    def of(
        cls,
        workers: Sequence[str] | Mapping[str, Any] | ClusterSpecLike,
        *,
        parameter_servers: Sequence[str] | None = None,
        task: int | None = None,
        certificates: str | os.PathLike[str] | None = None,
    ) -> Cluster:
        """Workers and servers that have been or will be started elsewhere (``caramel worker``).

        Args:
            workers: addresses ``host:port``; or a mapping from "chief", "worker" and "ps" to
                addresses; or a `tf.train.ClusterSpec` of these jobs.
            parameter_servers: addresses of the servers, where `workers` has no job ps.
            task: which of them this process is, as an index in `tasks`; None if none.
            certificates: what ``caramel certificates`` has made for this host, where all of them
                run with ``--secure``.

        Raises:
            ClusterError: an address has another form, is named twice, or has an impossible port;
                or the jobs are others; or `task` does not exist, or is to be reached by
                certificates.
            CertificateError: the certificate of this host cannot be used.
        """
        tasks = tasks_of(jobs_of(workers, parameter_servers))
        relay = None
        if certificates is not None:
            if task is not None:
                raise ClusterError(
                    "certificates are for a program that is none of the tasks: a server inside of "
                    "it could be reached by everybody; start 'caramel worker --secure' for each"
                )
            relay = ClientRelay(certificates, [task.address or "" for task in tasks])
        cluster = cls("remote", tasks, task=task, relay=relay)
        if task is not None and not 0 <= task < len(cluster.tasks):
            raise ClusterError(
                f"task {task} does not exist: the cluster has {cluster._counted}, "
                f"0 to {len(cluster.tasks) - 1}"
            )
        return cluster

    @classmethod
    @checked(ClusterError, apart=("n", "parameter_servers"), start_timeout_s=SECONDS)
    def local(
        cls,
        n: int,
        *,
        parameter_servers: int | None = None,
        start_timeout_s: float = 60.0,
        secure: bool = False,
    ) -> Cluster:
        """Start worker and server processes on this machine and wait until each listens.

        They end with `close`, when the context is left, when this object is no longer used, at
        the interpreter's exit, and soon after this process has been killed.

        Args:
            n: the number of workers.
            parameter_servers: the number of parameter servers; none by default.
            start_timeout_s: how long they may take together, in seconds.
            secure: whether nobody else can connect to them, not even other users of this machine.

        Raises:
            ClusterError: a number is not a whole number of at least 1.
            CertificateError: no certificates can be made.
            WorkerStartError: a process ended or was not listening in time; says which and what it
                wrote. No process is left.
        """
        tasks = numbered(worker_count(n), server_count(parameter_servers))
        until_s = time.monotonic() + start_timeout_s
        # A port is free only at the moment of asking: somebody else may take it before the worker
        # does.
        for races_left in reversed(range(_PORT_RACES)):
            local = LocalTasks(tasks, secure=secure)
            cluster = cls("local", local.tasks, local=local, relay=local.relay)
            try:
                cluster._wait_until_listening(range(len(tasks)), until_s, start_timeout_s)
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
    @checked(ClusterError, apart=("text",))
    def parse(
        cls,
        text: str,
        *,
        parameter_servers: str | None = None,
        certificates: str | os.PathLike[str] | None = None,
    ) -> Cluster:
        """The workers that a text describes, such as an option of a program.

        Args:
            text: "4" for workers inside this process, "local:4" for processes, which are started;
                "host:port,host:port" for workers that run; or JSON such as '{"worker":
                ["host:port"], "ps": ["host:port"]}'.
            parameter_servers: how many to make beside the workers, as text, or the addresses of
                those that run; none by default.
            certificates: of this host, if the workers run and are secure (see `of`).

        Raises:
            ClusterError: it is none of these.
            WorkerStartError: a process cannot be started.
        """
        if not isinstance(text, str):
            raise ClusterError(f"Cluster.parse takes a text such as 'local:4', not {text!r}")
        described = parse_workers(text)
        servers: Any = None
        if parameter_servers is not None:
            servers = parse_servers(parameter_servers, described)
        if described.count is None:
            return cls.of(described.jobs, parameter_servers=servers, certificates=certificates)
        if certificates is not None:
            raise ClusterError(f"certificates are for workers that run, not for '{text}'")
        make = cls.local if described.kind == "local" else cls.embedded
        return make(described.count, parameter_servers=servers)

    @classmethod
    @checked(ClusterError, apart=("parameter_servers",), base_port=at_least(1, most=65535))
    def from_environment(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        base_port: int = BASE_PORT,
        parameter_servers: int | None = None,
    ) -> Cluster:
        """The cluster this process was started in, as its launcher describes it.

        Looked for in this order: `TF_CONFIG`; Slurm's variables, unless they belong to an
        ``mpirun`` inside a Slurm job (OMPI_COMM_WORLD_SIZE is set); an MPI launcher's variables;
        torchrun's (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which count before Slurm's if
        torchrun itself has set them; Kubernetes' JOB_COMPLETION_INDEX with WORLD_SIZE. With MPI and
        torchrun this is a collective call: every rank must make it.

        An evaluator in `TF_CONFIG` is no part of the cluster: where this process is one, `task` is
        None.

        Args:
            environ: the environment; this process's own by default.
            base_port: under Slurm, the port of the first task on each machine; further tasks
                on the machine get the next ones. In Kubernetes, that of each pod.
            parameter_servers: how many ranks are parameter servers: the first ones, so that the
                next is worker 0. `TF_CONFIG` itself says who serves.

        Raises:
            ClusterError: there is no such description, or it contradicts itself or
                `parameter_servers`.
        """
        servers = server_count(parameter_servers)
        launch = read_environment(os.environ if environ is None else environ, base_port, servers)
        try:
            cluster = cls.of(launch.workers)
        except ClusterError as error:
            raise ClusterError(f"{launch.source}: {error}") from None
        if parameter_servers is not None and servers != len(cluster.servers):
            raise ClusterError(
                f"{launch.source}: the cluster has {cluster._counted}, but parameter_servers is "
                f"{servers}"
            )
        names = [(task.job, task.index) for task in cluster.tasks]
        if launch.own is None or launch.own in names:
            own = None if launch.own is None else names.index(launch.own)
            return cls("remote", cluster.tasks, task=own)
        raise ClusterError(
            f"{launch.source}: this process is task {launch.own[1]} of job {launch.own[0]}, which "
            f"the cluster does not have: {', '.join(task.device for task in cluster.tasks)}"
        )

    @classmethod
    def coerce(cls, workers: Any) -> Cluster:
        """The cluster that `workers` stands for, where only workers take part.

        Args:
            workers: a `Cluster`, returned as it is; a number of embedded workers; or what
                `Cluster.of` accepts.

        Raises:
            ClusterError: `workers` is something else, or is not valid, or has parameter servers.
        """
        cluster = cls._coerced(workers, None, None)
        if cluster.servers:
            raise ClusterError(
                f"the cluster has {counted_servers(len(cluster.servers))} "
                f"({', '.join(cluster.server_devices)}): the job ps is for training with parameter "
                "servers, which hold the variables; here each worker holds all of them. Give a "
                "cluster without the job ps, such as caramel.Cluster.local(4) or "
                "{'worker': ['host:port', ...]}"
            )
        return cluster

    @classmethod
    def coerce_with_servers(cls, workers: Any, parameter_servers: Any = None) -> Cluster:
        """The cluster of workers and parameter servers that the two arguments stand for.

        Args:
            workers: as for `coerce`; a cluster, mapping or `tf.train.ClusterSpec` may have servers.
            parameter_servers: the number of servers, embedded where `workers` is a number, too; or
                their addresses, where `workers` has none; None where `workers` says all.

        Raises:
            ClusterError: an argument is something else or is not valid, there are no servers, or
                other ones than `workers` has.
        """
        addresses = parameter_servers if is_list(parameter_servers) else None
        count = None if addresses is not None else parameter_servers
        cluster = cls._coerced(workers, addresses, count)
        if not cluster.servers:
            raise ClusterError(
                f"the cluster has {cluster._counted} and no parameter server, which is to hold the "
                "variables. Give one with the job ps, such as "
                "caramel.Cluster.local(4, parameter_servers=1) or "
                "{'worker': ['host:port', ...], 'ps': ['host:port', ...]}"
            )
        if count is not None and server_count(count) != len(cluster.servers):
            raise ClusterError(
                f"the cluster has {cluster._counted}, but parameter_servers is {count}"
            )
        return cluster

    @classmethod
    def _coerced(cls, workers: Any, addresses: Any, count: Any) -> Cluster:
        """The cluster of `workers`, and of servers at `addresses` or so many embedded ones."""
        if isinstance(workers, Cluster):
            if addresses is not None:
                raise ClusterError(
                    "the addresses of parameter servers are given beside a Cluster; name both jobs "
                    "in it"
                )
            return workers
        if isinstance(workers, numbers.Integral):
            if addresses is not None:
                raise ClusterError(
                    "the workers are inside this process, but the parameter servers have "
                    "addresses; give two numbers, or addresses of both"
                )
            return cls.embedded(worker_count(workers), parameter_servers=count)
        if is_list(workers) or isinstance(workers, Mapping | ClusterSpecLike):
            return cls.of(workers, parameter_servers=addresses)
        raise ClusterError(
            f"workers is {workers!r:.200} ({type(workers).__name__}); expected a number of workers "
            "inside this process, a list of addresses ['host:port', ...], a mapping "
            "{'worker': ['host:port', ...]}, a tf.train.ClusterSpec or a caramel.Cluster "
            "(a text such as 'local:4' or 'host:port,host:port' is read by caramel.Cluster.parse)"
        )

    @checked(ClusterError)
    def without(self, lost: Iterable[Task]) -> Cluster:
        """The cluster of all other tasks, for a new model: their servers need not start again.

        Args:
            lost: tasks of this cluster, such as `WorkerLostError.lost`.

        Raises:
            ClusterError: one is not in the cluster, this process is one, or no worker is left.
        """
        gone = tuple(lost)
        for task in gone:
            if task not in self.tasks:
                raise ClusterError(f"{task!r} is no task of {self!r}")
        own = None if self.task is None else self.tasks[self.task]
        if own in gone:
            raise ClusterError(f"this process is {self.describe(own)}, which is to be left out")
        rest = [task for task in self.tasks if task not in gone]
        if all(task.job == SERVER_JOB for task in rest):
            raise ClusterError(f"no worker is left without {self._describe_all(gone)}")
        number = None if own is None else rest.index(own)
        return Cluster(
            self.kind, rest, task=number, local=self._local, whole=self.whole, relay=self._relay
        )

    @property
    def workers(self) -> tuple[Task, ...]:
        """The tasks that compute."""
        return tuple(task for task in self.tasks if task.job != SERVER_JOB)

    @property
    def servers(self) -> tuple[Task, ...]:
        """The parameter servers; often none."""
        return self.tasks[self.size :]

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.workers)

    @property
    def devices(self) -> tuple[str, ...]:
        """The workers' device names, ``/job:worker/task:0`` and so on."""
        return tuple(task.device for task in self.workers)

    @property
    def server_devices(self) -> tuple[str, ...]:
        """The parameter servers' device names, ``/job:ps/task:0`` and so on."""
        return tuple(task.device for task in self.servers)

    def as_dict(self) -> dict[str, list[str]]:
        """Job names and addresses, as `tf.train.ClusterSpec` takes them.

        Raises:
            ClusterError: the tasks are embedded and have no addresses.
        """
        return addresses_by_job(self.tasks)

    @property
    def targets(self) -> tuple[str, ...]:
        """Where this process reaches each task, ``host:port``: its address, or the own relay.

        Raises:
            ClusterError: the own relay cannot be started, or has ended.
        """
        if self._relay is None:
            return tuple(task.address or "" for task in self.tasks)
        of_whole = self._relay.targets
        return tuple(of_whole[self.whole.tasks.index(task)] for task in self.tasks)

    @checked(ClusterError)
    def name(self, task: int) -> str:
        """What task number `task` is called: "worker 3", or "parameter server 0"."""
        return f"worker {task}" if task < self.size else f"parameter server {task - self.size}"

    @checked(ClusterError, wait_s=at_least(0, "seconds"))
    def describe(self, task: Task | int, *, wait_s: float = 0.0) -> str:
        """Which task `task` is, in words: its name, device, address, and process if known.

        Args:
            task: a task, or its index in `tasks`.
            wait_s: how long a process that is ending has to tell how it ended, in seconds.
        """
        if task not in (self.tasks if isinstance(task, Task) else range(len(self.tasks))):
            raise ClusterError(f"{task!r:.200} is no task of {self!r}")
        number = self.tasks.index(task) if isinstance(task, Task) else task
        which = self.tasks[number]
        where = f"at {which.address}" if which.address else "in this process"
        process = ""
        if self._local is not None:
            own = self.whole.tasks.index(which)
            process = f", pid {self._local.pid(own)}"
            # A process that has just broken a connection may still be ending.
            code = self._local.exit_code(own, wait_s=wait_s)
            if code is not None:
                process += f", {processes.describe_exit(code)}"
        return f"{self.name(number)} ({which.device} {where}{process})"

    @checked(ClusterError, timeout_s=SECONDS)
    def unreachable(self, timeout_s: float = _PROBE_S) -> tuple[Task, ...]:
        """The tasks that do not accept a TCP connection now, tried all at once.

        A process of `Cluster.local` that has ended counts; embedded ones never do.

        Args:
            timeout_s: how long a connection may take, in seconds.
        """
        return tuple(self._missing(timeout_s))

    @checked(ClusterError, timeout_s=SECONDS)
    def refusing(self, timeout_s: float = _PROBE_S) -> tuple[Task, ...]:
        """The tasks at whose address nobody listens now, as their hosts say, tried all at once.

        A process of `Cluster.local` that has ended counts; embedded ones never do.

        Args:
            timeout_s: how long an answer may take, in seconds.
        """
        return tuple(self._missing(timeout_s, ("refuses",)))

    def _missing(
        self, timeout_s: float, of: Container[probes.Answer] = ("refuses", "silent")
    ) -> dict[Task, str]:
        """The tasks that cannot be reached, and why, as far as it is known."""
        answers: list[tuple[probes.Answer, str]]
        if self._relay is None:
            found = probes.answers([task.address for task in self.tasks], timeout_s)
            answers = [(answer, _WHY_MISSING.get(answer, "")) for answer in found]
        else:
            numbers = [self.whole.tasks.index(task) for task in self.tasks]
            answers = self._relay.answers(numbers, timeout_s)
        return {
            task: why
            for task, (answer, why) in zip(self.tasks, answers, strict=True)
            # Where a worker has ended, another process may answer on its port.
            if answer in of or self._exit_code(task) is not None
        }

    @checked(ClusterError, timeout_s=at_least(0, "seconds"))
    def wait_until_reachable(self, timeout_s: float) -> None:
        """Wait until every task accepts TCP connections. Embedded ones always do.

        After some seconds a line in the log says which do not yet, and why.

        Args:
            timeout_s: how long to wait for all of them together, in seconds.

        Raises:
            WorkerStartError: not all of them did in time, or a process of `Cluster.local` has
                ended; names each that is missing.
        """
        start, is_logged = time.monotonic(), False
        told: tuple[Task, ...] = ()  # the missing ones that were told last
        with ExitStack() as waiting:
            while True:
                left_s = start + timeout_s - time.monotonic()
                missing = self._missing(min(_PROBE_S, max(left_s, 0.1)))
                if not missing:
                    return
                # Waiting does not help where a process has ended.
                lost = [task for task in missing if self._exit_code(task) is not None]
                if lost:
                    raise WorkerStartError(f"{self._describe_all(lost)} ended before it was needed")
                if left_s <= 0:
                    raise WorkerStartError(
                        f"{len(missing)} of {self._counted} cannot be reached after "
                        f"{time.monotonic() - start:.1f} s: {self._describe_missing(missing)}. "
                        "'caramel worker', or a launcher, starts each with the same list of "
                        "addresses"
                    )
                if not is_logged and time.monotonic() - start >= _LONG_S:
                    is_logged = True
                    _log.warning(
                        "waiting up to %.0f s for %s", timeout_s, self._describe_missing(missing)
                    )
                if tuple(missing) != told:
                    told = tuple(missing)
                    waiting.close()
                    waiting.enter_context(working(f"waiting for {self._describe_all(told)}"))
                time.sleep(min(0.2, max(left_s, 0.0)))

    @property
    def ended(self) -> tuple[Task, ...]:
        """The tasks whose processes `Cluster.local` started, and that have ended."""
        return tuple(task for task in self.tasks if self._exit_code(task) is not None)

    @checked(ClusterError, timeout_s=SECONDS)
    def restart(self, tasks: Sequence[Task], *, timeout_s: float = 60.0) -> None:
        """Start processes of `Cluster.local` again, on the same ports; those that run are killed.

        Args:
            tasks: which.
            timeout_s: how long they may take together until they listen, in seconds.

        Raises:
            ClusterError: one is none of these.
            WorkerStartError: one cannot be started, has ended, or was not listening in time.
        """
        if self._local is None:
            raise ClusterError(
                "only processes that Cluster.local has started can be started again by it; start "
                "others where you have started them"
            )
        for task in tasks:
            if task not in self.whole.tasks:
                raise ClusterError(f"{task!r:.200} is no task of {self.whole!r}")
        numbers = [self.whole.tasks.index(task) for task in tasks]
        self._local.restart(numbers)
        self.whole._wait_until_listening(numbers, time.monotonic() + timeout_s, timeout_s)

    def close(self) -> None:
        """End the processes that `Cluster.local` started; nothing else to do otherwise.

        A cluster `without` some tasks leaves them to the one from which it was made.
        """
        if self.whole is not self:
            return
        if self._relay is not None:
            self._relay.close()
        if self._local is not None:
            self._local.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.kind == "embedded":
            servers = f", parameter_servers={len(self.servers)}" if self.servers else ""
            return f"Cluster.embedded({self.size}{servers})"
        tasks = ", ".join(f"{task.device} at {task.address}" for task in self.tasks)
        own = "" if self.task is None else f", this process is {self.name(self.task)}"
        return f"<Cluster, {self.kind}: {tasks}{own}>"

    @property
    def _counted(self) -> str:
        """How many tasks of which kind there are, in words."""
        workers = f"{self.size} worker" if self.size == 1 else f"{self.size} workers"
        if not self.servers:
            return workers
        return f"{len(self.tasks)} tasks ({workers}, {counted_servers(len(self.servers))})"

    def _describe_all(self, tasks: Sequence[Task]) -> str:
        return ", ".join(self.describe(task) for task in tasks)

    def _describe_missing(self, missing: Mapping[Task, str]) -> str:
        return ", ".join(
            f"{self.describe(task)}{why and ': '}{why}" for task, why in missing.items()
        )

    def _exit_code(self, task: Task) -> int | None:
        return None if self._local is None else self._local.exit_code(self.whole.tasks.index(task))

    def _wait_until_listening(
        self, numbers: Sequence[int], until_s: float, timeout_s: float
    ) -> None:
        assert self._local is not None
        with working(f"starting {len(numbers)} of {self._counted}") as move:
            try:
                self._local.wait_until_listening(numbers, until_s, timeout_s, move)
            except NotListeningError as error:
                kind = _PortTakenError if error.is_port_taken else WorkerStartError
                raise kind(f"{self.describe(error.number)} {error}") from None


class _PortTakenError(WorkerStartError):
    """Somebody else took a task's port between its choice and its use."""
