"""Results of the benchmark of orders: Markdown tables, and a figure like those of the papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ps.cells import IN_FLIGHT, UNORDERED, Part
from benchmarks.results import Row, ratio_of_medians

Cells = dict[tuple[Any, ...], list[Row]]
_ORDERS: tuple[Part, ...] = ("orderings", "training")
_KEYS = ("network", "mode", "workers", "servers", "computation")


def tables(rows: Sequence[Row]) -> list[str]:
    """All tables, each below its title."""
    made = (
        ("Orders of arrival", _orders(rows)),
        ("Bytes in flight: step, s, and how many times faster than without an order", _flow(rows)),
        ("How many times faster steps are than without an order", _speedups(rows)),
        ("Steps without an order and with one", _consistency(rows)),
        ("Does the efficiency E of an order tell how long steps take?", _regressions(rows)),
        ("Real computation", _speedups(rows, ["real"])),
        ("Beside other systems: step, s", _systems(rows)),
    )
    lines: list[str] = []
    for title, table in made:
        body = list(table)
        if len(body) > 2:
            lines += [f"**{title}**", "", *body, ""]
    failed = [[_named(row), str(row.invalid)] for row in rows if row.invalid]
    if failed:
        lines += ["**Not measured**", "", *_table(["what", "why"], failed), ""]
    return lines[:-1]


def _cells(rows: Iterable[Row], *parts: Part) -> Cells:
    """The valid rows of some parts, by cell."""
    found: Cells = {}
    for row in rows:
        if row.what["part"] in parts and not row.invalid:
            found.setdefault(tuple(row.what[key] for key in _KEYS), []).append(row)
    return found


def _named(row: Row) -> str:
    return ", ".join(str(row.what[key]) for key in ("part", *_KEYS, "ordering"))


def _hosts(key: Sequence[Any]) -> list[str]:
    network, mode, workers, servers, _ = key
    return [str(network), str(mode), f"{workers} + {servers}"]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


_LIMITED = frozenset(order.name for order in IN_FLIGHT)
_HEADS = ("network", "mode", "workers + servers")


def _orders(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for key, own in _cells(rows, *_ORDERS, "counts").items():
        for row in own:
            if "orders" not in row.facts and row.what["part"] != "counts":
                continue
            facts, late = row.facts, row.facts["out_of_place"]
            count = f"{facts['unique_orders']:,} / {facts['traced_steps'] * row.what['workers']:,}"
            late = "" if late is None else f"{late:.1%}"
            lines.append([*_hosts(key), row.what["ordering"], str(facts["transfers"]), count, late])
    heads = (*_HEADS, "order", "transfers", "orders / traced steps", "out of place")
    return _table(heads, lines)


def _baseline(own: Sequence[Row]) -> Row | None:
    return next((row for row in own if row.what["ordering"] == UNORDERED), None)


def speedup(row: Row, base: Row) -> str:
    """How many times faster a row is, with its interval."""
    return str(ratio_of_medians(base.samples_s, row.samples_s))


def _flow(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for key, own in _cells(rows, *_ORDERS).items():
        base = _baseline(own)
        limited = [row for row in own if row.what["ordering"].endswith(" MB")]
        if base is None or len(limited) < 2:
            continue
        usual = [row for row in own if row.what["ordering"] == "search"]
        for row in (base, *limited, *usual):
            name, size_bytes = row.what["ordering"], row.facts["bytes"]
            step = [f"{row.median_s:.3f}", speedup(row, base)]
            lines.append([*_hosts(key), name, f"{size_bytes / 1e6:.0f}", *step])
    return _table((*_HEADS, "order, in flight", "parameters, MB", "median, s", "faster"), lines)


def _speedups(rows: Sequence[Row], parts: Sequence[Part] = _ORDERS) -> Iterator[str]:
    cells = _cells(rows, *parts)
    names = list(dict.fromkeys(row.what["ordering"] for own in cells.values() for row in own))
    names = [name for name in names if name != UNORDERED and name not in _LIMITED]
    lines = []
    for key, own in cells.items():
        base, by_name = _baseline(own), {row.what["ordering"]: row for row in own}
        if base is None:
            continue
        shown = [speedup(by_name[name], base) if name in by_name else "" for name in names]
        least_s = base.facts["least_s"]
        lines.append([*_hosts(key), f"{least_s:.2f}", f"{base.median_s:.2f}", *shown])
    return _table((*_HEADS, "bound, s", "unordered, s", *names), lines)


def _consistency(rows: Sequence[Row]) -> Iterator[str]:
    """How much steps vary, and how long workers wait for the slowest one."""
    lines = []
    for key, own in _cells(rows, *_ORDERS).items():
        by_name = {row.what["ordering"]: row for row in own}
        pair = [by_name.get(UNORDERED), by_name.get("search")]
        if None in pair:
            continue
        both = [row for row in pair if row is not None]
        spread = [f"{np.std(row.samples_s, ddof=1) * 1e3:.0f}" for row in both]
        waits = [
            f"{np.mean(row.facts['stragglers']):.0%}" if row.what["workers"] > 1 else ""
            for row in both
        ]
        # In training workers also wait for what they send.
        is_inference = key[1] == "inference"
        efficient = [
            f"{np.median(np.ravel(row.facts['traced_E'])):.2f}" if is_inference else ""
            for row in both
        ]
        lines.append([*_hosts(key), *spread, *efficient, *waits])
    heads = [f"{what}, {which}" for what in _MEASURES for which in ("unordered", "search")]
    return _table((*_HEADS, *heads), lines)


_MEASURES = ("standard deviation, ms", "efficiency E", "straggler share")


# Efficiency -------------------------------------------------------------------------------------


def points(rows: Sequence[Row]) -> dict[tuple[Any, ...], np.ndarray]:
    """For each cell, of each order: predicted efficiency, and median step over the shortest."""
    found = {}
    for key, own in _cells(rows, "efficiency").items():
        own = _different(own)
        least_s = min(row.median_s for row in own)
        found[key] = np.array([(_predicted(row), row.median_s / least_s) for row in own])
    return found


def _different(own: Sequence[Row]) -> list[Row]:
    """Without orders that are the same as another one."""
    return [row for row in own if not row.facts.get("same_as")]


def _predicted(row: Row) -> float:
    """E of the planned order, or in the mean of the orders in which parameters came."""
    if row.facts["predicted"]:
        return float(row.facts["predicted"]["E"])
    return float(np.mean(np.ravel(row.facts["received_E"])))


def r_squared(pairs: np.ndarray) -> float:
    """The share of one's variance that a line through the other explains."""
    return float(np.corrcoef(pairs.T)[0, 1] ** 2)


