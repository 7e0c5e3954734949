"""Measures all systems in turn: A B C A B C ..., so that what slows the machine hits them alike.

All processes of all systems run at the same time, but only one system has its turn. What is timed
is what worker 0 sees: from the call until its step is over. Steps follow each other without a
pause, so one that is late on another worker makes the next one late. Caramel's and the parameter
server's steps end when the mean is on all workers.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.allreduce import drawing, report, systems, validity
from benchmarks.allreduce.group import Group, SystemFailed
from benchmarks.allreduce.hosts import Hosts
from benchmarks.allreduce.member import mean_factor
from benchmarks.allreduce.settings import Network, Settings, Turns, turns, wire_limit_s
from benchmarks.allreduce.systems.caramel_plain import System as Caramel
from benchmarks.results import Row, busy_share, is_loaded, load_of_others, write
from benchmarks.testbed import Testbed

FAST = "20gbit"  # while tensors are made and filled


@dataclass
class Series:
    """What is measured of one cell at one size."""

    group: Group
    cell: str
    error: float = float("nan")
    samples_s: list[float] = field(default_factory=list)
    steps: int = 0
    sent_bytes: list[int] = field(default_factory=list)
    resent: list[int] = field(default_factory=list)
    timeouts: int = 0
    busy_s: float = 0.0
    all_s: float = 0.0
    failure: str = ""

    @property
    def pattern(self) -> str | None:
        """Caramel's pattern; peers have none."""
        return self.cell.split()[0] if self.cell else None

    @property
    def depth(self) -> int | None:
        """Caramel's depth."""
        return int(self.cell.split()[1]) if self.cell else None


def run(settings: Settings, name: str, directory: Path, console: Console, *, add: bool) -> Path:
    """Measure everything, print a table, write a result file and figures; returns the file.

    The result file is written after each size, so what was measured is not lost.

    Args:
        settings: what is measured.
        name: of the files.
        directory: where they go.
        console: for the table.
        add: keep what the result file has of other numbers of workers and sizes.
    """
    load, busy = load_of_others(), busy_share(2.0)
    if is_loaded(busy):
        console.print(f"[yellow]others use {busy:.0%} of this machine's processors[/yellow]")
    found, absent = _available(settings)
    path = directory / f"{name}.json"
    before = json.loads(path.read_text()) if add and path.exists() else None
    described = _described(settings, found, load, busy)
    date = described["runs"][0]["date"]
    new: list[Row] = []
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        for network in settings.networks:
            task = progress.add_task(f"{network.workers} workers", total=1)
            new += [_absent_row(network, system, reason) for system, reason in absent.items()]
            for measured in _measure_network(network, settings, found, progress, task):
                new += [replace(row, facts={**row.facts, "run": date}) for row in measured]
                rows, complete = merged(before, new, described)
                write(name, complete, rows, load=load, directory=directory)
    console.width = max(console.width, report.WIDTH)
    console.print(report.table(rows, name))
    for each in complete["runs"]:
        if each["loaded"]:
            console.print(f"[yellow]the machine was loaded at {each['date']}[/yellow]")
    for figure in drawing.draw(rows, path):
        console.print(f"figure: {figure}")
    console.print(f"results: {path}")
    return path


def _described(
    settings: Settings, found: Sequence[Any], load: float, busy: float
) -> dict[str, Any]:
    """What a result file says of this run."""
    command = " ".join(["python", "-m", "benchmarks", *sys.argv[1:]])
    run = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": command,
        "networks": [asdict(network) for network in settings.networks],
        "load_before_per_core": round(load, 2),
        "busy_before": round(busy, 2),
        "loaded": is_loaded(busy),
    }
    return {
        "command": command,
        "depths": settings.depths,
        "patterns": settings.patterns,
        "peers": settings.peers,
        "rounds": settings.rounds,
        "versions": {k: v for system in found for k, v in system.versions().items()},
        "runs": [run],
    }


