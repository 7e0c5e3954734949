"""A group of child processes that cannot outlive the process that started it.

`Cluster.local` runs its tasks in such a group.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PARENT_POLL_S = 0.3
"""How often a worker looks whether its parent is still there, in seconds."""

LISTENING = "listening on"
"""In the line that a worker prints once it listens; what starts it waits for these words."""

CANNOT_LISTEN = "cannot listen on"
"""In the error of a worker whose port is taken; what started it then tries other ports."""

OF_SESSIONS = "caramel: session "
"""With what the lines of a worker begin that tell who opens sessions there, and closes them."""


def worker_command(
    jobs: Mapping[str, Sequence[str]],
    job: str,
    task: int,
    certificates: Path | None = None,
) -> list[str]:
    """The command that runs task `task` of `job` for as long as this process lives.

    Args:
        jobs: the addresses of "worker", and of "ps" if there are parameter servers.
        job, task: which of them it is.
        certificates: those that it uses if strangers are to stay outside.
    """
    return [
        *(sys.executable, "-m", "caramel", "worker"),
        *("--cluster", ",".join(jobs["worker"])),
        *(("--ps", ",".join(jobs["ps"])) if "ps" in jobs else ()),
        *("--job", job, "--task", str(task)),
        *("--parent-pid", str(os.getpid())),
        *(("--secure", "--certificates", str(certificates)) if certificates is not None else ()),
    ]


def parent_has_gone(parent_pid: int | None) -> bool:
    """Whether this process has lost the parent `parent_pid`; never so where that is None."""
    # The system gives an orphan another parent.
    return parent_pid is not None and os.getppid() != parent_pid


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nobody uses on any interface at this moment.

    They are not reserved: another process can take one before it is used (*port race*).
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            # All stay open until all are chosen, so that they differ.
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def describe_exit(exit_code: int | None) -> str:
    """How a process ended, in words. `exit_code` is as in `subprocess.Popen.returncode`."""
    if exit_code is None:
        return "running"
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exited with code {exit_code}"


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]


class ProcessGroup:
    """Child processes that are started together and end together, at the latest with this one.

    They end with `close`, when the group is garbage-collected, at the interpreter's exit, and when
    the parent dies, however that came about: each worker is told its parent's process id and
    watches it (`parent_has_gone`).
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        grace_s: float = 3.0,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start one process per command.

        Args:
            commands: the program and arguments of each process.
            grace_s: seconds between SIGTERM and SIGKILL when the group is closed.
            pass_fds: open files that each inherits.

        Raises:
            OSError: a program cannot be started. Those already started have been ended.
        """
        self._commands, self._pass_fds = [list(command) for command in commands], pass_fds
        self._children: list[_Child] = []
        self._end = weakref.finalize(self, _end, self._children, os.getpid(), grace_s)
        try:
            for command in self._commands:
                self._children.append(_start(command, pass_fds))
        except BaseException:
            self.close()
            raise

    def pid(self, index: int) -> int:
        """The process id of child `index`."""
        return self._children[index].process.pid

    def exit_code(self, index: int, *, wait_s: float = 0.0) -> int | None:
        """How child `index` ended: its exit code, minus the signal, or None while it runs.

        Args:
            wait_s: how long to wait for its end, in seconds.
        """
        try:
            return self._children[index].process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def output(self, index: int) -> str:
        """What child `index` has written to its standard output; empty once closed."""
        return _content(self._children[index].output)

    def errors_tail(self, index: int, *, lines: int = 20) -> str:
        """The last lines child `index` has written to its standard error; empty once closed."""
        return "\n".join(_content(self._children[index].errors).splitlines()[-lines:])

    def restart(self, index: int) -> None:
        """End child `index` at once, if it still runs, and start it again.

        Raises:
            OSError: it cannot be started.
        """
        child = self._children[index]
        child.process.kill()
        child.process.wait()
        child.output.close()
        child.errors.close()
        self._children[index] = _start(self._commands[index], self._pass_fds)

    def close(self) -> None:
        """End all children and wait until they have gone. A second call does nothing."""
        self._end()


def _start(command: Sequence[str], pass_fds: Sequence[int]) -> _Child:
    # Files without a name: a child is never blocked by a full pipe, and nothing is left behind.
    # Opened for reading too; `_content` must leave alone the position, which the child shares.
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        # Ctrl-C in a terminal reaches the parent only, which can then still save what it has.
        start_new_session=True,
        pass_fds=pass_fds,
    )
    return _Child(process, output, errors)


def _content(file: IO[bytes], *, most_bytes: int = 1 << 20) -> str:
    if file.closed:
        return ""
    size = os.fstat(file.fileno()).st_size
    offset = max(0, size - most_bytes)
    return os.pread(file.fileno(), size - offset, offset).decode(errors="replace")


def _end(children: list[_Child], owner_pid: int, grace_s: float) -> None:
    if os.getpid() != owner_pid:  # a fork of the owner: they are not its children
        return
    deadline = time.monotonic() + grace_s
    try:
        for child in children:
            child.process.terminate()
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also when the wait is interrupted
        for child in children:
            child.process.kill()
            child.process.wait()
            child.output.close()
            child.errors.close()
