"""A result file of the step benchmark as Markdown tables, for docs/benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.results import Row, ratio_of_medians
from benchmarks.step.cells import ALONE, PLAIN, SEARCHED
from benchmarks.step.show import REPORTED, bound_s, reported


def markdown(path: Path) -> str:
    """A table for each cell of a result file, with the command that made it."""
    content = json.loads(path.read_text())
    rows = [Row(**row) for row in content["rows"]]
    lines = [f"`{content['command']}`, result file `{path.name}`", ""]
    for cell in _cells(rows):
        lines += [*_table([row for row in rows if row.what["cell"] == cell]), ""]
    return "\n".join(lines)


def overview(path: Path) -> str:
    """One table of a result file, with the command that made it.

    A column for each cell, with each system's step over that of plain Caramel and its 95 %
    interval; or, where planned networks have several cells, a row for each, with what that brings.
    """
    content = json.loads(path.read_text())
    rows = [Row(**row) for row in content["rows"]]
    by_cell = {
        cell: {r.what["system"]: r for r in rows if r.what["cell"] == cell} for cell in _cells(rows)
    }
    networks = {row.what["network"] for row in rows}
    is_planned = any(row.what["system"] == str(SEARCHED) for row in rows)
    if is_planned and len(by_cell) > len(networks):
        lines = _rows_of_cells(by_cell)
    else:
        lines = _columns_of_cells(by_cell, content["machine"]["cores"])
    name, _, suite = path.stem.partition("-")
    command = f"`python -m benchmarks {name} --suite {suite}`, result file `{path.name}`"
    return "\n".join([command, "", *lines, ""])


def _cells(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.what["cell"] for row in rows))


def _columns_of_cells(by_cell: Mapping[str, Mapping[str, Row]], cores: int) -> Iterator[str]:
    plain = [rows[str(PLAIN)] for rows in by_cell.values()]
    yield _line("", [row.what["network"] for row in plain])
    yield "|---" * (len(plain) + 1) + "|"
    yield _line("C, s", [f"{row.facts['computation_s']:.3f}" for row in plain])
    yield _line("wire limit, s", [f"{row.facts['wire_limit_s']:.3f}" for row in plain])
    yield _line(f"{PLAIN}, s", [f"{row.median_s:.3f}" for row in plain])
    yield _line("÷ max(C, wire limit)", [f"{row.median_s / bound_s(row):.2f}" for row in plain])
    yield _line("cores busy", [_busy(row, cores) for row in plain])
    systems = dict.fromkeys(system for rows in by_cell.values() for system in rows)
    for system in systems:
        if system not in (str(ALONE), str(PLAIN)):
            yield _line(system, [_against(rows.get(system)) for rows in by_cell.values()])


def _rows_of_cells(by_cell: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    heads = ["C, s", "wire limit, s", "plain, s", "planned, s", "predicted ÷ measured"]
    heads += ["plain ÷ bound", "planned ÷ bound", "planned ÷ plain (95 %)"]
    yield _line("cell (bound: the larger of C and the wire limit)", heads)
    yield "|---" * (len(heads) + 1) + "|"
    for cell, rows in by_cell.items():
        plain, planned = rows.get(str(PLAIN)), rows.get(str(SEARCHED))
        if plain is None or planned is None or not (plain.samples_s and planned.samples_s):
            continue
        predicted_s = planned.facts["reported"].get("predicted_s")
        yield _line(
            _short(cell, list(by_cell)),
            [
                f"{plain.facts['computation_s']:.3f}",
                f"{plain.facts['wire_limit_s']:.3f}",
                f"{plain.median_s:.3f}",
                f"{planned.median_s:.3f}",
                f"{predicted_s / planned.median_s:.2f}" if predicted_s else "",
                f"{plain.median_s / bound_s(plain):.2f}",
                f"{planned.median_s / bound_s(planned):.2f}",
                _against(planned),
            ],
        )


def _short(cell: str, cells: Sequence[str]) -> str:
    """The network, and what not all cells have in common; a network's batch is always the same."""
    common = set.intersection(*(set(each.split(", ")) for each in cells))
    network, *rest = cell.split(", ")
    told = [word for word in rest if word not in common and not word.startswith("batch ")]
    return ", ".join([network, *told])


def _line(head: str, texts: Sequence[str]) -> str:
    return f"| {head} | {' | '.join(texts)} |"


def _busy(row: Row, cores: int) -> str:
    """Which share of the machine's cores a step keeps busy."""
    return f"{row.facts['processor_s'] / row.median_s / cores:.0%}"


def _against(row: Row | None) -> str:
    if row is None or not row.samples_s:
        return "" if row is None else str(row.invalid).splitlines()[0]
    ratio = ratio_of_medians(row.samples_s, row.facts["plain_samples_s"])
    return f"{ratio}{' **invalid**' if row.invalid else ''}"


def _table(rows: list[Row]) -> Iterator[str]:
    measured = [row for row in rows if row.samples_s]
    facts = measured[0].facts
    computation_s, limit_s = facts["computation_s"], facts["wire_limit_s"]
    bound = "computation" if computation_s > limit_s else "the wire"
    yield (
        f"**{rows[0].what['cell']}**: C {computation_s:.3f} s, wire limit {limit_s:.3f} s, "
        f"rho {limit_s / computation_s:.2f}; bound by {bound}"
    )
    yield ""
    heads = ["system", "step, s", "÷ plain (95 %)", "÷ max(C, wire)", "alpha", "U", "processor, s"]
    with_plans = any(row.what["system"].startswith("planned") for row in rows)
    heads += REPORTED.values() if with_plans else ()
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        name = row.what["system"]
        if not row.samples_s:
            yield f"| {name} | {str(row.invalid).splitlines()[0]} |" + " |" * (len(heads) - 2)
            continue
        is_plain = name == str(PLAIN)
        ratio = (
            "1" if is_plain else str(ratio_of_medians(row.samples_s, row.facts["plain_samples_s"]))
        )
        overlap = [f"{row.facts[k]:.2f}" if k in row.facts else "" for k in ("alpha", "U")]
        yield (
            f"| {name}{' **invalid**' if row.invalid else ''} | {row.median_s:.3f} | {ratio} | "
            f"{row.median_s / bound_s(row):.2f} | {' | '.join(overlap)} | "
            f"{row.facts['processor_s']:.2f} |"
            + ("".join(f" {each} |" for each in reported(row)) if with_plans else "")
        )
