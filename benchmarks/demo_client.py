"""Trains one network in two ways in turns, and shows it live: ``python -m ... CASE``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

import caramel
from caramel.cluster.quiet_start import quiet_start

with Console().status("loading TensorFlow"), quiet_start():
    from sklearn.datasets import load_digits

    from benchmarks import networks

PLAIN, PLANNED = "without a plan", "with Caramel's plan"
WARM_UP = 2
TRACED = 2
_WIDTH = 16  # characters of the longest bar


def batches(job: networks.Job, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Digits, as large as the network's images, in a new order again and again."""
    digits = load_digits()
    random = np.random.default_rng(0)
    examples, labels = job.inputs
    _, height, width, _ = job.inputs[examples]
    rows = np.arange(height) * 8 // height
    columns = np.arange(width) * 8 // width
    while True:
        chosen = random.integers(0, len(digits.target), size)
        images = digits.images[chosen][:, rows][:, :, columns, np.newaxis] / 16
        yield {
            examples: np.broadcast_to(images, (size, height, width, 3)).astype(np.float32),
            labels: digits.target[chosen].astype(np.int32),
        }


def run(case: Mapping[str, Any], console: Console) -> None:
    """Show it on a console; the last line says how much faster steps are."""
    job = networks.build(case["network"], batch=case["batch"], dropout=0.0)
    context, data = job.context(), batches(job, case["batch"])
    with ExitStack() as stack:
        with console.status("preparing: workers, graphs, a measurement and a plan"):
            plain = caramel.ARModel(context, case["workers"], planner="plain")
            sessions = {PLAIN: stack.enter_context(plain.session(trials=None, stalls=None))}
            feed = next(data)
            for _ in range(WARM_UP):
                sessions[PLAIN].step(feed)
            profile = sessions[PLAIN].profile(TRACED, feed)
            planned = caramel.ARModel(context, case["workers"], profile=profile)
            # From the same initial values, which the network's seed gives.
            sessions[PLANNED] = stack.enter_context(planned.session(trials=None, stalls=None))
            for _ in range(WARM_UP + TRACED):  # so that both have done the same
                sessions[PLANNED].step(feed)
        samples_s: dict[str, list[float]] = {way: [] for way in sessions}
        losses: dict[str, float] = {}
        end_s = time.monotonic() + case["seconds"]
        with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
            while time.monotonic() < end_s:
                feed = next(data)
                for way, session in sessions.items():
                    begin_s = time.perf_counter()
                    losses[way] = float(session.step(feed))
                    samples_s[way].append(time.perf_counter() - begin_s)
                live.update(table(samples_s, losses, case["batch"]))
    if not console.is_terminal:
        console.print(table(samples_s, losses, case["batch"]))
    medians = {way: median(own) for way, own in samples_s.items()}
    console.print(
        f"{medians[PLAIN] / medians[PLANNED]:.2f} times as fast with a plan: "
        f"{medians[PLANNED]:.2f} s a step instead of {medians[PLAIN]:.2f} s. Both have trained on "
        "the same digits."
    )


def table(samples_s: Mapping[str, list[float]], losses: Mapping[str, float], batch: int) -> Table:
    """How far both ways are."""
    found = Table(show_edge=False)
    found.add_column("", no_wrap=True)
    for column in ("steps", "s/step", "images/s", "loss"):
        found.add_column(column, justify="right", no_wrap=True)
    found.add_column("", no_wrap=True)
    best = max(1 / median(own) for own in samples_s.values())
    for way, own in samples_s.items():
        rate = 1 / median(own)
        found.add_row(
            way,
            str(len(own)),
            f"{median(own):.2f}",
            f"{batch * rate:.1f}",
            f"{losses[way]:.4f}",
            "█" * max(1, round(_WIDTH * rate / best)),
        )
    return found


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), Console())
