"""A result file of the step benchmark as Markdown tables, for BENCHMARKS.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.results import Row, ratio_of_medians
from benchmarks.step.cells import ALONE, PLAIN
from benchmarks.step.show import REPORTED, bound_s, reported


def markdown(path: Path) -> str:
    """A table for each cell of a result file, with the command that made it."""
    content = json.loads(path.read_text())
    rows = [Row(**row) for row in content["rows"]]
    cells = list(dict.fromkeys(row.what["cell"] for row in rows))
    lines = [f"`{content['command']}`, result file `{path.name}`", ""]
    for cell in cells:
        lines += [*_table([row for row in rows if row.what["cell"] == cell]), ""]
    return "\n".join(lines)


def overview(path: Path) -> str:
    """A column for each cell of a result file, with the command that made it.

    Systems as their step over that of plain Caramel, with its 95 % interval.
    """
    content = json.loads(path.read_text())
    rows = [Row(**row) for row in content["rows"]]
    cells = list(dict.fromkeys(row.what["cell"] for row in rows))
    by_cell = {
        cell: {r.what["system"]: r for r in rows if r.what["cell"] == cell} for cell in cells
    }
    systems = list(dict.fromkeys(row.what["system"] for row in rows))
    plain = [by_cell[cell][str(PLAIN)] for cell in cells]
    lines = [
        _line("", [row.what["network"] for row in plain]),
        "|---" * (len(cells) + 1) + "|",
        _line("C, s", [f"{row.facts['computation_s']:.3f}" for row in plain]),
        _line("wire limit, s", [f"{row.facts['wire_limit_s']:.3f}" for row in plain]),
        _line(f"{PLAIN}, s", [f"{row.median_s:.3f}" for row in plain]),
        _line("÷ max(C, wire limit)", [f"{row.median_s / bound_s(row):.2f}" for row in plain]),
        _line("cores busy", [_busy(row, content["machine"]["cores"]) for row in plain]),
    ]
    for system in systems:
        if system not in (str(ALONE), str(PLAIN)):
            lines.append(_line(system, [_against(by_cell[cell].get(system)) for cell in cells]))
    name, _, suite = path.stem.partition("-")
    command = f"`python -m benchmarks {name} --suite {suite}`, result file `{path.name}`"
    return "\n".join([command, "", *lines, ""])


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
