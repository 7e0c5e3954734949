"""When was what measured, and on which processor? A table for docs/benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def markdown(directory: Path) -> str:
    """A line for each run that a result file keeps."""
    return "\n".join(["`python -m benchmarks when`", "", *_lines(directory)])


def _lines(directory: Path) -> Iterator[str]:
    yield "| result file | networks | measured | processor |"
    yield "|---|---|---|---|"
    for kind in ("step", "ablation", "ranking", "scale", "search", "ps", "place"):
        for path in sorted(directory.glob(f"{kind}*.json")):
            if path.stem.endswith("-quick"):
                continue
            runs = json.loads(path.read_text())["settings"]["runs"]
            for run in sorted(runs, key=lambda run: run["date"]):
                networks = ", ".join(run["networks"])
                processor = run.get("processor", "not recorded").replace("(R)", "")
                yield f"| `{path.name}` | {networks} | {run['date'][:16]} | {processor} |"
