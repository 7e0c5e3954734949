"""Draws timelines: what every worker computes, adds up, sends and receives, over milliseconds.

`timeline_svg` needs nothing and gives a small picture for a page; `draw_timelines` writes a file
with matplotlib.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from caramel.core.errors import CaramelError, FileError
from caramel.core.names import group_of
from caramel.core.timeline import Resource, Timeline
from caramel.report.layout import Bar, Row, Steps, in_sequence, rows
from caramel.report.units import seconds_text
from caramel.report.words import host_text

COLOURS: Mapping[Resource, str] = {
    "compute": "#4e79a7",
    "reduce": "#76b7b2",
    "send": "#f28e2b",
    "receive": "#b07aa1",
}
DEFERRED_COLOURS: Mapping[Resource, str] = {
    "compute": "#1f3d63",
    "reduce": "#2e6e69",
    "send": "#a84a00",
    "receive": "#5c2f55",
}
"""Of what belongs to a group that is aggregated in the next step."""

PICTURES = (".svg", ".png", ".pdf")
"""What the names of pictures end in."""

_MOST_LANES = 6
_MOST_BARS = 3000  # beside each other in a file
_MOST_ROWS = 96  # of several steps below each other


def _colour(bar: Bar, deferred: Collection[str]) -> str:
    span = bar.longest
    is_deferred = (group_of(span.name) or span.name) in deferred
    return (DEFERRED_COLOURS if is_deferred else COLOURS)[span.resource]


def _joined_steps(steps: Steps) -> Timeline:
    return Timeline(tuple(span for step in in_sequence(steps) for span in step.spans))


# SVG --------------------------------------------------------------------------------------------

_MOST_BYTES = 250_000
_LEAST_PX = 0.5
_LABEL_PX = 64
_ROW_PX, _PITCH_PX, _HEAD_PX, _AXIS_PX = 14, 17, 18, 26
_PX_PER_TICK = 90


def timeline_svg(
    timeline: Timeline,
    *,
    width_px: int = 960,
    until_s: float | None = None,
    deferred: Collection[str] = (),
) -> str:
    """A picture of a step as an SVG element that can stand alone or in a page.

    Every bar says what it is when it is pointed at. Spans too thin to be seen are joined, the more
    of them the more there are, so that the picture stays below some 250 KB.

    Args:
        timeline: of one step.
        width_px: how wide it is, in pixels.
        until_s: how far the axis goes, so that pictures below each other have one scale; by
            default to the end of the step.
        deferred: names of the groups that are aggregated in the next step; theirs is darker.
    """
    whole = _joined_steps(timeline)
    until_s = until_s or whole.step_s
    px_per_s = (width_px - _LABEL_PX - 8) / (until_s or 1.0)
    found = rows(whole, _MOST_LANES)
    thin_px = _LEAST_PX
    # Doubled until the text is short enough.
    while True:
        found = tuple(row.joined(thin_px / px_per_s) for row in found)
        text = _svg(found, until_s, px_per_s, width_px, deferred)
        if len(text) <= _MOST_BYTES or thin_px > width_px:
            return text
        thin_px *= 2


def _svg(
    found: Sequence[Row],
    until_s: float,
    px_per_s: float,
    width_px: int,
    deferred: Collection[str],
) -> str:
    parts: list[str] = []
    y, worker = 0, None
    for row in found:
        if row.worker != worker:
            worker = row.worker
            y += _HEAD_PX
            parts.append(f'<text x="0" y="{y - 5}" font-weight="bold">{host_text(worker)}</text>')
        parts.append(f'<text x="6" y="{y + 11}">{row.resource}</text>')
        parts += _svg_row(row, y, px_per_s, deferred)
        y += _PITCH_PX
    axis = _svg_axis(until_s, px_per_s, y, width_px)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width_px}" height="{y + _AXIS_PX}" '
        f'viewBox="0 0 {width_px} {y + _AXIS_PX}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor">\n' + "\n".join([*axis, *parts]) + "\n</svg>"
    )


def _svg_row(row: Row, top: int, px_per_s: float, deferred: Collection[str]) -> Iterator[str]:
    height = _ROW_PX / max(1, len(row.lanes))
    for lane, bars in enumerate(row.lanes):
        yield f'<g fill="{COLOURS[row.resource]}">'
        for bar in bars:
            colour = _colour(bar, deferred)
            fill = "" if colour == COLOURS[row.resource] else f' fill="{colour}"'
            yield (
                f'<rect x="{_LABEL_PX + bar.begin_s * px_per_s:.1f}" '
                f'y="{top + lane * height:.1f}" '
                f'width="{max(bar.length_s * px_per_s, _LEAST_PX):.1f}" height="{height:.1f}"'
                f"{fill}><title>{escape(_words(bar))}</title></rect>"
            )
        yield "</g>"


def _svg_axis(until_s: float, px_per_s: float, bottom: int, width_px: int) -> Iterator[str]:
    most = max(2, (width_px - _LABEL_PX) // _PX_PER_TICK)
    for tick_ms in _ticks_ms(until_s * 1e3, most):
        x = _LABEL_PX + tick_ms / 1e3 * px_per_s
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom + 4}" stroke="currentColor" '
            'stroke-opacity="0.15"/>'
        )
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick_ms:g}</text>'
    yield f'<text x="6" y="{bottom + 16}">ms</text>'


def _ticks_ms(until_ms: float, most: int) -> list[float]:
    """Round numbers from 0 on, 1, 2 or 5 times a power of ten apart, at most so many."""
    if until_ms <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(until_ms / most))
    apart = next(power * n for n in (1, 2, 5, 10, 20) if until_ms / (power * n) <= most - 1)
    return [round(apart * number, 9) for number in range(int(until_ms / apart + 1e-9) + 1)]


def _words(bar: Bar) -> str:
    """What a bar stands for, when, and of what size."""
    name = bar.longest.name
    what = name if bar.count == 1 else f"{bar.count} spans, the longest {name}"
    begin_ms, end_ms = bar.begin_s * 1e3, bar.end_s * 1e3
    size = f", {bar.bytes:,} bytes" if bar.bytes else ""
    return f"{what}: {begin_ms:.2f} to {end_ms:.2f} ms ({end_ms - begin_ms:.2f} ms){size}"


# Files ------------------------------------------------------------------------------------------


def check_drawable(path: Path) -> None:
    """Raise unless a picture can be drawn into such a file.

    Raises:
        CaramelError: the file's name has another ending, or matplotlib is missing.
    """
    if path.suffix.lower() not in PICTURES:
        raise CaramelError(
            f"cannot draw {path}: the name of a picture ends in {', '.join(PICTURES)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise CaramelError(
            "drawing needs matplotlib, which is not installed; install it with: "
            "pip install '.[plot]' in Caramel's directory"
        )


def draw_timelines(
    timelines: Mapping[str, Steps], path: Path, *, deferred: Collection[str] = ()
) -> None:
    """Draw timelines of all workers below each other, over the same milliseconds, into a file.

    Each step has a part of its own and begins at 0, so that steps can be compared. A dashed line
    shows where it ends.

    Args:
        timelines: by title, such as "predicted" and "measured": of one step, or of several, of
            which the first ones are drawn, as many as there is room for.
        path: the file to write; its ending says whether it is SVG, PNG or PDF.
        deferred: names of the groups that are aggregated in the next step; theirs is darker.

    Raises:
        CaramelError: the file's name has another ending, matplotlib is missing, or the file cannot
            be written.
    """
    check_drawable(path)
    # Here, since matplotlib need not be installed.
    from matplotlib.figure import Figure

    parts = [part for title, steps in timelines.items() for part in _parts(title, steps)]
    longest_s = max((part.step.step_s for part in parts), default=0.0)
    heights = [max(1, len(part.rows)) for part in parts] or [1]
    size = (12, min(200.0, 1.2 * len(heights) + 0.22 * sum(heights)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    # Without timelines there is one empty picture.
    for ax, part in zip(axes, parts, strict=False):
        ax.set_title(part.title, fontsize=10, loc="left")
        _draw_rows(ax, [row.joined(longest_s / _MOST_BARS) for row in part.rows], deferred)
        ax.axvline(part.step.step_s * 1e3, color="0.25", linestyle="--", linewidth=1)
    axes[-1].set_xlabel("ms from the beginning of the step")
    _draw_legend(figure, [part.rows for part in parts], deferred)
    save_figure(figure, path)


@dataclass(frozen=True, slots=True)
class _Part:
    """A step in a picture, from 0 on, with its rows."""

    title: str
    step: Timeline
    rows: tuple[Row, ...]


def _parts(title: str, steps: Steps) -> Iterator[_Part]:
    """Each step of a timeline, or one empty part."""
    given = in_sequence(steps)
    drawn = 0
    for number, each in enumerate(given, start=1):
        (step,) = in_sequence(each)
        found = rows(step, _MOST_LANES)
        drawn += len(found)
        if number > 1 and drawn > _MOST_ROWS:
            return
        which = f", step {number} of {len(given)}" if len(given) > 1 else ""
        yield _Part(f"{title}{which}: {seconds_text(step.step_s)}", step, found)
    if not given:
        yield _Part(title, Timeline(), ())


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib to a file.

    Raises:
        FileError: it cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def _draw_rows(ax: Any, own: Sequence[Row], deferred: Collection[str]) -> None:
    for place, row in enumerate(own):
        height = 0.85 / max(1, len(row.lanes))
        for lane, bars in enumerate(row.lanes):
            ax.broken_barh(
                [(bar.begin_s * 1e3, bar.length_s * 1e3) for bar in bars],
                (place + lane * height, height),
                facecolors=[_colour(bar, deferred) for bar in bars],
            )
    labels = [f"{host_text(row.worker)}  {row.resource}" for row in own]
    ax.set_yticks([place + 0.42 for place in range(len(own))], labels, fontsize=7)
    # Upside down: worker 0 is at the top.
    ax.set_ylim(max(1, len(own)), -0.15)
    ax.margins(x=0.01)
    ax.grid(axis="x", alpha=0.3)


def _draw_legend(figure: Any, found: Collection[Sequence[Row]], deferred: Collection[str]) -> None:
    """What the colours that are there mean."""
    from matplotlib.patches import Patch

    drawn = {
        _colour(bar, deferred) for own in found for row in own for lane in row.lanes for bar in lane
    }
    meanings = {colour: resource for resource, colour in COLOURS.items()} | {
        colour: f"{resource}, deferred" for resource, colour in DEFERRED_COLOURS.items()
    }
    handles = [
        Patch(color=colour, label=meaning)
        for colour, meaning in meanings.items()
        if colour in drawn
    ]
    if handles:
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8)
