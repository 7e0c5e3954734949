"""Worker processes and other children of a test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

WORKER = (sys.executable, "-m", "caramel", "worker")


def wait_for(condition, timeout_s: float = 60.0) -> bool:
    """Whether a condition has come to hold, by the time in which even a busy machine gets there."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


@contextmanager
def started(*command: str, how=subprocess.Popen, **environ: str):
    """A child process whose output is read; it does not survive the test."""
    process = how(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def worker_pid(cluster, worker):
    return int(cluster.describe(worker).partition("pid ")[2].partition(")")[0].partition(",")[0])
