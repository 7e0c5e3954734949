"""The processes of one system, seen from the measuring process."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.allreduce.member import Place
from benchmarks.environment import TENSORFLOW
from benchmarks.testbed import Host, Testbed

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 120.0
_FIRST_PORT = 5000
_NOISE = re.compile(r"[IE]0000 |WARNING: All log messages before")  # TensorFlow's, at its start
_TAIL_CHARACTERS = 2000


class SystemFailed(RuntimeError):  # noqa: N818
    """A system's process ended or did not answer; the message says what it printed."""


class System(Protocol):
    """One way to aggregate, on the hosts of a bed."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    @property
    def sleeps(self) -> bool:
        """Whether it uses no processor between its turns; else it is stopped there."""

    def available(self) -> str | None:
        """None if it can run on this machine, else why not."""

    def start(self, group: Group) -> int:
        """Start the processes; returns how many of them take orders."""

    def versions(self) -> dict[str, str]:
        """Of the software it consists of."""


class Member:
    """A process that takes orders."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._answers = connection, connection.makefile("r")

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order."""
        self._connection.sendall(f"{json.dumps(order)}\n".encode())

    def listen(self, timeout_s: float) -> dict[str, Any]:
        """The answer.

        Raises:
            TimeoutError: there is none in this time.
            EOFError: the process has ended.
        """
        if not select.select([self._answers], [], [], timeout_s)[0]:
            raise TimeoutError
        line = self._answers.readline()
        if not line:
            raise EOFError
        answer: dict[str, Any] = json.loads(line)
        return answer


class Group:
    """The running processes of a system.

    Args:
        system: which.
        bed: the hosts.
        directory: for the socket and what the processes print.
        number: of the group in its bed, from 0: groups have ports of their own.
    """

    def __init__(self, system: System, bed: Testbed, directory: Path, number: int) -> None:
        self.system, self.bed, self.failure = system, bed, ""
        self.directory = directory
        self._number, self._ports = number, 0
        self._processes: list[subprocess.Popen[Any]] = []
        self._members: list[Member] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._path = str(directory / f"{number}.socket")
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._count = system.start(self)

    # For systems

    def place(self, rank: int, **extra: Any) -> Place:
        """What the process of this rank is told."""
        return Place(rank, len(self.bed.hosts), self._path, extra)

    def command(
        self, module: str, rank: int, *, python: str = sys.executable, **extra: Any
    ) -> list[str]:
        """Runs `module` as the process of this rank."""
        return [python, "-m", module, self.place(rank, **extra).to_json()]

    def port(self) -> int:
        """A port that nobody else in the bed has."""
        self._ports += 1
        return _FIRST_PORT + 100 * self._number + self._ports

    def popen(
        self, host: Host | None, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        """Start a process; what it prints goes to a file."""
        with self._log(len(self._processes)).open("wb") as log:
            self._processes.append(
                self.bed.popen(
                    host,
                    command,
                    env={**TENSORFLOW, **(env or {})},
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    # For the driver

    def wait(self) -> None:
        """Wait until all that take orders have said so.

        Raises:
            SystemFailed: one has not.
        """
        members: dict[int, Member] = {}
        deadline = time.monotonic() + START_TIMEOUT_S
        self._listener.settimeout(0.5)
        while len(members) < self._count:
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                member = Member(connection)
                members[self._read(member)["rank"]] = member
            self._check_running()
            if time.monotonic() > deadline:
                raise self._failed(f"did not start within {START_TIMEOUT_S:.0f} s")
        self._members = [members[rank] for rank in sorted(members)]
        self.pause()

    def try_to(self, do: Callable[[], Any]) -> None:
        """Do something; if that fails, remember why."""
        try:
            do()
        except SystemFailed as failed:
            self.failure = str(failed)

    def order(self, **order: Any) -> list[dict[str, Any]]:
        """Let all do something; returns their answers in the order of ranks.

        Raises:
            SystemFailed: one did not answer.
        """
        for member in self._members:
            try:
                member.tell(order)
            except OSError:
                raise self._failed("has ended") from None
        return [self._read(member) for member in self._members]

    def pause(self) -> None:
        """The system's turn is over."""
        if not self.system.sleeps:
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The system's turn begins."""
        if not self.system.sleeps:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End all processes."""
        self._listener.close()
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def _read(self, member: Member) -> dict[str, Any]:
        try:
            return member.listen(ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise self._failed(f"did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None
        except (OSError, EOFError):
            raise self._failed("has ended") from None

    def _check_running(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise self._failed(f"a process ended with {process.returncode}")

    def _failed(self, what: str) -> SystemFailed:
        lines = []
        for number in range(len(self._processes)):
            text = self._log(number).read_text(errors="replace")
            lines += [line for line in text.splitlines() if not _NOISE.match(line)]
        return SystemFailed(
            f"{self.system.name} {what}: " + "\n".join(lines)[-_TAIL_CHARACTERS:].strip()
        )

    def _log(self, number: int) -> Path:
        return self.directory / f"{self._number}-{number}.log"
