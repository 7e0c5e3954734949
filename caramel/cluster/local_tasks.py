"""The processes of `Cluster.local`: one for each task, on ports of this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from caramel.cluster import processes
from caramel.cluster.client_relay import ClientRelay
from caramel.cluster.tasks import Task, addresses_by_job
from caramel.core.errors import WorkerStartError

_LOOPBACK = "127.0.0.1"
_LOOK_S = 0.05


class NotListeningError(Exception):
    """The process of a task does not listen; the message says why, and what it wrote.

    Attributes:
        number: the task's.
        is_port_taken: whether somebody else took its port between its choice and its use.
    """

    def __init__(self, number: int, what: str, errors: str) -> None:
        wrote = f"its last errors:\n{errors}" if errors else "it wrote no error"
        super().__init__(f"{what}; {wrote}")
        self.number, self.is_port_taken = number, processes.CANNOT_LISTEN in errors


class LocalTasks:
    """A process for each of some tasks.

    They end with `close`, when this object is no longer used, at the interpreter's exit, and soon
    after this process has been killed.

    Args:
        tasks: what they are.
        secure: whether nobody else can connect to them.

    Attributes:
        tasks: with their addresses.
        relay: how this process reaches them if nobody else can; None if anybody can.

    Raises:
        CertificateError: no certificates can be made.
        WorkerStartError: a process cannot be started.
    """

    def __init__(self, tasks: Sequence[Task], *, secure: bool) -> None:
        ports = processes.free_ports(len(tasks))
        self.tasks = tuple(
            replace(task, address=f"{_LOOPBACK}:{port}")
            for task, port in zip(tasks, ports, strict=True)
        )
        self.relay: ClientRelay | None = None
        with ExitStack() as held:
            certificates = None
            if secure:
                certificates = _made_certificates(held)
                addresses = [task.address or "" for task in self.tasks]
                self.relay = ClientRelay(certificates, addresses)
            self._group = self._started(certificates)
            held.callback(self._group.close)  # before the certificates, which they use
            self._held = held.pop_all()

    def _started(self, certificates: Path | None) -> processes.ProcessGroup:
        jobs = addresses_by_job(self.tasks)
        try:
            return processes.ProcessGroup(
                [
                    processes.worker_command(jobs, task.job, task.index, certificates)
                    for task in self.tasks
                ]
            )
        except OSError as error:
            raise _not_started(error) from error

    def pid(self, number: int) -> int:
        """The process id of a task, by its number."""
        return self._group.pid(number)

    def exit_code(self, number: int, *, wait_s: float = 0.0) -> int | None:
        """How the process of a task ended; see `processes.ProcessGroup`."""
        return self._group.exit_code(number, wait_s=wait_s)

    def errors_tail(self, number: int) -> str:
        """The last lines that the process of a task has written to its standard error."""
        return self._group.errors_tail(number)

    def restart(self, numbers: Sequence[int]) -> None:
        """Start the processes of some tasks again, on the same ports; those that run are killed.

        Raises:
            WorkerStartError: one cannot be started.
        """
        try:
            for number in numbers:
                self._group.restart(number)
        except OSError as error:
            raise _not_started(error) from error

    def wait_until_listening(
        self,
        numbers: Sequence[int],
        until_s: float,
        timeout_s: float,
        move: Callable[[int, int], None],
    ) -> None:
        """Wait until some tasks listen.

        Args:
            numbers: of the tasks.
            until_s: how long, by the monotonic clock.
            timeout_s: how long that was when they were started, for messages.
            move: told how many of them listen, and how many there are.

        Raises:
            NotListeningError: the process of one has ended, or was too late.
        """
        waiting = list(numbers)
        while waiting:
            for number in waiting:
                if self.exit_code(number) is not None:
                    raise self._silence(number, "ended before it listened")
            waiting = [n for n in waiting if processes.LISTENING not in self._group.output(n)]
            move(len(numbers) - len(waiting), len(numbers))
            if waiting and time.monotonic() > until_s:
                raise self._silence(waiting[0], f"did not listen within {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def _silence(self, number: int, what: str) -> NotListeningError:
        return NotListeningError(number, what, self.errors_tail(number))

    def close(self) -> None:
        """End all of them."""
        self._held.close()


def _made_certificates(held: ExitStack) -> Path:
    """New certificates for this machine, which nobody can make any more of.

    Args:
        held: removes them in the end.
    """
    from caramel.protection.certificates import AUTHORITY_KEY, make_certificates

    directory = tempfile.TemporaryDirectory(prefix="caramel-certificates-")
    root = Path(held.enter_context(directory))
    (own,) = make_certificates(root, [_LOOPBACK])
    (root / AUTHORITY_KEY).unlink()
    return own


def _not_started(error: OSError) -> WorkerStartError:
    return WorkerStartError(f"no worker process can be started: {error}")
