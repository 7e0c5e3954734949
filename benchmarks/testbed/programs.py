"""Programs on the hosts of a bed: how they are started, and that none of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.testbed.hosts import Host
from benchmarks.testbed.names import NAMESPACES, names_in
from benchmarks.testbed.system import BedError

ON_HOST = 'hostname "$0" && exec "$@"'


def on_host(host: Host, argv: Sequence[str]) -> list[str]:
    """The command that runs a program on a host."""
    # Each of these replaces itself by the next, so the program keeps the process id.
    enter = ["ip", "netns", "exec", host.namespace, "unshare", "--uts"]
    pin = [] if host.core is None else ["taskset", "-c", str(host.core)]
    return [*enter, "sh", "-c", ON_HOST, host.name, *pin, *argv]


def end_processes(
    bed: str, processes: Sequence[subprocess.Popen[Any]], grace_s: float = 0.0
) -> None:
    """End what runs in the namespaces of `bed`, and `processes` with their groups."""
    steps = [(signal.SIGTERM, grace_s)] if grace_s > 0 else []
    for number, wait_s in [*steps, (signal.SIGKILL, 5.0)]:
        _signal_all(bed, processes, number)
        deadline = time.monotonic() + wait_s
        while _still_running(bed, processes) and time.monotonic() < deadline:
            if number == signal.SIGKILL:  # also what was started in between
                _signal_all(bed, processes, number)
            time.sleep(0.02)
    if left := _still_running(bed, processes):
        raise BedError(f"processes that do not end: {', '.join(map(str, sorted(left)))}")


def _signal_all(
    bed: str, processes: Sequence[subprocess.Popen[Any]], number: signal.Signals
) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # its group is its own only in a session of its own
            if process.poll() is None and os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, number)
    for pid in _still_running(bed, processes):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _still_running(bed: str, processes: Sequence[subprocess.Popen[Any]]) -> set[int]:
    running = {process.pid for process in processes if process.poll() is None}
    return running | _processes_in(bed)


def _processes_in(bed: str) -> set[int]:
    """The ids of all processes in the namespaces of `bed`, without this one."""
    namespaces = set()
    for name in names_in(NAMESPACES, bed):
        with suppress(OSError):
            namespaces.add(_identity(NAMESPACES / name))
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if _identity(entry / "ns" / "net") in namespaces:
                    found.add(int(entry.name))
    return found


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino
