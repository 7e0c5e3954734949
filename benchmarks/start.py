"""What does a worker take until it listens, beside a server that a program of TensorFlow starts?

Processes start in turn, one at a time: ``caramel worker``, which loads TensorFlow's shared library
only; a program that imports TensorFlow and starts a `tf.distribute.Server`; and the same program
where TensorFlow is told to leave Keras out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.environment import QUIET, WITH_KERAS
from benchmarks.pieces import piece, warn
from benchmarks.results import Row, write
from caramel.processes import free_ports
from caramel.quiet import WITHOUT_KERAS

WORKER, SERVER, LEAN_SERVER = "caramel worker", "tf.distribute.Server", "the same without Keras"
_PROGRAM = """
import sys, tensorflow as tf
cluster = tf.train.ClusterSpec({"worker": [sys.argv[1]]})
server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
print("listens", flush=True)
server.join()
"""
_MEMORY = ("VmRSS", "RssAnon")  # all of it, and what no other process shares


@dataclass(frozen=True)
class Settings:
    """How often each process is started; before that it starts `warm_up` times, uncounted."""

    rounds: int = 10
    warm_up: int = 1


FULL = Settings()
QUICK = Settings(rounds=1, warm_up=0)


@dataclass
class _Started:
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    memory_bytes: dict[str, list[int]] = field(default_factory=lambda: {k: [] for k in _MEMORY})


def run(settings: Settings, name: str, directory: Path, console: Console) -> Path:
    """Measure, print a table and write a result file; returns the file."""
    own = piece([WORKER], (), directory / f"{name}.json", console)
    measured: dict[str, _Started] = {}
    for number in range(settings.warm_up + settings.rounds):
        for system in (WORKER, SERVER, LEAN_SERVER):
            counts = number >= settings.warm_up
            _start(system, measured.setdefault(system, _Started()) if counts else _Started())
    rows = [
        Row(
            {"network": "none", "system": system},
            tuple(each.seconds),
            {"processor_s": each.processor_s, "memory_bytes": each.memory_bytes},
        )
        for system, each in measured.items()
    ]
    described = {"command": own.command, **asdict(settings), "runs": own.all_runs()}
    path = write(name, described, rows, load=own.load, directory=directory)
    table = Table(title=f"{name}: until a process listens")
    for column in ("process", "s", "processor, s", "memory, MB", "of it its own, MB"):
        table.add_column(column, justify="right")
    for system, each in measured.items():
        times = (f"{median(each.seconds):.2f}", f"{median(each.processor_s):.2f}")
        sizes = (f"{median(each.memory_bytes[key]) / 1e6:.0f}" for key in _MEMORY)
        table.add_row(system, *times, *sizes)
    console.print(table)
    warn(own.all_runs(), console)
    console.print(f"results: {path}")
    return path


def _start(system: str, started: _Started) -> None:
    """Start a process, note what it took until it listens, and end it."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-c", _PROGRAM, address]
    if system == WORKER:
        command = [sys.executable, "-m", "caramel", "worker", "--cluster", address, "--task", "0"]
    keras: Mapping[str, str] = dict([WITHOUT_KERAS]) if system == LEAN_SERVER else WITH_KERAS
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, **QUIET, **keras},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        status = Path(f"/proc/{process.pid}/status").read_text() if line else ""
        process.kill()
    if not line:
        raise RuntimeError(f"{system} ended with {process.returncode} before it listened")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    started.seconds.append(seconds)
    started.processor_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    fields = dict(line.split(":", 1) for line in status.splitlines())
    for key, sizes in started.memory_bytes.items():
        sizes.append(int(fields[key].split()[0]) * 1024)
