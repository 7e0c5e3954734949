"""Shows how a job scales: a table for each network, and a picture with a curve for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from caramel.core.util.digits import three_digits
from caramel.planning.what_if.scaling import Scaled, Setting
from caramel.planning.what_if.served import WORTH_SERVERS, Served, fastest
from caramel.report.drawing import check_drawable, save_figure
from caramel.report.units import percent_text, ratio_text

Points = Mapping[Setting, Scaled]
Compared = tuple[Setting, Scaled, Sequence[Served]]

_MARKERS = {"computation": "o", "wire": "s", "latency": "^", "processor": "D"}
_STYLES = ("-", "--", ":", "-.")
_LEAST_MARKS = 4
_FACTORS: tuple[tuple[float, ...], ...] = ((1,), (1, 2, 5))
"""Of powers of ten, at which marks are, the sparsest first."""
_MARKS = 6  # at most, where the axis is short


_SHORT_S = 0.1  # steps that are told in milliseconds


def show_curves(
    points: Points,
    console: Console,
    served: Mapping[Setting, Sequence[Served]] = MappingProxyType({}),
) -> None:
    """Print a table for each bandwidth and latency.

    Args:
        served: the same settings with parameter servers, for another table and a line that says
            which model to take.
    """
    for title, own in _curves(points):
        console.print(_table(title, own))
        compared = [(each, scaled, served[each]) for each, scaled in own if each in served]
        if compared:
            console.print(_served_table(title, compared))
            console.print(f"{advice(compared)}.\n", soft_wrap=True, highlight=False)


def _curves(points: Points) -> Iterator[tuple[str, list[tuple[Setting, Scaled]]]]:
    """Settings that differ in the number of workers only, in the order in which they are given."""
    # Workers change fastest in the order of the settings.
    found = groupby(points.items(), key=lambda item: (item[0].bits_per_s, item[0].latency_s))
    for (bits_per_s, latency_s), own in found:
        yield f"{_rate_text(bits_per_s)}, {_time_text(latency_s)}", list(own)


def _table(title: str, own: list[tuple[Setting, Scaled]]) -> Table:
    """Steps in seconds, or in milliseconds if all are short; narrow enough for 80 columns."""
    longest_s = max(s for _, scaled in own for s in (scaled.planned_s, *scaled.plain_s.values()))
    unit, factor = ("ms", 1e3) if longest_s < _SHORT_S else ("s", 1.0)
    table = Table(
        title=f"{title}; steps in {unit}, not planned by pattern, and planned",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    patterns = list(own[0][1].plain_s)
    table.add_column("workers", justify="right")
    for name in (*patterns, "planned", "speedup", "of ideal"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("best pattern")
    table.add_column("limited by")
    for setting, scaled in own:
        table.add_row(
            str(setting.workers),
            *(three_digits(factor * scaled.plain_s[name]) for name in patterns),
            three_digits(factor * scaled.planned_s),
            ratio_text(scaled.speedup),
            percent_text(scaled.efficiency),
            scaled.pattern.replace("_", " "),
            scaled.limited_by,
        )
    return table


def _served_table(title: str, compared: Sequence[Compared]) -> Table:
    """Steps of both models in seconds, and how many batches all workers train on in a second."""
    table = Table(
        title=f"{title}; steps in s with parameter servers, and batches/s",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for name in ("workers", "servers", "no order", "ordered", "ahead", "PSModel/s"):
        table.add_column(name, justify="right")
    for name in ("ARModel", "ARModel/s", "PS/AR"):
        table.add_column(name, justify="right")
    for setting, scaled, served in compared:
        for each in served:
            table.add_row(
                str(setting.workers),
                str(each.servers),
                *map(three_digits, (each.unordered_s, each.ordered_s, each.ahead_s)),
                three_digits(setting.workers / each.step_s),
                three_digits(scaled.step_s),
                three_digits(setting.workers / scaled.step_s),
                ratio_text(scaled.step_s / each.step_s),
            )
    return table


def advice(compared: Sequence[Compared]) -> str:
    """Which model to take, and by how much it is faster, without a full stop.

    Numbers of workers that follow each other and get the same answer are told together.
    """
    told = []
    for answer, own in groupby(compared, key=_answer):
        settings = list(own)
        served = [fastest(each) for _, _, each in settings]
        ratios = [
            scaled.step_s / s.step_s for (_, scaled, _), s in zip(settings, served, strict=True)
        ]
        with_servers = f"PSModel with {_count_text([each.servers for each in served])}"
        if answer == "PSModel":
            how = f"take {with_servers}, {_times_text(ratios)} as fast as ARModel"
        elif answer == "ARModel":
            slower = [1 / ratio for ratio in ratios]
            how = f"take ARModel, {_times_text(slower)} as fast as {with_servers}"
        else:
            how = f"take ARModel: {with_servers} is about as fast"
        counts = [str(setting.workers) for setting, _, _ in settings]
        told.append(f"{_range_text(counts)} workers: {how}")
    return "; ".join(told)


def _answer(compared: Compared) -> str:
    """The model that is faster; "" if none is by more than is worth mentioning."""
    _, scaled, served = compared
    ratio = fastest(served).step_s / scaled.step_s
    if ratio <= WORTH_SERVERS:
        return "PSModel"
    return "ARModel" if ratio >= 1 / WORTH_SERVERS else ""


def _count_text(servers: Sequence[int]) -> str:
    counts = sorted(servers)
    return f"{_range_text([str(n) for n in counts])} server{'s' if counts[-1] > 1 else ''}"


def _times_text(ratios: Sequence[float]) -> str:
    return f"{_range_text([f'{ratio:.2g}' for ratio in sorted(ratios)])} times"


def _range_text(values: Sequence[str]) -> str:
    """From the first to the last one, of which there may be one only."""
    return " to ".join(dict.fromkeys((values[0], values[-1])))


def draw_curves(points: Points, path: Path) -> None:
    """Draw speedups and step times over the number of workers into a file.

    A colour stands for a bandwidth and a line's style for a latency; the form of a point says which
    resource limits the step there.

    Raises:
        CaramelError: the file's name has another ending, or matplotlib is missing.
    """
    check_drawable(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    speedups, steps = figure.subplots(1, 2)
    counts = sorted({setting.workers for setting in points})
    rates = list(dict.fromkeys(setting.bits_per_s for setting in points))
    latencies = list(dict.fromkeys(setting.latency_s for setting in points))
    speedups.plot(counts, counts, color="0.6", linewidth=1, label="as many times as workers")
    for title, own in _curves(points):
        first = own[0][0]
        look = {
            "color": f"C{rates.index(first.bits_per_s)}",
            "linestyle": _STYLES[latencies.index(first.latency_s) % len(_STYLES)],
        }
        workers = [setting.workers for setting, _ in own]
        speedups.plot(workers, [each.speedup for _, each in own], label=title, **look)
        steps.plot(workers, [each.step_s for _, each in own], **look)
        for setting, each in own:
            for ax, value in ((speedups, each.speedup), (steps, each.step_s)):
                marker = _MARKERS[each.limited_by]
                ax.plot(setting.workers, value, marker=marker, color=look["color"])
    speedups.set(ylabel="speedup against one worker")
    steps.set(ylabel="step, s")
    for ax in (speedups, steps):
        ax.set(xscale="log", yscale="log", xlabel="workers")
        ax.set_xticks(counts, [str(count) for count in counts])
        marks = round_numbers(*ax.get_ylim())
        ax.set_yticks(marks, [f"{mark:,g}" for mark in marks])
        # Else a logarithmic axis has marks between these, with powers of ten.
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    speedups.legend(fontsize=8)
    _add_markers(steps, {each.limited_by for each in points.values()})
    save_figure(figure, path)


def round_numbers(low: float, high: float) -> list[float]:
    """Marks of a logarithmic axis: round numbers, some three to ten of them."""
    for factors in _FACTORS:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [factor * 10.0**power for power in powers for factor in factors]
        marks = [float(f"{mark:.6g}") for mark in found if low <= mark <= high]
        if len(marks) >= _LEAST_MARKS:
            return marks
    # It is so short that it is nearly a linear one.
    rough = (high - low) / _MARKS
    unit = 10.0 ** math.floor(math.log10(rough))
    apart = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    numbers = range(math.ceil(low / apart), math.floor(high / apart) + 1)
    return [float(f"{number * apart:.6g}") for number in numbers]


def _add_markers(ax: Any, used: set[str]) -> None:
    """What the forms of points mean."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color="0.4", marker=marker, linestyle="", label=f"limited by {name}")
        for name, marker in _MARKERS.items()
        if name in used
    ]
    ax.legend(handles=marks, fontsize=8)


def _rate_text(bits_per_s: float | None) -> str:
    if bits_per_s is None:
        return "rates of the hosts"
    if bits_per_s >= 1e9:
        return f"{_number(bits_per_s / 1e9)} Gbit/s"
    return f"{_number(bits_per_s / 1e6)} Mbit/s"


def _time_text(seconds: float) -> str:
    return f"{_number(seconds * 1e3)} ms"


def _number(value: float) -> str:
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
