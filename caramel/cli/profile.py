"""What ``caramel profile`` does: measures, shows how far it is, and shows what came out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from caramel.cli.user_job import UserJob
from caramel.cluster.cluster import Cluster
from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.measurements import Measurements
from caramel.core.profile import Profile
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.core.util.fingerprint import graph_hash
from caramel.core.workload import JobOutline
from caramel.planning.from_profile import outline_of
from caramel.profiling.calibration import measure_calibration
from caramel.profiling.network import measure_network
from caramel.profiling.ops import machine, profile_steps
from caramel.simulation.network_model import LARGEST_THRESHOLD, fit_network

_SLOWEST_OPS = 10
_MOST_LINKS = 12
_COSTS = {
    "reduce_s_per_byte": ("adding", "ns per byte", 1e9),
    "copy_s_per_byte": ("copying", "ns per byte", 1e9),
    "processor_s_per_message": ("a message, of one core", "ms", 1e3),
    "transfer_s": ("a transfer of nothing", "ms", 1e3),
    "request_s": ("asking for a message", "ms", 1e3),
    "processor_s_per_byte": ("sending, of one core", "ns per byte", 1e9),
    "handling_s_per_byte": ("before and after the wire", "ns per byte", 1e9),
    "message_s": ("a message, of its link", "ms", 1e3),
}
"""Costs of `Calibration`, in words, with the unit in which they are shown."""
_RESTLESS = 1.5  # 1.05 to 1.2 on a quiet machine, 1.5 to 3.4 on a busy one


def measured_profile(
    *,
    cluster: Cluster | None,
    job: UserJob | None,
    sizes: Sequence[int],
    repeats: int,
    pairs: bool | None,
    steps: int,
    device: str | None,
    use_cache: bool,
    threshold_bytes: int | None,
) -> Profile:
    """Measure the network, or the ops of a job, or both; and what transfers cost this machine.

    Raises:
        CaramelError: something that the user can correct.
    """
    graph: str | None = None
    timing: TimingTable | None = None
    outline: JobOutline | None = None
    networks: tuple[NetworkModel, ...] = ()
    measurements: tuple[Measurements, ...] = ()
    with _progress() as step_of:
        report_of = cache(step_of)  # one bar for each part

        def report(part: str, done: int, total: int) -> None:
            report_of(part)(done, total)

        if job is not None:
            move = step_of("ops of a step")
            timing = profile_steps(
                job.context,
                feed=job.feed,
                steps=steps,
                device=device,
                use_cache=use_cache,
                progress=move,
            )
            move(1, 1)  # there are no steps where an earlier result was kept
            graph = graph_hash(job.context.graph_def)
            outline = outline_of(job.context.op_graph, job.context.job, timing)
        if cluster is not None:
            measured = measure_network(
                cluster, sizes=sizes, repeats=repeats, pairs=pairs, progress=report
            )
            model = fit_network(measured, threshold_bytes=threshold_bytes)
            networks, measurements = (model,), (measured,)
        calibration = measure_calibration(progress=report)
    return Profile(
        tensorflow=tf.__version__,
        machine=machine(device),
        graph=graph,
        timing=timing,
        job=outline,
        networks=networks,
        measurements=measurements,
        calibration=calibration,
    )


def add_to(path: Path, newer: Profile) -> Profile:
    """What the profile at `path` has, if there is one, with what a newer one has."""
    return Profile.load(path).joined(newer) if path.exists() else newer


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """A function that adds a bar and returns what moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:

        def add(what: str) -> Callable[[int, int], None]:
            # A part that has nothing to do is never shown.
            bar = bars.add_task(what, total=None, visible=False)

            def move(done: int, total: int) -> None:
                bars.update(bar, completed=done, total=total, visible=True)

            return move

        yield add


# What came out ----------------------------------------------------------------------------------


def show(profile: Profile, console: Console) -> None:
    """Tables of what was measured."""

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    line(f"{profile.machine}, TensorFlow {profile.tensorflow}")
    if profile.timing is not None:
        line(_ops_line(profile.timing))
        console.print(_ops_table(profile.timing))
    measured = {each.workers: each for each in profile.measurements}
    for model in profile.networks:
        line(_network_line(model))
        console.print(_network_table(model))
        line(
            "An aggregation takes the latency, and so many ms for each MB (of several: while "
            "others are on their way). Off the line: how far what was measured is from that."
        )
        if model.workers in measured:
            console.print(_times_table(measured[model.workers]))
            if (unrest := measured[model.workers].unrest) > _RESTLESS:
                line(
                    f"the usual aggregation took {unrest:.1f} times as long as the fastest: "
                    "workers or network were busy with something else. Plans made from this will "
                    "be worse; measure again while nothing else runs"
                )
        if model.links:
            console.print(_links_table(model))
    console.print(_calibration_table(profile.calibration))


