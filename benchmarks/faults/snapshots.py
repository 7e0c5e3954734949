"""What do snapshots cost that training goes on from after a loss?

Time: two hosts of one core each with a link of 1 Gbit/s train a network in two sessions, a block of
steps of each in turn; one takes snapshots as often as it does by default. What counts is the time
of all blocks together: a snapshot makes a few steps longer.

Memory: what worker processes of this machine have allocated and not freed, without oneDNN.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.results import Row
from benchmarks.workers import measured_on_two_hosts

WITH, WITHOUT = "with snapshots", "without"
MEMORY = "memory"
TIMEOUT_S = 1800
MEMORY_STEPS = 23  # the last snapshot is not the last step


@dataclass(frozen=True)
class Case:
    """A network of the papers, and how many examples all workers together have in a step."""

    network: str
    batch: int
    image: int | None = None


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        blocks: of steps, of each session; some first ones do not count.
        variables_mib: that a worker has, when memory is measured.
    """

    cases: tuple[Case, ...]
    blocks: int = 20
    first: int = 5
    steps: int = 10
    variables_mib: int = 64


FULL = Settings((Case("inception_v1", 8, 128),))
QUICK = Settings((Case("seq_32", 8),), blocks=2, first=1, steps=2, variables_mib=4)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print a table and write a result file; returns the file.

    Args:
        only: networks, or `MEMORY`; the result file keeps the others.

    Raises:
        ValueError: a network that is not in the settings.
    """
    cases = {case.network: case for case in settings.cases}

    def measure(each: str) -> list[Row]:
        return _steps(cases[each], settings) if each in cases else [_memory(settings)]

    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=[*cases, MEMORY],
        measure=measure,
        tables=markdown,
    )


def _steps(case: Case, settings: Settings) -> list[Row]:
    """A row for each of both sessions."""
    counts = {each: getattr(settings, each) for each in ("blocks", "first", "steps")}
    asked = {**asdict(case), **counts}
    client = "benchmarks.faults.snapshots_client"
    found = measured_on_two_hosts(client, asked, timeout_s=TIMEOUT_S)
    facts = {"steps": settings.steps, "snapshots": found["snapshots"]}
    return [
        Row({"network": case.network, "session": way}, tuple(found["samples_s"][way]), facts)
        for way in (WITH, WITHOUT)
    ]


def _memory(settings: Settings) -> Row:
    """What workers have in use after each step, with snapshots and without."""
    import numpy as np

    from caramel.cluster.quiet_start import quiet_start

    with quiet_start():
        import tensorflow as tf

    import caramel

    tf1, side = tf.compat.v1, 2**10
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, side])
        values = [
            tf1.get_variable(f"w{number}", [side, side // 4])
            for number in range(settings.variables_mib)  # 1 MiB each
        ]
        loss = tf.add_n([tf.reduce_mean(tf.square(x @ value)) for value in values])
        train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    feed = {x: np.ones([4, side], "f")}
    in_use: dict[str, list[int]] = {}
    for way, recover in ((WITHOUT, None), (WITH, caramel.Recovery(snapshot_every=5))):
        with _telling_workers() as (addresses, tells):
            model = caramel.ARModel(context, addresses, planner="plain")
            with model.session(trials=None, recover=recover) as session:
                seen = []
                for _ in range(MEMORY_STEPS):
                    session.step(feed)
                    seen.append([tell() for tell in tells])
        # Single ones have parts of the next or the last step's gradients.
        in_use[way] = [int(np.median(own)) for own in zip(*seen, strict=True)]
    more = [a - b for a, b in zip(in_use[WITH], in_use[WITHOUT], strict=True)]
    facts = {"variables_bytes": settings.variables_mib * 2**20, "more_bytes": more}
    return Row({"network": MEMORY}, (), facts)


@contextmanager
def _telling_workers() -> Iterator[tuple[list[str], list[Callable[[], int]]]]:
    """Addresses of two workers on this machine, and what asks each for what it has in use."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        tells: list[Callable[[], int]] = []
        for task in range(2):
            answers, answering = os.pipe()
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.faults.memory_worker", str(answering)),
                    *("--cluster", ",".join(addresses), "--task", str(task)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[answering],
                # oneDNN keeps older values of the variables, also where there are no snapshots.
                env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
            )
            os.close(answering)
            stack.enter_context(process)
            stack.callback(process.kill)
            tells.append(partial(_asked, process, stack.enter_context(os.fdopen(answers))))
        yield addresses, tells


def _asked(process: subprocess.Popen[bytes], answers: TextIO) -> int:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    return int(answers.readline())


def markdown(rows: Sequence[Row]) -> list[str]:
    """Tables for docs."""
    lines = [
        "| network | steps | snapshots | s a step | without, s a step | times as long |",
        "|---" * 6 + "|",
    ]
    kinds: dict[Any, dict[Any, Row]] = {}
    for row in rows:
        if row.what["network"] != MEMORY:
            kinds.setdefault(row.what["network"], {})[row.what["session"]] = row
    for name, both in kinds.items():
        sums = {way: sum(row.samples_s) for way, row in both.items()}
        facts = both[WITH].facts
        steps = facts["steps"] * len(both[WITH].samples_s)
        lines.append(
            f"| {name} | {steps} | {facts['snapshots']} | {sums[WITH] / steps:.3f} "
            f"| {sums[WITHOUT] / steps:.3f} | {sums[WITH] / sums[WITHOUT]:.3f} |"
        )
    for row in rows:
        if row.what["network"] == MEMORY:
            own, more = row.facts["variables_bytes"], row.facts["more_bytes"]
            told = ", ".join(f"{each / 1e6:.0f}" for each in more)
            lines += [
                "",
                "| variables, MB | more in use on each worker with snapshots, MB |",
                "|---" * 2 + "|",
                f"| {own / 1e6:.0f} | {told} |",
            ]
    return lines
