"""What the hosts have sent, and how busy the processors were, at the cost of reading a file.

`Testbed.counters` starts a program for each host, which would take longer than what is measured.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.testbed import INTERFACE, Testbed

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq: columns of /proc/stat


@dataclass(frozen=True)
class Reading:
    """Sums since the hosts were made or the machine was started.

    Attributes:
        sent_bytes: by each host.
        resent: segments of TCP that each host has sent again.
        timeouts: how often a connection waited in vain for an acknowledgement: for 0.2 s or more.
        busy_s: seconds that processors have worked.
        all_s: seconds that there were, of all processors.
    """

    sent_bytes: tuple[int, ...]
    resent: tuple[int, ...]
    timeouts: int
    busy_s: float
    all_s: float


class Hosts:
    """The hosts of a bed, seen through a process that sleeps on each of them."""

    def __init__(self, bed: Testbed) -> None:
        self._sleepers: Sequence[subprocess.Popen[Any]] = [
            bed.popen(host, ["sleep", "infinity"]) for host in bed.hosts
        ]

    def read(self) -> Reading:
        """The sums at this moment."""
        first = Path("/proc/stat").read_text().partition("\n")[0]
        ticks = [int(text) for text in first.split()[1:9]]
        per_s = os.sysconf("SC_CLK_TCK")
        pids = [process.pid for process in self._sleepers]
        return Reading(
            sent_bytes=tuple(map(_sent_bytes, pids)),
            resent=tuple(_tcp(pid, "snmp", "Tcp", "RetransSegs") for pid in pids),
            timeouts=sum(_tcp(pid, "netstat", "TcpExt", "TCPTimeouts") for pid in pids),
            busy_s=sum(ticks[column] for column in _BUSY) / per_s,
            all_s=sum(ticks) / per_s,
        )


def _sent_bytes(pid: int) -> int:
    """What the network namespace of a process has sent, headers included."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    raise RuntimeError(f"process {pid} is on no host")


def _tcp(pid: int, file: str, section: str, name: str) -> int:
    """A counter of the network namespace of a process."""
    # A section is a line of names and a line of numbers.
    lines = [
        line.split()[1:]
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()
        if line.startswith(f"{section}:")
    ]
    return int(dict(zip(*lines, strict=True))[name])
