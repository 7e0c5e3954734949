"""How much memory does each device of a placed model hold in a step: predicted, and measured?

Two workers in this process, on each of which a network may take only a share of what it needs on
one. Measured is the most that tensors take at any moment by TensorFlow's records of allocations
(`caramel.runtime.traces.held_memory`), in the median of traced steps, and the variables. Times do
not matter, so no bed is needed; in no planned order, what runs first differs between machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

import caramel
from benchmarks.pieces import run_in_pieces
from benchmarks.results import Row
from caramel.cluster.quiet_start import quiet_start
from caramel.planning.placement.planner import Order

ORDERS: tuple[Order, ...] = ("none", "schedule")
_WARM_UP = 2


@dataclass(frozen=True)
class Case:
    """A network of the papers, with small images.

    Attributes:
        share: how much of what a step needs on one device each of the two may hold.
    """

    network: str
    image: int | None
    batch: int
    share: float = 0.7


@dataclass(frozen=True)
class Settings:
    """Which networks, and how many steps are traced."""

    cases: tuple[Case, ...]
    traced: int = 5


FULL = Settings(
    (
        Case("resnet_v1_50", 64, 8),
        Case("resnet_v2_50", 64, 8),
        Case("inception_v1", 96, 16),
        Case("inception_v3", 96, 8, share=0.8),
        Case("alexnet_v2", 96, 16),
    )
)
QUICK = Settings((Case("seq_32", None, 8),), traced=1)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print a table and write a result file; returns the file.

    Args:
        only: networks; the result file keeps the others.

    Raises:
        ValueError: a network that is not in the settings.
    """
    cases = {case.network: case for case in settings.cases}
    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=list(cases),
        measure=lambda network: [
            row for order in ORDERS for row in _rows(cases[network], order, settings.traced)
        ],
        tables=markdown,
    )


def _rows(case: Case, order: Order, traced: int) -> Iterator[Row]:
    """A row for each device."""
    with quiet_start():
        from benchmarks.networks import build
    job = build(case.network, batch=case.batch, image=case.image)
    context = job.context()
    feed = job.feed()
    whole = caramel.PlacedModel(context, 1, batch_size=case.batch).memory_bytes[0]
    model = caramel.PlacedModel(
        context, 2, batch_size=case.batch, memory=case.share * whole, order=order
    )
    with model.session(trials=None) as session:
        for _ in range(_WARM_UP):
            session.step(feed)
        timelines = session.trace(traced, feed)
    placed = model.explain(timelines).placed
    assert placed is not None, "the model is placed"
    for number, device in enumerate(placed.devices):
        peaks = [t.memory[number].peak_bytes + device.variable_bytes for t in timelines]
        predicted = device.predicted.tensor_bytes or 0
        yield Row(
            {**asdict(case), "order": order, "device": number},
            tuple(timeline.step_s for timeline in timelines),
            {
                "variable_bytes": device.variable_bytes,
                "predicted_bytes": device.variable_bytes + predicted,
                "measured_bytes": peaks,
                "limit_bytes": device.limit_bytes,
            },
        )


def markdown(rows: Sequence[Row]) -> list[str]:
    """A table for docs/benchmarks."""
    heads = ("network", "image", "batch", "order", "device", "variables", "predicted", "measured")
    lines = [f"| {' | '.join((*heads, 'from', 'to', 'off'))} |", "|---" * (len(heads) + 3) + "|"]
    off = []
    for row in rows:
        measured = row.facts["measured_bytes"]
        predicted, median = row.facts["predicted_bytes"], statistics.median(measured)
        off.append(predicted / median - 1)
        sizes = (row.facts["variable_bytes"], predicted, median, min(measured), max(measured))
        what = [row.what[name] for name in ("network", "image", "batch", "order", "device")]
        cells = [*map(str, what), *(f"{size / 1e6:.1f}" for size in sizes), f"{off[-1]:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    near = sum(abs(each) <= 0.1 for each in off)
    told = f"**MB of a step by device; within 10 %: {near} of {len(off)}**"
    return [told, "", *lines]
