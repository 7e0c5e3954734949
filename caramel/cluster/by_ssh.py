"""Workers that ssh starts on hosts, and that end with this process.

The ssh program runs ``caramel worker --joins`` on each host, with pipes to it (`joining` says what
goes through them). However this process ends, its pipes are closed by the system, and so the
workers end, too; where the network is broken they do since nothing comes any more. A worker that
ends too early is started again on the same port.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from caramel.cluster.addresses import host_and_port
from caramel.cluster.cluster import Cluster
from caramel.cluster.hosts import Host, check_reachable_names
from caramel.cluster.joining import Told, tells_port, who_it_is
from caramel.cluster.piped import PipedProgram
from caramel.cluster.processes import LISTENING, OF_SESSIONS, describe_exit
from caramel.cluster.restarts import Restarts
from caramel.core.errors import ClusterError, WorkerStartError
from caramel.core.version import __version__

START_S = 120.0
"""How long workers may take until all of them listen, in seconds."""

# Nobody can be asked anything there; and a host that is gone is found out. What the user has set
# comes first, and so counts.
SSH_OPTIONS = (
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)

_REACHABLE_S = 15.0
_SAY_EVERY_S = 10.0  # what is waited for
_JOIN_S = 10.0
_NO_MODULE = "No module named "
_OF_CARAMEL, _ERROR = "caramel: ", "caramel: error: "
_OF_SSH = 255  # the exit code of ssh for a failure of its own
_OF_SHELL = (126, 127)  # those of a shell for a program that it cannot run


@dataclass(frozen=True, slots=True)
class Start:
    """How workers are started.

    Attributes:
        ssh: the program that runs a command on a host, and its arguments.
        python: the Python on the hosts.
        environment: variables that workers get.
        restarts: how often in a row a worker is started again.
        say: told what happens to a worker, in a line.
    """

    ssh: Sequence[str]
    python: str
    environment: Mapping[str, str]
    restarts: int
    say: Callable[[str], None]

    def command(self, host: Host, port: int) -> list[str]:
        """What runs the worker of a host."""
        options = SSH_OPTIONS if os.path.basename(self.ssh[0]) == "ssh" else ()
        there = ["exec", self.python, "-m", "caramel", "worker", "--joins", str(port)]
        return [*self.ssh, *options, host.login, shlex.join(there)]


class SshWorkers:
    """Workers on hosts; a context manager that ends them.

    Args:
        jobs: the hosts of "worker", and of "ps" if there are parameter servers.
        start: how they are started.

    Attributes:
        are_untouched: whether none has ended and no session was opened on them by now.

    Raises:
        ClusterError: the hosts cannot reach each other by these names.
    """

    def __init__(self, jobs: Mapping[str, Sequence[Host]], start: Start) -> None:
        self._start, self._jobs = start, jobs
        self._changed = threading.Condition()
        every = [host for hosts in jobs.values() for host in hosts]
        check_reachable_names(every)
        self._workers = [_HostWorker(host, start, self._changed) for host in every]

    def __enter__(self) -> Cluster:
        """Start them; returns the cluster once all of them listen.

        Raises:
            WorkerStartError: one does not; names each of these hosts, and says why.
            ClusterError: two of them have one address, or this machine does not know the name of
                a host.
        """
        try:
            return self._started(time.monotonic() + START_S)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.part()
        for worker in self._workers:
            worker.end()

    @property
    def are_untouched(self) -> bool:
        return all(worker.is_untouched for worker in self._workers)

    def _started(self, deadline: float) -> Cluster:
        for worker in self._workers:
            worker.begin()
        self._wait(lambda worker: worker.address is not None, deadline)
        _check_known(self._workers)
        addresses = iter([str(worker.address) for worker in self._workers])
        jobs = {job: [next(addresses) for _ in hosts] for job, hosts in self._jobs.items()}
        cluster = Cluster.of(jobs)
        for number, worker in enumerate(self._workers):
            worker.join(cluster, number)
        self._wait(lambda worker: worker.listens, deadline)
        self._say_hints()
        try:
            cluster.wait_until_reachable(_REACHABLE_S)
        except WorkerStartError as error:
            raise WorkerStartError(
                f"{error}. They were started by ssh, and listen; their hosts have to be known to "
                "each other and to this machine by the names that were given, and no firewall may "
                "keep the ports closed"
            ) from None
        return cluster

    def _wait(self, is_so: Callable[[_HostWorker], bool], deadline: float) -> None:
        """Wait until something is so for all workers."""

        def late() -> list[_HostWorker]:
            return [worker for worker in self._workers if not (worker.failure or is_so(worker))]

        with self._changed:
            while late() and (left_s := deadline - time.monotonic()) > 0:
                if not self._changed.wait(min(left_s, _SAY_EVERY_S)) and late():
                    names = ", ".join(str(worker.host) for worker in late())
                    self._start.say(f"waiting for the workers of {names}")
            failures = [worker.failure for worker in self._workers if worker.failure]
            failures += [
                f"the worker of host '{worker.host}' did not get ready in time" for worker in late()
            ]
        if failures:
            raise WorkerStartError("; ".join(failures))

    def _say_hints(self) -> None:
        """Say what workers have said about their machines, each text once."""
        names_of: dict[str, list[str]] = {}
        for worker in self._workers:
            for hint in worker.hints:
                names_of.setdefault(hint, []).append(worker.name)
        for hint, names in names_of.items():
            self._start.say(f"{', '.join(names)}: {hint}")


def _check_known(workers: Iterable[_HostWorker]) -> None:
    """That this machine knows the hosts by their names, and not only ssh does.

    Raises:
        ClusterError: one is not known.
    """
    for host in (worker.host for worker in workers):
        try:
            socket.getaddrinfo(host.name.strip("[]"), None)
        except (OSError, UnicodeError):
            raise ClusterError(
                f"ssh reaches host '{host}', but this machine knows no such name (ssh may have it "
                "from its configuration): name it by its address, or by a name that all hosts know"
            ) from None


class _HostWorker:
    """The worker of one host, over all its starts.

    Args:
        host: where it is.
        start: how it is started.
        changed: told when one of the attributes has changed, and held meanwhile.

    Attributes:
        address: where it is going to listen; None while it is not known.
        listens: whether it has listened.
        hints: what it has said about its machine by then.
        is_untouched: whether it has not ended, and no session was opened on it.
        name: what it is called.
        failure: why it never does; empty while it may.
    """

    def __init__(self, host: Host, start: Start, changed: threading.Condition) -> None:
        self.host, self._start, self._changed = host, start, changed
        self.address: str | None = None
        self.listens, self.failure = False, ""
        self.hints: list[str] = []
        self.is_untouched = True
        self._restarts = Restarts(start.restarts)
        self.name, self._who = str(host), b""  # the latter tells it who it is
        self._connection: PipedProgram | None = None
        self._was_told = False  # its port, by this connection
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Start it.

        Raises:
            ClusterError: there is no ssh program.
        """
        self._connection = self._connected(self.host.port)
        # Signals are for the main thread: others do not even see them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def join(self, cluster: Cluster, task: int) -> None:
        """Tell it who it is."""
        assert self._connection is not None
        self.name = f"{cluster.name(task)} on {self.host}"
        self._who = who_it_is(cluster, task, self._start.environment)
        self._connection.send(self._who)

    def part(self) -> None:
        """Let it end, and do not wait for that."""
        self._change(_ends=True)  # no other connection is made from now on
        if self._connection is None:
            return
        self._connection.close_input()
        if not self._was_told:  # ssh may still try to connect, and reads nothing then
            self._connection.terminate()

    def end(self) -> None:
        """Wait until it has ended."""
        if self._connection is not None:
            self._connection.end()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _connected(self, port: int) -> PipedProgram:
        command = self._start.command(self.host, port)
        self._was_told = False
        try:
            return PipedProgram(command)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ClusterError(f"cannot start '{command[0]}': {reason}") from None

    def _run(self) -> None:
        """Follow it until it has ended and is not started again."""
        while True:
            assert self._connection is not None
            begin_s = time.monotonic()
            self._follow(self._connection)
            self.is_untouched = False
            if self._ends:
                return
            if not self.listens:
                self._change(failure=self.failure or self._why(self._connection))
                return
            self._restarts.ended(time.monotonic() - begin_s)
            if not self._start_again(_how(self._connection)):
                return

    def _follow(self, connection: PipedProgram) -> None:
        """Take up what it writes until it has ended."""
        for line, is_error in connection.lines():
            if is_error:
                self._take_up(line)
            elif not self._was_told and (told := tells_port(line)) is not None:
                self._was_told = True
                self._told(connection, told)
            elif line.startswith(_OF_CARAMEL):
                self._take_up(line)
            elif LISTENING in line and self.listens:
                self._start.say(f"{self.name}: it listens again")
            elif LISTENING in line:
                self._change(listens=True)

    def _told(self, connection: PipedProgram, told: Told) -> None:
        if told.version != __version__:
            connection.close_input()
            self._change(
                failure=f"host '{self.host}' has Caramel {told.version}, and this machine "
                f"{__version__}: install the same version"
            )
        elif self._who:  # it was started again
            connection.send(self._who)
        else:
            self._change(address=f"{self.host.name}:{told.port}")

    def _take_up(self, line: str) -> None:
        """Say what Caramel itself says there, but for whose sessions there are: the program's own.

        What TensorFlow writes is kept for errors only.
        """
        if line.startswith(OF_SESSIONS):
            self.is_untouched = False
        elif line.startswith(_OF_CARAMEL) and not line.startswith(_ERROR):
            said = line.removeprefix(_OF_CARAMEL).rstrip(".")
            if not self.listens:
                self.hints.append(said)
            elif said not in self.hints:  # it was started again
                self._start.say(f"{self.name}: {said}")

    def _start_again(self, how: str) -> bool:
        """Start it again after a while, on the same port; whether it was."""
        assert self.address is not None
        restarts = self._restarts
        if not restarts.are_left:
            self._start.say(f"{self.name} has ended ({how}); it is not started again")
            return False
        wait_s = restarts.wait_s
        restarts.done += 1
        self._start.say(
            f"{self.name} has ended ({how}); it is started again in {wait_s:g} s "
            f"(restart {restarts.done} of {restarts.most})"
        )
        with self._changed:
            if self._changed.wait_for(lambda: self._ends, wait_s):
                return False
            try:
                self._connection = self._connected(host_and_port(self.address)[1])
            except ClusterError as error:
                self._start.say(f"{self.name} is not started again: {error}")
                return False
        return True

    def _change(self, **attributes: object) -> None:
        with self._changed:
            for name, value in attributes.items():
                setattr(self, name, value)
            self._changed.notify_all()

    def _why(self, connection: PipedProgram) -> str:
        """Why it does not listen."""
        host, python, said = self.host, self._start.python, _last(connection.errors)
        where = "name by --python the one that has Caramel"
        missing = [line for line in connection.errors if _NO_MODULE in line]
        if missing:
            module = missing[-1].rpartition(_NO_MODULE)[2].strip("'")
            return (
                f"'{python}' on host '{host}' has no module '{module}': install Caramel there, or "
                f"{where}"
            )
        if not self._was_told and connection.code == _OF_SSH:
            tried = shlex.join([*self._start.ssh, host.login, "true"])
            return f"host '{host}' cannot be reached by '{tried}'{said}"
        if not self._was_told and connection.code in _OF_SHELL:
            return f"host '{host}' has no Python '{python}'{said}; {where}"
        return f"the worker on host '{host}' has ended ({_how(connection)})"


def _how(connection: PipedProgram) -> str:
    """How a worker has ended, and its last words."""
    how = describe_exit(connection.code)
    if connection.code == _OF_SSH:  # that of ssh as well for a command that a signal has ended
        how = "it was killed, or the connection broke"
    return how + _last(connection.errors)


def _last(errors: Iterable[str]) -> str:
    """The last words among what was written, to be put behind a colon; empty if there are none."""
    words = [line for line in errors if line.startswith(_ERROR) or not line.startswith(_OF_CARAMEL)]
    return f": {words[-1].removeprefix(_ERROR).rstrip('.')}" if words else ""