def _regressions(rows: Sequence[Row]) -> Iterator[str]:
    by_order = points(rows)
    lines = []
    for key, own in _cells(rows, "efficiency").items():
        steps = [
            (float(np.mean(e)), step_s)
            for row in _different(own)
            for e, step_s in zip(row.facts["traced_E"], row.facts["traced_step_s"], strict=True)
        ]
        pairs = by_order[key]
        if len(pairs) < 3 or len(steps) < 3:
            continue
        lines.append(
            [
                *(*_hosts(key), str(len(pairs))),
                *(f"{pairs[:, 0].min():.2f} to {pairs[:, 0].max():.2f}",),
                *(f"1 to {pairs[:, 1].max():.2f}", f"{r_squared(pairs):.2f}"),
                f"{r_squared(np.array(steps)):.2f} ({len(steps)} steps)",
            ]
        )
    heads = ("orders", "E", "step / shortest", "R², predicted E of orders, median steps")
    return _table((*_HEADS, *heads, "R², E of traced steps, their times"), lines)


def _systems(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for key, own in _cells(rows, "systems").items():
        for row in own:
            lines.append([*_hosts(key), key[-1], row.what["ordering"], f"{row.median_s:.3f}"])
    return _table((*_HEADS, "computation", "system", "median, s"), lines)


# Figure -----------------------------------------------------------------------------------------


def draw(rows: Sequence[Row], path: Path) -> None:
    """Gains by network, gains by number of hosts, E against step times, and their distribution."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    bars, hosts, scatter, steps = figure.subplots(2, 2).ravel()
    _draw_gains(bars, rows)
    _draw_hosts(hosts, rows)
    for key, pairs in points(rows).items():
        label = f"{key[0]}, R² {r_squared(pairs):.2f}"
        scatter.plot(pairs[:, 0], pairs[:, 1], "o", markersize=4, label=label)
    scatter.set(xlabel="predicted efficiency E of the order", ylabel="step / shortest")
    _draw_steps(steps, rows)
    for axes in (bars, hosts, scatter, steps):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def _gains(rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], dict[str, float]]]:
    for key, own in _cells(rows, *_ORDERS).items():
        base = _baseline(own)
        if base is not None:
            yield (
                key,
                {
                    str(row.what["ordering"]): 100 * (base.median_s / row.median_s - 1)
                    for row in own
                    if row is not base and row.what["ordering"] not in _LIMITED
                },
            )


def _draw_gains(axes: Any, rows: Sequence[Row]) -> None:
    """Of one worker and one server, as TicTac 2018, figures 7 and 13."""
    cells = [(key, gains) for key, gains in _gains(rows) if key[2:4] == (1, 1)]
    names = list(dict.fromkeys(name for _, gains in cells for name in gains))
    for number, name in enumerate(names):
        width = 0.8 / len(names)
        places = [i for i, (_, gains) in enumerate(cells) if name in gains]
        heights = [cells[i][1][name] for i in places]
        axes.bar([i - 0.4 + (number + 0.5) * width for i in places], heights, width, label=name)
    labels = [f"{key[0]}\n{key[1]}" for key, _ in cells]
    axes.set_xticks(range(len(cells)), labels, fontsize=7, rotation=30 if len(cells) > 3 else 0)
    axes.set(ylabel="gain in throughput, %", title="one worker, one server")
    axes.axhline(0, color="black", linewidth=0.5)


def _draw_hosts(axes: Any, rows: Sequence[Row]) -> None:
    """As TicTac 2018, figures 7 and 9."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for key, gains in sorted(_gains(rows), key=lambda each: each[0][2:4]):
        if "search" in gains:
            label = f"{key[0]}, {key[1]}"
            lines.setdefault(label, []).append((f"{key[2]} + {key[3]}", gains["search"]))
    for label, found in lines.items():
        if len(found) > 1:
            axes.plot(*zip(*found, strict=True), "o-", label=label, markersize=4)
    axes.set(xlabel="workers + servers", ylabel="gain in throughput, %", title="search")


def _draw_steps(axes: Any, rows: Sequence[Row]) -> None:
    """As TicTac 2018, figure 12 (b)."""
    for key, own in _cells(rows, *_ORDERS).items():
        base = _baseline(own)
        if base is None or key[1:4] != ("inference", 1, 1):
            continue
        least_s = min(row.best_s for row in own)
        for row, style in (
            (base, "--"),
            *((r, "-") for r in own if r.what["ordering"] == "search"),
        ):
            relative = np.sort(np.asarray(row.samples_s)) / least_s
            shares = (np.arange(len(relative)) + 1) / len(relative)
            axes.step(relative, shares, style, label=f"{key[0]}, {row.what['ordering']}")
    axes.set(xlabel="step / shortest", ylabel="share of steps", title="one worker, one server")
