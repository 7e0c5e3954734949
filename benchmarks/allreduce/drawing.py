"""The figures: time against size (Figure 4c of the paper), against depth (13), by pattern (14)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.allreduce.report import CARAMEL, fastest, select, size_text, valid, values
from benchmarks.results import Row

_BLUES = {"shuffle": "#08306b", "ring": "#2171b5", "halving_doubling": "#6baed6"}
_OTHERS = ("#d95f02", "#e6ab02", "#1b9e77", "#e7298a", "#66a61e", "#7570b3", "#a6761d")
_MARKERS = {"shuffle": "o", "ring": "s", "halving_doubling": "^"}
_SMALL_BYTES, _LARGE_BYTES = 64 * 2**10, 2**22  # small and large tensors for Figure 14


def draw(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw both figures beside a result file; returns their paths."""
    good = valid(rows)
    times, depths = path.with_suffix(".png"), path.with_name(f"{path.stem}-depth.png")
    _times(good).savefig(times, dpi=120)
    _depths(good).savefig(depths, dpi=120)
    return [times, depths]


def _times(rows: Sequence[Row]) -> Any:
    """Time against size: each pattern at its best depth, the peers, the wire limit."""
    from matplotlib.figure import Figure

    counts = values(rows, "workers")
    figure = Figure(figsize=(5 * max(1.6, len(counts)), 6), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    peers = [system for system in values(rows, "system") if system != CARAMEL]
    for axes, count in zip(panels, counts, strict=True):
        own = select(rows, workers=count)
        for pattern in values(own, "pattern"):
            label, color = f"Caramel, {pattern}, best depth", _BLUES[pattern]
            marker = _MARKERS[pattern]
            _line(axes, select(own, pattern=pattern), label, color=color, marker=marker, lw=2)
        for system, color in zip(peers, _OTHERS, strict=False):
            _line(axes, select(own, system=system), system, color=color, marker=".", lw=1.2)
        limits = {row.what["size_bytes"]: row.facts["wire_limit_s"] * 1e3 for row in own}
        axes.plot(list(limits), list(limits.values()), "k--", label="wire limit")
        lowest_ms = min(row.median_s for row in own) * 1e3
        axes.set(xscale="log", yscale="log", title=f"{count} workers", xlabel="bytes")
        axes.set_ylim(bottom=lowest_ms / 3)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ms to aggregate one tensor (median)")
    labels = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(
        list(labels.values()), list(labels), loc="outside lower center", ncols=2 + len(counts)
    )
    return figure


def _line(axes: Any, rows: Sequence[Row], label: str, **style: Any) -> None:
    best = [fastest(rows, size_bytes=size) for size in values(rows, "size_bytes")]
    found = [row for row in best if row is not None]
    sizes = [row.what["size_bytes"] for row in found]
    axes.plot(sizes, [row.median_s * 1e3 for row in found], label=label, **style)


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
    _patterns(
        below,
        rows,
        counts,
        [size for size in (_SMALL_BYTES, _LARGE_BYTES) if size in sizes] or sizes[-1:],
    )
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
                    limit_s = best.facts["wire_limit_s"]
                    axes.bar(
                        at + 0.25 * (number - 1),
                        best.median_s / limit_s,
                        width=0.23,
                        color=_BLUES[pattern],
                        label=pattern if at == 0 else None,
                    )
        axes.axhline(1, color="black", linestyle="--", linewidth=1, label="wire limit")
        axes.set_xticks(range(len(counts)), [f"{count} workers" for count in counts])
        axes.set(title=f"{size_text(size)}, best depth", ylabel="time / wire limit")
    panels[0].legend(fontsize="small")
