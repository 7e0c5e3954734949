"""The process that drives a session, and whether it is still there."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Sight = Literal["there", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class Client:
    """A process of some machine.

    Attributes:
        host: the machine's name, for messages.
        boot: which time since it was switched on; empty where it is not known.
        namespaces: in which processes have numbers, and clocks a beginning (containers have their
            own).
        pid, start: its number, and when it began; numbers are given to others later on.
    """

    host: str
    boot: str
    namespaces: str
    pid: int
    start: str

    @classmethod
    def here(cls) -> Client:
        """This process."""
        pid = os.getpid()
        boot, start = "", ""
        # Not on Linux, or with another container's /proc: processes cannot be told apart.
        with suppress(OSError):
            if os.readlink("/proc/self") == str(pid):
                start = _start_of(pid)
                boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(socket.gethostname(), boot, _namespaces(), pid, start)

    def seen_by(self, other: Client) -> Sight:
        """Whether it is there, as far as this process, which is `other`, can see."""
        here = (other.boot, other.namespaces)
        if not other.boot or (self.boot, self.namespaces) != here:
            return "unknown"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "gone"
        except OSError:  # it is another user's
            pass
        try:
            return "there" if _start_of(self.pid) == self.start else "gone"
        except OSError:  # perhaps another user's, too
            return "unknown"


def _start_of(pid: int) -> str:
    """When a process began, as the system says it; empty if it has ended and nobody has noticed.

    Raises:
        OSError: there is no such process, or it may not be looked at.
    """
    # Behind the program's name, which may be anything, but ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state, start = fields[0], fields[19]
    has_ended = state in ("Z", "X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
    return "" if has_ended else start


def _namespaces() -> str:
    found = []
    for kind in ("pid", "time"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/ns/{kind}"))
    return " ".join(found)