def merged(
    before: Mapping[str, Any] | None, new: Sequence[Row], described: Mapping[str, Any]
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a run, and those of an earlier result file that it has not measured again.

    Each row says by a date which of the `runs` it is from.
    """
    if before is None:
        return list(new), dict(described)
    measured = {_place(row) for row in new}
    kept = [row for row in (Row(**each) for each in before["rows"]) if _place(row) not in measured]
    dates = {row.facts.get("run") for row in kept}
    runs = [run for run in before["settings"]["runs"] if run["date"] in dates]
    return sorted([*kept, *new], key=_place), {**described, "runs": [*runs, *described["runs"]]}


def _place(row: Row) -> tuple[int, int]:
    """Where a row stands; those of systems that are not installed have no size."""
    return row.what["workers"], row.what["size_bytes"] or 0


def _available(settings: Settings) -> tuple[list[Any], dict[str, str]]:
    """The systems that can run, and for the others why not."""
    found: list[Any] = [Caramel(settings.patterns, settings.depths)]
    absent = {}
    for name in settings.peers:
        system = systems.get(name)
        reason = system.available()
        if reason is None:
            found.append(system)
        else:
            absent[system.name] = reason
    return found, absent


def _absent_row(network: Network, system: str, reason: str) -> Row:
    what = {"workers": network.workers, "size_bytes": None, "system": system}
    return Row({**what, "pattern": None, "depth": None}, (), invalid=reason)


def _measure_network(
    network: Network, settings: Settings, found: Sequence[Any], progress: Progress, task: TaskID
) -> Iterator[list[Row]]:
    """The rows of each size on one network."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # With more than two hosts, several could send to one at the same time.
        bed = stack.enter_context(
            Testbed(network.workers, network.rate, pin_cores=True, both_ways=True)
        )
        hosts = Hosts(bed)
        groups = []
        for number, system in enumerate(found):
            group = Group(system, bed, directory, number)
            stack.callback(group.end)
            group.try_to(group.wait)  # one after the other: there are few cores
            groups.append(group)
        limits_s = [wire_limit_s(size, network) for size in network.sizes_bytes]
        progress.update(task, total=sum(map(_weight, limits_s)))
        for size_bytes, limit_s in zip(network.sizes_bytes, limits_s, strict=True):
            turn = turns(limit_s, settings.rounds)
            many = _make(bed, groups, size_bytes, network)
            for number in range(turn.rounds + turn.warm_up):
                for series in many:
                    _take_turn(series, turn, hosts, counted=number >= turn.warm_up)
                progress.advance(task, _weight(limit_s) / (turn.rounds + turn.warm_up))
            yield [_row(series, size_bytes, network) for series in many]


def _weight(limit_s: float) -> float:
    """How much of the time a size takes, roughly."""
    return 0.3 + limit_s


def _make(bed: Testbed, groups: Sequence[Group], size_bytes: int, network: Network) -> list[Series]:
    """The cells of all systems at one size, each checked."""
    for host in bed.hosts:
        bed.set_rate(host, FAST)
    many = []
    for group in groups:
        if group.failure:
            many.append(Series(group, "", failure=group.failure))
            continue
        group.resume()
        try:
            cells = group.order(do="make", elements=max(1, size_bytes // 4))[0]["cells"]
            for cell in cells:
                answers = group.order(do="check", cell=cell)
                error = max(answer["error"] for answer in answers) / mean_factor(network.workers)
                many.append(Series(group, cell, error))
        except SystemFailed as failed:
            group.failure = str(failed)
            many.append(Series(group, "", failure=group.failure))
        group.pause()
    for host in bed.hosts:
        bed.set_rate(host, network.rate)
    return many


def _take_turn(series: Series, turn: Turns, hosts: Hosts, *, counted: bool) -> None:
    """Some steps of one cell."""
    group = series.group
    series.failure = series.failure or group.failure
    if series.failure:
        return
    group.resume()
    before = hosts.read()
    try:
        answers = group.order(
            do="run", cell=series.cell, untimed=turn.untimed, timed=turn.timed if counted else 1
        )
    except SystemFailed as failed:
        series.failure = group.failure = str(failed)
        return
    after = hosts.read()
    group.pause()
    if not counted:
        return
    series.samples_s += answers[0]["samples_s"]
    series.steps += turn.untimed + turn.timed
    series.sent_bytes = _added(series.sent_bytes, before.sent_bytes, after.sent_bytes)
    series.resent = _added(series.resent, before.resent, after.resent)
    series.timeouts += after.timeouts - before.timeouts
    series.busy_s += after.busy_s - before.busy_s
    series.all_s += after.all_s - before.all_s


def _added(sums: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """What was counted so far, and what came between two readings."""
    known = sums or [0] * len(before)
    return [total + new - old for total, old, new in zip(known, before, after, strict=True)]


def _row(series: Series, size_bytes: int, network: Network) -> Row:
    system = series.group.system.name
    what = {
        "workers": network.workers,
        "size_bytes": size_bytes,
        "system": system,
        "pattern": series.pattern,
        "depth": series.depth,
    }
    if series.failure:
        return Row(what, (), invalid=series.failure)
    sent = [total / series.steps for total in series.sent_bytes]
    needed = validity.needed_bytes(system, size_bytes, network.workers)
    return Row(
        what,
        tuple(series.samples_s),
        facts={
            "wire_limit_s": wire_limit_s(size_bytes, network),
            "sent_bytes": sent,
            "needed_bytes": needed,
            "error": series.error,
            "tcp_segments_resent": series.resent,
            "tcp_timeouts": series.timeouts,
            "processors_busy": round(series.busy_s / series.all_s, 3) if series.all_s else None,
        },
        invalid=validity.problem(
            error=series.error,
            sent_bytes=sent,
            needed=needed,
            resent=[count / series.steps for count in series.resent],
            depth=series.depth or 1,
        ),
    )