def _ops_line(timing: TimingTable) -> str:
    total_s = sum(timing.seconds.values())
    later = "" if timing.error is None else f"; of the first half of them {timing.error:.1%} more"
    return (
        f"{len(timing.seconds)} ops take {total_s * 1e3:.1f} ms together (each the least of "
        f"{timing.steps} steps{later})"
    )


def _ops_table(timing: TimingTable) -> Table:
    table = _table("slowest ops", "ms", "share")
    total_s = sum(timing.seconds.values())
    slowest = sorted(timing.seconds.items(), key=lambda item: (-item[1], item[0]))
    for name, seconds in slowest[:_SLOWEST_OPS]:
        table.add_row(name, f"{seconds * 1e3:.3f}", f"{seconds / total_s:.1%}")
    return table


def _network_line(model: NetworkModel) -> str:
    threshold = f"below {model.threshold_bytes:,} bytes latency dominates"
    if model.threshold_bytes == LARGEST_THRESHOLD:
        threshold = "all is latency"
    rate = f"{model.bytes_per_s / 1e6:,.1f} MB/s"
    asking = (
        f"; to ask for a message takes {model.request_s * 1e6:.0f} us" if model.request_s else ""
    )
    return f"{model.workers} workers: each sends {rate}; {threshold}{asking}"


def _network_table(model: NetworkModel) -> Table:
    table = _table("pattern", "latency ms", "ms per MB", "of several", "off the line")
    for pattern, cost in model.costs.items():
        off = "" if cost.residual is None else f"{cost.residual:.1%}"
        slope_ms = f"{cost.s_per_byte * 1e6 * 1e3:.2f}"
        busy_ms = "" if cost.busy_s_per_byte is None else f"{cost.busy_s_per_byte * 1e9:.2f}"
        table.add_row(pattern, f"{cost.latency_s * 1e3:.2f}", slope_ms, busy_ms, off)
    return table


def _times_table(measured: Measurements) -> Table:
    """The steps themselves, with what an empty one takes."""
    patterns = measured.patterns
    table = _table("bytes", *(f"{pattern}: least, median ms" for pattern in patterns))
    empty = measured.empty_seconds
    table.add_row("empty step", *[_least_and_median(empty)] * len(patterns))
    steps = {(t.tensors, t.size_bytes, t.pattern): t.seconds for t in measured.aggregations}
    for tensors, size in sorted({(tensors, size) for tensors, size, _ in steps}):
        cells = (_least_and_median(steps.get((tensors, size, each), ())) for each in patterns)
        many = f"{tensors} x " if tensors > 1 else ""
        table.add_row(f"{many}{size // tensors:,}", *cells)
    return table


def _least_and_median(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    return f"{min(seconds) * 1e3:.2f}  {statistics.median(seconds) * 1e3:.2f}"


def _links_table(model: NetworkModel) -> Table:
    slowest = sorted(model.links, key=lambda link: (link.bytes_per_s, link.source, link.target))
    some = len(slowest) > _MOST_LINKS
    table = _table(f"{_MOST_LINKS} slowest links" if some else "link", "MB/s", "latency ms")
    for link in slowest[:_MOST_LINKS]:
        table.add_row(
            f"{link.source} to {link.target}",
            f"{link.bytes_per_s / 1e6:,.1f}",
            f"{link.latency_s * 1e3:.2f}",
        )
    return table


def _calibration_table(calibration: Calibration) -> Table:
    """What was measured of this machine, beside the defaults."""
    table = _table("transfers cost this machine", "measured", "default")
    for name, (what, unit, units_per_s) in _COSTS.items():
        value = f"{getattr(calibration, name) * units_per_s:.3g} {unit}"
        default = f"{getattr(DEFAULT, name) * units_per_s:.3g} {unit}"
        table.add_row(what, value if name in calibration.measured else "", default)
    return table


def _table(first: str, *others: str) -> Table:
    """A table of names and numbers."""
    table = Table()
    table.add_column(first, overflow="fold", no_wrap=len(others) > 2)
    for name in others:
        table.add_column(name, justify="right")
    return table
