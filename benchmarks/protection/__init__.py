"""What does it cost that strangers stay outside?

Two hosts of one core each with a link of 1 Gbit/s. A training runs on workers as they are, and on
such that are protected by relays of mutual TLS, a step of each in turn, with the same plan. With
computation that is emulated the cores are free, and relays have them; with real computation they
share them with it. And how much a relay carries for each second of a core.

| file         | what                                        |
|--------------|---------------------------------------------|
| `client`     | trains one network on both kinds of workers |
| `throughput` | bytes through two relays, on this machine   |
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.pieces import run_in_pieces
from benchmarks.protection.throughput import carried
from benchmarks.results import Row, ratio_of_medians
from benchmarks.workers import PORT, on_first_host, two_hosts, workers
from caramel.protection.certificates import make_certificates

PLAIN, SECURE = "as it is", "protected"
RELAY = "relay"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Case:
    """A network of the papers.

    Attributes:
        computation_s: of a step, if it is emulated.
    """

    network: str
    batch: int
    image: int | None = None
    computation_s: float | None = None

    @property
    def name(self) -> str:
        """What it is called in tables."""
        kind = "real" if self.computation_s is None else f"{self.computation_s:g} s emulated"
        return f"{self.network}, {kind}"


@dataclass(frozen=True)
class Settings:
    """What is measured: networks, rounds of a step of each kind, and bytes through relays."""

    cases: tuple[Case, ...]
    rounds: int = 12
    relayed_bytes: float = 1e9
    relayed_times: int = 5


FULL = Settings(
    (
        Case("resnet_v1_50", 32, computation_s=0.5),
        Case("inception_v1", 32, computation_s=0.2),
        Case("resnet_v1_50", 4, image=64),
    )
)
QUICK = Settings((Case("seq_32", 8),), rounds=3, relayed_bytes=2e7, relayed_times=1)


def run(
    settings: Settings, name: str, directory: Path, console: Console, only: Sequence[str] = ()
) -> Path:
    """Measure, print a table and write a result file; returns the file.

    Args:
        only: cases, by the names of tables, or `RELAY`; the result file keeps the others.

    Raises:
        ValueError: a case that is not in the settings.
    """
    cases = {case.name: case for case in settings.cases}

    def measure(each: str) -> list[Row]:
        return _steps(cases[each], settings.rounds) if each in cases else _relays(settings)

    return run_in_pieces(
        *(settings, name, directory, console, only),
        networks=[RELAY, *cases],
        measure=measure,
        tables=markdown,
    )


def _steps(case: Case, rounds: int) -> list[Row]:
    """A row for each kind of workers."""
    with (
        two_hosts() as (bed, plain),
        _certificates([host.address for host in bed.hosts]) as made,
        workers(bed, port=PORT + 1, certificates=made[0].parent) as secure,
    ):
        asked = {
            **asdict(case),
            "rounds": rounds,
            "workers": {PLAIN: plain, SECURE: secure},
            "certificates": str(made[0]),
        }
        found = on_first_host(bed, "benchmarks.protection.client", asked, timeout_s=TIMEOUT_S)
    same = found[PLAIN]["losses"] == found[SECURE]["losses"]
    return [
        Row(
            {"network": case.name, "workers": kind},
            tuple(found[kind]["samples_s"]),
            invalid=None if same else "losses differ",
        )
        for kind in (PLAIN, SECURE)
    ]


def _relays(settings: Settings) -> list[Row]:
    """A row for each direction, of seconds of a core."""
    with _certificates(["127.0.0.1"]) as (own,):
        found = [carried(own, settings.relayed_bytes) for _ in range(settings.relayed_times)]
    return [
        Row(
            {"network": RELAY, "way": way},
            tuple(each[way] for each in found),
            {"bytes": settings.relayed_bytes},
        )
        for way in ("in", "out")
    ]


@contextmanager
def _certificates(hosts: Sequence[str]) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as directory:
        yield make_certificates(Path(directory) / "all", hosts)


def markdown(rows: Sequence[Row]) -> list[str]:
    """Tables for docs."""
    relays = [row for row in rows if row.what["network"] == RELAY]
    lines = [
        "| relay | Gbit/s for each second of a core, median | least | most |",
        "|---" * 4 + "|",
    ]
    for row in relays:
        rates = [row.facts["bytes"] * 8e-9 / seconds for seconds in sorted(row.samples_s)]
        cells = (rates[len(rates) // 2], rates[-1], rates[0])
        lines.append(f"| {row.what['way']} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    lines += ["", "| network | as it is, s | protected, s | times as long |", "|---" * 4 + "|"]
    steps: dict[Any, dict[Any, Row]] = {}
    for row in rows:
        if row not in relays:
            steps.setdefault(row.what["network"], {})[row.what["workers"]] = row
    for name, kinds in steps.items():
        plain, secure = kinds[PLAIN], kinds[SECURE]
        ratio = ratio_of_medians(secure.samples_s, plain.samples_s)
        told = secure.invalid or str(ratio)
        lines.append(f"| {name} | {plain.median_s:.3f} | {secure.median_s:.3f} | {told} |")
    return lines
