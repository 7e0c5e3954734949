"""Does memory grow with steps and sessions? Client and workers after many of both.

A small job trains on two worker processes. What a process has once used for steps and sessions it
keeps for the next ones, so the first of each do not count.
"""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Row

STEPS, SESSIONS, FIRST = 3000, 200, 0.2
"""How many of each, and which part of them are the first ones, that come before."""


def private_kib(pid: int) -> int:
    """The memory that a process has written for itself alone.

    What it has only read (TensorFlow's library) is its own or shared, as others run or do not.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines[1:])
    return int(fields["Private_Dirty"].split()[0])


def pids_of(cluster: Any) -> list[int]:
    """The processes of a cluster's two workers, from what it says of them."""
    told = [re.search(r"pid (\d+)", cluster.describe(worker)) for worker in (0, 1)]
    return [int(found[1]) for found in told if found is not None]


def measure(steps: int = STEPS, sessions: int = SESSIONS) -> Mapping[str, Any]:
    """KiB that the client and each worker have grown by, with steps and with sessions.

    Args:
        steps: how many, besides the first ones.
        sessions: likewise; each does a few steps and saves.
    """
    from caramel.cluster.quiet_start import quiet_start
    from caramel.native.malloc import keep_memory

    keep_memory()
    with quiet_start():
        import numpy as np
        import tensorflow as tf

    import caramel

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 64], name="x")
        w = tf1.get_variable("w", [64, 64])
        loss = tf.reduce_mean(tf.square(tf.tanh(x @ w)))
        train_op = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    batch = {"x:0": np.random.RandomState(0).rand(32, 64).astype("f")}
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    found: dict[str, Any] = {"steps": steps, "sessions": sessions}
    with tempfile.TemporaryDirectory() as directory, caramel.Cluster.local(2) as cluster:
        model = caramel.ARModel(context, cluster)
        pids = [os.getpid(), *pids_of(cluster)]

        def grown(name: str, before: list[int]) -> None:
            gc.collect()
            after = [private_kib(pid) for pid in pids]
            found[f"{name}_kib"] = [b - a for a, b in zip(before, after, strict=True)]

        def now() -> list[int]:
            gc.collect()
            return [private_kib(pid) for pid in pids]

        def use(number: int) -> None:
            with model.session() as session:
                for _ in range(5):
                    session.step(batch)
                session.save(f"{directory}/m", global_step=number, keep=2)

        with model.session() as session:
            for _ in range(int(FIRST * steps)):
                session.step(batch)
            before = now()
            for _ in range(steps):
                session.step(batch)
            grown("steps", before)
        for number in range(int(FIRST * sessions)):
            use(number)
        before = now()
        for number in range(sessions):
            use(number)
        grown("sessions", before)
    return found


def rows(found: Mapping[str, Any]) -> list[Row]:
    """What each process has grown by, in KiB, with steps and with sessions."""
    return [
        Row({"what": what, "count": found[what]}, (), {"kib": found[f"{what}_kib"]})
        for what in ("steps", "sessions")
    ]


def markdown(rows: Sequence[Row]) -> list[str]:
    """By how much client and workers have grown."""
    lines = ["| after | client, MB | workers, MB |", "|---|---|---|"]
    for row in rows:
        client, *workers = (f"{kib * 1024 / 1e6:+.2f}" for kib in row.facts["kib"])
        lines.append(
            f"| {row.what['count']:,} {row.what['what']} | {client} | {', '.join(workers)} |"
        )
    return lines
