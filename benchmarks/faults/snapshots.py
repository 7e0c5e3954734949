"""What do snapshots cost that training goes on from after a loss?

Time: two hosts of one core each with a link of 1 Gbit/s train a network in two sessions, a block of
steps of each in turn; one takes snapshots as often as it does by default. What counts is the time
of all blocks together: a snapshot makes a few steps longer.

Memory: what worker processes of this machine have written for themselves, before the first snapshot
and after some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.faults.growth import pids_of, private_kib
from benchmarks.pieces import run_in_pieces
from benchmarks.results import Row
from benchmarks.workers import measured_on_two_hosts

WITH, WITHOUT = "with snapshots", "without"
MEMORY = "memory"
TIMEOUT_S = 1800


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
    """By how much workers have grown with snapshots."""
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
    with caramel.Cluster.local(2) as cluster:
        pids = pids_of(cluster)
        model = caramel.ARModel(context, cluster, planner="plain")
        with model.session(trials=None) as session:
            for _ in range(20):
                session.step(feed)
            before = [private_kib(pid) for pid in pids]
        recover = caramel.Recovery(snapshot_every=5)
        with model.session(trials=None, recover=recover) as session:
            for _ in range(23):
                session.step(feed)
            after = [private_kib(pid) for pid in pids]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    facts = {"variables_kib": settings.variables_mib * 1024, "grown_kib": grown}
    return Row({"network": MEMORY}, (), facts)


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
            own, grown = row.facts["variables_kib"], row.facts["grown_kib"]
            told = ", ".join(f"{each / 1024:.0f}" for each in grown)
            lines += [
                "",
                "| variables, MiB | more in each worker with snapshots, MiB |",
                "|---" * 2 + "|",
                f"| {own / 1024:.0f} | {told} |",
            ]
    return lines
