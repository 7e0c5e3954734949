"""A result file of the step benchmark as Markdown tables, for BENCHMARKS.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import Row, ratio_of_medians
from benchmarks.step.cells import PLAIN
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
