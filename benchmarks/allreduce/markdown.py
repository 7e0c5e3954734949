"""The result file of the allreduce benchmark as Markdown tables, for docs/benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from caramel.facts import NetworkModel
from caramel.network import JUDGED_AT_BYTES, cheapest, fit_line, threshold
from caramel.planning.depth import depth_of
from caramel.planning.pattern import pattern_of

FITTED_BYTES = (64, 2**16, 2**20, 4 * 2**20)
LARGE_BYTES = 2**20  # from here on, the wire limit is what counts


def markdown(path: Path) -> str:
    """For each number of workers two tables: Caramel beside its peers; the chosen depth."""
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    rows = [row for row in rows if row.samples_s]
    lines = []
    for workers in sorted({row.what["workers"] for row in rows}):
        own = [row for row in rows if row.what["workers"] == workers]
        lines += [f"**{workers} workers**; ms, in brackets over the wire limit", ""]
        lines += [*_peers(own), "", *_depths(own, workers), ""]
    return "\n".join(lines)


def _peers(rows: list[Row]) -> Iterator[str]:
    peers = list(dict.fromkeys(r.what["system"] for r in rows if r.what["pattern"] is None))
    yield f"| size | shuffle, depth 1 | best cell | {' | '.join(peers)} |"
    yield "|---" * (len(peers) + 3) + "|"
    for size in sorted({row.what["size_bytes"] for row in rows}):
        own = [row for row in rows if row.what["size_bytes"] == size]
        cells = [row for row in own if row.what["pattern"]]
        best = min(cells, key=lambda row: row.median_s)
        first = next(r for r in cells if (r.what["pattern"], r.what["depth"]) == ("shuffle", 1))
        chosen = f"{_ms(best)} {best.what['pattern']} {best.what['depth']}"
        others = {row.what["system"]: row for row in own if not row.what["pattern"]}
        texts = [_ms(others[peer]) if peer in others else "" for peer in peers]
        yield f"| {_size(size)} | {_ms(first)} | {chosen} | {' | '.join(texts)} |"


def _depths(rows: list[Row], workers: int) -> Iterator[str]:
    """What the planner chooses, from lines fitted to these rows, against the best fixed depth.

    The file does not have the time of an empty step; half of the shortest one is taken for it.
    """
    medians = {
        (r.what["pattern"], r.what["depth"], r.what["size_bytes"]): r.median_s
        for r in rows
        if r.what["pattern"]
    }
    model = _model(medians, workers)
    sizes = sorted({size for _, _, size in medians})
    depths = sorted({depth for _, depth, _ in medians})
    yield f"| chosen by the planner | {' | '.join(map(_size, sizes))} |"
    yield "|---" * (len(sizes) + 1) + "|"
    choices = [(pattern_of(size, model), depth_of(size, model), size) for size in sizes]
    yield f"| pattern, depth | {' | '.join(f'{p} {d}' for p, d, _ in choices)} |"
    best = [min(medians[p, depth, size] for depth in depths) for p, _, size in choices]
    ratios = [f"{medians[c] / least_s:.2f}" for c, least_s in zip(choices, best, strict=True)]
    yield f"| over its best fixed depth | {' | '.join(ratios)} |"


def _model(medians: Mapping[tuple[str, int, int], float], workers: int) -> NetworkModel:
    costs = {}
    for pattern in dict.fromkeys(pattern for pattern, _, _ in medians):
        sizes = [size for p, depth, size in medians if (p, depth) == (pattern, 1)]
        sizes = [size for size in sizes if size in FITTED_BYTES]
        empty_s = min(medians[pattern, 1, size] for size in sizes) / 2
        costs[pattern] = fit_line(sizes, [medians[pattern, 1, size] - empty_s for size in sizes])
    best = costs[cheapest(costs, JUDGED_AT_BYTES)]
    return NetworkModel(workers, costs, 1.0, threshold(best))


def _ms(row: Row) -> str:
    milliseconds = row.median_s * 1e3
    digits = max(0, 2 - int(np.log10(max(milliseconds, 1))))
    text = f"{milliseconds:.{digits}f}"
    if row.what["size_bytes"] >= LARGE_BYTES:
        text += f" ({row.median_s / row.facts['wire_limit_s']:.2f})"
    return text + (" **invalid**" if row.invalid else "")


def _size(size_bytes: int) -> str:
    for unit, factor in (("MB", 2**20), ("KB", 2**10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes:,} B"
