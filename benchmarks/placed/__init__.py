"""What does a model cost that is spread over two hosts, and does one train that fits on neither?

Two hosts of one core each with a link of 1 Gbit/s, a worker on each, real computation. Of each
network, a step on one device, and one that is spread because each device may hold only a share of
what that step needs; with its ops in the planned order, and in none. Then a network whose workers
are given less memory by the kernel than it needs: first all of it on one of them, then over both.

| file      | what                                                       |
|-----------|------------------------------------------------------------|
| `client`  | measures one network, in sessions that take turns          |
| `limited` | workers whose memory the kernel limits, and a client there |
| `show`    | tables                                                     |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.placed.limited import Limited
from benchmarks.placed.limited import measured as trained_in_limits
from benchmarks.placed.show import tables
from benchmarks.results import Row
from benchmarks.workers import RATE, measured_on_two_hosts

TIMEOUT_S = 600


@dataclass(frozen=True)
class Case:
    """A network of the papers.

    Attributes:
        share: how much of what a step needs on one device each of the two may hold.
        partitioner: which places it.
    """

    network: str
    batch: int
    image: int | None
    share: float = 0.6
    partitioner: str = "search"


@dataclass(frozen=True)
class Settings:
    """What is measured, in rounds of one step of each way.

    Attributes:
        traced: steps from which the profile is made, on one host.
    """

    cases: tuple[Case, ...]
    limited: Limited
    rounds: int = 12
    traced: int = 5


FULL = Settings(
    (
        Case("resnet_v2_50", 4, 128),
        Case("inception_v3", 4, 139),
        Case("alexnet_v2", 8, 128),
        Case("vgg_16", 2, 64, share=0.85),  # its largest variable alone is 74 % of all
    ),
    Limited(width=2048, layers=24, batch=8, memory_bytes=800_000_000),
)
QUICK = Settings(
    (Case("seq_32", 8, None, partitioner="mite"),),
    FULL.limited,  # of a smaller one, stacks of threads need more than tensors
    rounds=3,
    traced=2,
)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print tables, write a result file; returns it."""
    cases = {case.network: case for case in settings.cases}

    def measure(network: str) -> Iterable[Row]:
        if network in cases:
            return _measured(cases[network], settings)
        return trained_in_limits(settings.limited, RATE)

    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=[*cases, settings.limited.network],
        measure=measure,
        tables=tables,
    )


def _measured(case: Case, settings: Settings) -> list[Row]:
    """A row for each way."""
    told: dict[str, Any] = {**asdict(case), "rounds": settings.rounds, "traced": settings.traced}
    found = measured_on_two_hosts("benchmarks.placed.client", told, timeout_s=TIMEOUT_S)
    what = {"part": "step", "network": case.network, "batch": case.batch, "image": case.image}
    return [
        Row({**what, "way": way}, tuple(own.pop("samples_s")), own, own.pop("invalid"))
        for way, own in found.items()
    ]
