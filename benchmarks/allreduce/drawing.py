"""The figures: time against size (Figure 4c of the paper), against depth (13), by pattern (14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.allreduce.report import (
    BURST_BYTES,
    CARAMEL,
    fastest,
    select,
    size_text,
    valid,
    values,
)
from benchmarks.results import Row

_BLUES = {
    "shuffle": "#08306b",
    "ring": "#2171b5",
    "halving_doubling": "#6baed6",
    "exchange": "#41ab5d",
}
_OTHERS = ("#d95f02", "#e6ab02", "#1b9e77", "#e7298a", "#66a61e", "#7570b3", "#a6761d")
_MARKERS = {"shuffle": "o", "ring": "s", "halving_doubling": "^", "exchange": "D"}
_HIGHEST_RATIO = 1.8  # that is drawn; a parameter server needs twice the limit or more
_SMALL_BYTES, _LARGE_BYTES = 64 * 2**10, 2**22  # small and large tensors for Figure 14


def draw(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw both figures beside a result file; returns their paths."""
    good = valid(rows)
    times, depths = path.with_suffix(".png"), path.with_name(f"{path.stem}-depth.png")
    _times(good).savefig(times, dpi=120)
    _depths(good).savefig(depths, dpi=120)
    return [times, depths]


def _times(rows: Sequence[Row]) -> Any:
    """Time against size: each pattern at its best depth, the peers, the wire limit.

    Above in milliseconds, below as a multiple of the limit where that is not hidden by a burst.
    """
    from matplotlib.figure import Figure

    counts = values(rows, "workers")
    figure = Figure(figsize=(5 * max(1.6, len(counts)), 9), layout="constrained")
    upper, lower = figure.subplots(2, len(counts), sharey="row", squeeze=False)
    for above, below, count in zip(upper, lower, counts, strict=True):
        own = select(rows, workers=count)
        limits_s = {row.what["size_bytes"]: row.facts["wire_limit_s"] for row in own}
        large = [row for row in own if row.what["size_bytes"] >= BURST_BYTES]
        for choice, style in _styles(own):
            _line(above, select(own, **choice), lambda row: row.median_s * 1e3, style)
            _line(below, select(large, **choice), lambda row: row.median_s / limit_of(row), style)
        above.plot(list(limits_s), [s * 1e3 for s in limits_s.values()], "k--", label="wire limit")
        below.axhline(1, color="black", linestyle="--")
        above.set(xscale="log", yscale="log", title=f"{count} workers")
        below.set(xscale="log", xlabel="bytes")
        for axes in (above, below):
            axes.grid(alpha=0.3)
    lower[0].set_ylim(0.9, _HIGHEST_RATIO)
    upper[0].set_ylim(bottom=min(row.median_s for row in rows) * 1e3 / 2)
    upper[0].set_ylabel("ms to aggregate one tensor (median)")
    lower[0].set_ylabel("time / wire limit")
    handles, labels = upper[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 + len(counts) // 2)
    return figure


def _styles(rows: Sequence[Row]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Which rows make up each line, and how it looks."""
    peers = [system for system in values(rows, "system") if system != CARAMEL]
    lines: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for pattern in values(rows, "pattern"):
        label = f"Caramel, {pattern}, best depth"
        style = {"color": _BLUES[pattern], "marker": _MARKERS[pattern], "lw": 2}
        lines.append(({"pattern": pattern}, {"label": label, "markersize": 4, **style}))
    for system, color in zip(peers, _OTHERS, strict=False):
        lines.append(({"system": system}, {"label": system, "color": color, "marker": "."}))
    return lines


def _line(
    axes: Any, rows: Sequence[Row], height: Callable[[Row], float], style: dict[str, Any]
) -> None:
    best = [fastest(rows, size_bytes=size) for size in values(rows, "size_bytes")]
    found = [row for row in best if row is not None]
    sizes = [row.what["size_bytes"] for row in found]
    axes.plot(sizes, [height(row) for row in found], **style)


def limit_of(row: Row) -> float:
    """The wire limit of a row in seconds."""
    return float(row.facts["wire_limit_s"])


def _depths(rows: Sequence[Row]) -> Any:
    """Above, what depth does to each size; below, the patterns as the workers become more."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    counts = values(rows, "workers")
    figure = Figure(figsize=(4 * max(2, len(counts)) + 1, 8), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    above, below = halves
    panels = above.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    sizes = values(select(rows, system=CARAMEL), "size_bytes")
    for axes, count in zip(panels, counts, strict=True):
        for number, size in enumerate(sizes):
            own = select(rows, workers=count, size_bytes=size, pattern="shuffle")
            first = fastest(own, depth=1)
            if first is None:
                continue
            depths = [row.what["depth"] for row in own]
            shares = [row.median_s / first.median_s for row in own]
            color = colormaps["viridis"](number / len(sizes))
            axes.plot(depths, shares, marker="o", color=color, label=size_text(size))
        axes.axhline(1, color="black", linewidth=0.6)
        axes.set(xscale="log", title=f"shuffle, {count} workers", xlabel="depth")
        axes.set_xticks(values(rows, "depth"), [str(depth) for depth in values(rows, "depth")])
        axes.minorticks_off()
    panels[0].set_ylabel("time / time at depth 1")
    panels[0].legend(fontsize="small")
    shown = [size for size in (_SMALL_BYTES, _LARGE_BYTES) if size in sizes]
    _patterns(below, rows, counts, shown or sizes[-1:])
    return figure


def _patterns(
    figure: Any, rows: Sequence[Row], counts: Sequence[int], sizes: Sequence[int]
) -> None:
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        own = select(rows, system=CARAMEL, size_bytes=size)
        for number, pattern in enumerate(values(own, "pattern")):
            for at, count in enumerate(counts):
                best = fastest(own, pattern=pattern, workers=count)
                if best is not None:
                    axes.bar(
                        at + 0.25 * (number - 1),
                        best.median_s / limit_of(best),
                        width=0.23,
                        color=_BLUES[pattern],
                        label=pattern if at == 0 else None,
                    )
        axes.axhline(1, color="black", linestyle="--", linewidth=1, label="wire limit")
        axes.set_xticks(range(len(counts)), [f"{count} workers" for count in counts])
        axes.set(title=f"{size_text(size)}, best depth", ylabel="time / wire limit")
        axes.set_xlim(-0.5, len(counts) - 0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
