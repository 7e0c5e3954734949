"""Caramel workers on the hosts of a test bed, and a client program on the first of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.testbed import Testbed

PORT = 4321
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def addresses(bed: Testbed) -> list[str]:
    """Where the workers of a bed listen, one on each host."""
    return [f"{host.address}:{PORT}" for host in bed.hosts]


@contextmanager
def workers(
    bed: Testbed, *, threads: int = 1, inter_op_threads: int | None = None
) -> Iterator[list[str]]:
    """One worker process on each host, ended in the end; gives their addresses.

    Args:
        threads: intra-op threads of each worker.
        inter_op_threads: ops that each may run at once; by default as many as its host has cores.
    """
    listed = addresses(bed)
    options = ["--intra-op-threads", str(threads)]
    if inter_op_threads is not None:
        options += ["--inter-op-threads", str(inter_op_threads)]
    started = [
        bed.popen(
            host,
            [
                *(sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(listed)),
                *("--task", str(task), *options),
            ],
            env=_QUIET,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task, host in enumerate(bed.hosts)
    ]
    try:
        yield listed
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def on_first_host(
    bed: Testbed, module: str, case: Mapping[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    """Run ``python -m MODULE CASE RESULT`` on the first host; returns what it wrote.

    Raises:
        RuntimeError: the program failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        argv: Sequence[str] = [sys.executable, "-m", module, json.dumps(dict(case)), str(result)]
        process = bed.popen(
            0, argv, env=_QUIET, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output, _ = process.communicate(timeout=timeout_s)
        if process.returncode != 0 or not result.exists():
            raise RuntimeError(f"{module} failed with exit code {process.returncode}:\n{output}")
        content: dict[str, Any] = json.loads(result.read_text())
        return content
