"""How well are steps predicted? Predicted against measured medians of a result file's rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Row
from benchmarks.step.cells import SEARCHED
from benchmarks.step.show import bound_s

_FEW = 4  # plans of a cell, of which no order is told


@dataclass(frozen=True)
class Pair:
    """A row whose step was predicted."""

    cell: str
    network: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """The valid rows with a prediction."""
    found = []
    for row in rows:
        predicted_s = row.facts.get("reported", {}).get("predicted_s")
        if predicted_s and row.samples_s and not row.invalid:
            cell, network = row.what["cell"], row.what["network"]
            found.append(Pair(cell, network, predicted_s, row.median_s))
    return found


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What the predictions are worth, a line each; nothing if there are none."""
    found = pairs(rows)
    if not found:
        return
    errors = [pair.error for pair in found]
    yield (
        f"{len(found)} predicted steps: median error {statistics.median(errors):.1%}, "
        f"worst {max(errors):.1%}"
    )
    for cell in dict.fromkeys(pair.cell for pair in found):
        own = [pair for pair in found if pair.cell == cell]
        if len(own) >= _FEW:
            errors = [pair.error for pair in own]
            yield (
                f"{cell}: Spearman {spearman(own):.2f} over {len(own)} plans, "
                f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}"
            )


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """A table with a line for each network, of which many plans were measured."""
    heads = ("network", "Spearman", "error, median", "error, worst", "measured steps, s")
    yield f"| {' | '.join((*heads, 'chosen plan, s', '÷ max(C, wire limit)'))} |"
    yield "|---" * (len(heads) + 2) + "|"
    found = pairs(rows)
    chosen = {row.what["cell"]: row for row in rows if row.what["system"] == str(SEARCHED)}
    for cell in dict.fromkeys(pair.cell for pair in found):
        own = [pair for pair in found if pair.cell == cell]
        errors, steps_s = [pair.error for pair in own], [pair.measured_s for pair in own]
        texts = (
            own[0].network,
            f"{spearman(own):.2f}",
            f"{statistics.median(errors):.1%}",
            f"{max(errors):.1%}",
            f"{min(steps_s):.2f} to {max(steps_s):.2f}",
            f"{chosen[cell].median_s:.3f}",
            f"{chosen[cell].median_s / bound_s(chosen[cell]):.2f}",
        )
        yield f"| {' | '.join(texts)} |"


def spearman(found: Sequence[Pair]) -> float:
    """The rank correlation of predicted and measured steps, 1 if their order is the same."""
    from scipy.stats import spearmanr

    result = spearmanr([p.predicted_s for p in found], [p.measured_s for p in found])
    return float(result.statistic)


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Predicted against measured steps, in the colour of their network; False if there are none."""
    from matplotlib.figure import Figure

    found = pairs(rows)
    if not found:
        return False
    figure = Figure(figsize=(6, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, network in enumerate(dict.fromkeys(pair.network for pair in found)):
        own = [pair for pair in found if pair.network == network]
        predicted_s, measured_s = zip(*((p.predicted_s, p.measured_s) for p in own), strict=True)
        axes.plot(measured_s, predicted_s, "o", color=f"C{number}", markersize=4, label=network)
    ends = [value for pair in found for value in (pair.predicted_s, pair.measured_s)]
    least, most = 0.9 * min(ends), 1.1 * max(ends)
    axes.plot([least, most], [least, most], color="0.6", linewidth=1, label="as predicted")
    axes.set(xscale="log", yscale="log", xlim=(least, most), ylim=(least, most))
    axes.set_xlabel("measured step, s")
    axes.set_ylabel("predicted step, s")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    return True
