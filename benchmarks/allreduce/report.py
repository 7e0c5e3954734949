"""The table: for each number of workers and size, Caramel beside its limit and its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.results import Row, ratio_of_medians

WIDTH = 190  # characters of a terminal that shows the table well
_WHOLE = ("best cell", "/ limit", "best peer / caramel", "best peer")  # columns on one line
CARAMEL = "caramel"
BURST_BYTES = 256 * 2**10  # of a link of the test bed


def valid(rows: Sequence[Row]) -> list[Row]:
    """The rows that count."""
    return [row for row in rows if row.invalid is None]


def fastest(rows: Sequence[Row], **what: Any) -> Row | None:
    """The row with the least median among those of which `what` is true; the first of equals."""
    return min(select(rows, **what), key=lambda row: row.median_s, default=None)


def select(rows: Sequence[Row], **what: Any) -> list[Row]:
    """The rows of which `what` is true."""
    return [row for row in rows if all(row.what[key] == value for key, value in what.items())]


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """The different values of a key, in the order of the rows."""
    return list(dict.fromkeys(row.what[key] for row in rows if row.what[key] is not None))


def size_text(size_bytes: int) -> str:
    """A size as people write it."""
    for unit, size in (("MB", 2**20), ("KB", 2**10)):
        if size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return f"{size_bytes / 1e6:.0f}e6 B" if size_bytes >= 1e6 else f"{size_bytes} B"


def table(rows: Sequence[Row], name: str) -> Table:
    """Medians in milliseconds, and how busy the processors were in the best cell of Caramel."""
    shown = Table(title=f"{name}: one tensor aggregated, ms")
    peers = [system for system in values(rows, "system") if system != CARAMEL]
    columns = ["workers", "size", "limit", "caramel", "best cell", "busy", "/ limit", "shuffle 1"]
    columns += [system.replace("_gloo", "").replace("_", " ") for system in peers]
    for column in [*columns, "best peer / caramel", "best peer"]:
        shown.add_column(column, justify="right", no_wrap=column in _WHOLE)
    for count in values(rows, "workers"):
        own = select(rows, workers=count)
        absent = {row.what["system"]: row for row in own if row.what["size_bytes"] is None}
        for size in values(own, "size_bytes"):
            shown.add_row(*_line(select(own, size_bytes=size), peers, absent))
        shown.add_section()
    return shown


def _line(rows: Sequence[Row], peers: Sequence[str], absent: Mapping[str, Row]) -> list[str]:
    """The line of one number of workers and one size."""
    what, good = rows[0].what, valid(rows)
    best, plain = fastest(good, system=CARAMEL), select(rows, pattern="shuffle", depth=1)
    peer = min(
        (row for row in good if row.what["system"] != CARAMEL),
        key=lambda row: row.median_s,
        default=None,
    )
    line = [str(what["workers"]), size_text(what["size_bytes"])]
    if best is None:
        line += ["", "none", "", "", ""]
    else:
        limit_s = best.facts["wire_limit_s"]
        line += [
            f"{limit_s * 1e3:.2f}",
            _cell([best]),
            f"{best.what['pattern'].replace('_', ' ')} {best.what['depth']}",
            _share(best.facts["processors_busy"]),
            # Less than a link's burst: it may take less time than the limit.
            "" if what["size_bytes"] < BURST_BYTES else _ratio(best, limit_s),
        ]
    line.append(_cell(plain))
    for system in peers:
        line.append(_cell(select(rows, system=system) or [absent[system]]))
    if best is None or peer is None:
        return [*line, "", ""]
    compared = ratio_of_medians(peer.samples_s, best.samples_s)
    return [*line, str(compared), peer.what["system"]]


def _ratio(row: Row, limit_s: float) -> str:
    return str(ratio_of_medians(row.samples_s, [limit_s] * len(row.samples_s)))


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    if rows[0].invalid:
        return rows[0].invalid if rows[0].what["size_bytes"] is None else "invalid"
    return f"{rows[0].median_s * 1e3:.2f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
