"""How a program reaches workers that are protected: by a relay of its own, a process beside it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from caramel.cluster.addresses import host_and_port
from caramel.cluster.probes import Answer
from caramel.cluster.processes import ProcessGroup, describe_exit
from caramel.core.errors import ClusterError
from caramel.protection.credentials import Credentials, directory_of

_START_S = 60.0
_ANSWER_S = 10.0  # more than the question says


class ClientRelay:
    """The relay of this program. It is started when it is first used.

    Args:
        certificates: a directory that ``caramel certificates`` has made.
        addresses: ``host:port`` of each task's relay.

    Raises:
        CertificateError: the certificate cannot be used.
    """

    def __init__(self, certificates: str | os.PathLike[str], addresses: Sequence[str]) -> None:
        name = socket.gethostname()
        names = (name, name.partition(".")[0], "localhost")
        credentials = Credentials(directory_of(certificates, names))
        credentials.check()
        self._directory: Path = credentials.directory.absolute()
        self._places = [host_and_port(address) for address in addresses]
        self._using = threading.Lock()
        self._targets: tuple[str, ...] | None = None
        self._asked = 0  # questions

    @property
    def targets(self) -> tuple[str, ...]:
        """Where this program reaches each task: ``host:port`` on loopback, for this user only.

        Raises:
            ClusterError: the relay cannot be started, or has ended.
        """
        with self._using:
            return self._started()

    def answers(self, tasks: Sequence[int], timeout_s: float) -> list[tuple[Answer, str]]:
        """What each task answers to a connection now, and why it cannot be used.

        Args:
            tasks: their numbers.
            timeout_s: how long they may take together, in seconds.

        Raises:
            ClusterError: the relay cannot be started, or has ended.
        """
        with self._using:
            self._started()
            question = {"tasks": list(tasks), "timeout_s": timeout_s}
            found = self._ask(question, timeout_s)["answers"]
        return [(answer, why) for answer, why in found]

    def close(self) -> None:
        """End the relay, if it runs."""
        with self._using:
            if self._targets is not None:
                self._end()

    def _started(self) -> tuple[str, ...]:
        if self._targets is None:
            self._start()
            settings = {"certificates": str(self._directory), "places": self._places}
            try:
                answer = self._ask(settings, _START_S)
                if "error" in answer:
                    raise ClusterError(f"the relay of this program cannot start: {answer['error']}")
            except BaseException:
                self._end()
                raise
            self._targets = tuple(f"127.0.0.1:{port}" for port in answer["ports"])
        return self._targets

    def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            number = there.fileno()
            command = [sys.executable, "-m", "caramel.protection.client_process", str(number)]
            try:
                self._group = ProcessGroup([command], pass_fds=(number,))
            except OSError as error:
                here.close()
                raise ClusterError(f"no relay can be started: {error}") from error
        self._channel, self._lines = here, here.makefile("rw")
        self._end = weakref.finalize(self, _end, self._group, here, self._lines)

    def _ask(self, question: dict[str, Any], timeout_s: float) -> Any:
        self._channel.settimeout(timeout_s + _ANSWER_S)
        self._asked += 1
        try:
            self._lines.write(json.dumps({"number": self._asked, **question}) + "\n")
            self._lines.flush()
            # Whoever was interrupted (Ctrl-C) has left an answer that nobody has read.
            while line := self._lines.readline():
                if (answer := json.loads(line))["number"] == self._asked:
                    return answer
        except (OSError, ValueError) as error:  # the latter of what is closed
            raise self._silence(str(error)) from None
        raise self._silence("it closed the connection")

    def _silence(self, what: str) -> ClusterError:
        """The error for a relay that does not answer."""
        code, wrote = self._group.exit_code(0, wait_s=1.0), self._group.errors_tail(0)
        how = f"does not answer: {what}" if code is None else f"has ended: {describe_exit(code)}"
        return ClusterError(
            f"the relay of this program {how}. Make the cluster again{wrote and ': '}{wrote}"
        )


def _end(group: ProcessGroup, channel: socket.socket, lines: Any) -> None:
    with suppress(OSError):
        lines.close()
        channel.close()
    group.close()
