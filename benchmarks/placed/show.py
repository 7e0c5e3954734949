"""Results of the benchmark of placed models, as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from benchmarks.results import Row, ratio_of_medians

ALONE, ORDERED, UNORDERED = "one device", "two, ordered", "two, in no order"
_MB = 1e6


def tables(rows: Sequence[Row]) -> list[str]:
    """Both tables, each below its title."""
    steps = [row for row in rows if row.what["part"] == "step"]
    limited = [row for row in rows if row.what["part"] == "limit"]
    lines: list[str] = []
    if steps:
        lines += ["**Steps**", "", *_steps(steps), "", _errors(steps)]
    if limited:
        lines += ["", "**A limit that the kernel enforces**", "", *_limited(limited)]
    return lines


def _steps(rows: Sequence[Row]) -> Iterator[str]:
    heads = ["network, batch", "on", "may hold, MB", "holds at most, MB", "sends, MB", "step, s"]
    heads += ["predicted, s", "off", "/ one device", "/ in no order"]
    lines = []
    for row in rows:
        facts, others = row.facts, {each.what["way"]: each for each in _same(rows, row)}
        predicted_s = facts["predicted_s"]
        limit = facts["limit_bytes"]
        lines.append(
            [
                f"{row.what['network']}, {row.what['batch']}",
                str(row.what["way"]),
                "" if limit is None else f"{limit / _MB:.0f}",
                ", ".join(f"{each / _MB:.0f}" for each in facts["memory_bytes"]),
                f"{facts['sent_bytes'] / _MB:.1f}",
                f"{row.median_s:.3f}",
                f"{predicted_s:.3f}",
                f"{_off(row):+.0%}",
                "" if row.what["way"] == ALONE else _ratio(row, others[ALONE]),
                _ratio(row, others[UNORDERED]) if row.what["way"] == ORDERED else "",
            ]
        )
    return _table(heads, lines)


def _errors(rows: Sequence[Row]) -> str:
    off = [abs(_off(row)) for row in rows if row.what["way"] == ORDERED]
    return (
        f"Predictions of ordered steps are off by {np.median(off):.0%} in the median, "
        f"{max(off):.0%} at most."
    )


def _off(row: Row) -> float:
    """How much longer a step was predicted than it is."""
    return float(row.facts["predicted_s"] / row.median_s - 1)


def _ratio(row: Row, base: Row) -> str:
    return str(ratio_of_medians(row.samples_s, base.samples_s))


def _same(rows: Sequence[Row], row: Row) -> list[Row]:
    return [each for each in rows if each.what["network"] == row.what["network"]]


def _limited(rows: Sequence[Row]) -> Iterator[str]:
    heads = ["parameters and slots, MB", "each process may hold, MB", "on", "result"]
    lines = []
    for row in rows:
        facts = row.facts
        result = facts["error"] or f"{len(row.samples_s)} steps, {row.median_s:.3f} s each"
        lines.append(
            [
                f"{facts['parameter_bytes'] / _MB:.0f}",
                f"{facts['limit_bytes'] / _MB:.0f}",
                "one device" if row.what["way"] == ALONE else "two",
                " ".join(result.replace("|", "/").split())[:160],
            ]
        )
    return _table(heads, lines)


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"
