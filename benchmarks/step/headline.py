"""Caramel as it is by default beside the best setting of every peer: a table and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Row, ratio_across_lots, ratio_of_medians
from benchmarks.step.cells import ALONE, DEFAULT, PLAIN, SEARCHED
from benchmarks.step.show import bound_s

NAMES = {
    "plain": "plain Caramel",
    "torch_ddp": "PyTorch",
    "horovod": "Horovod",
    "mirrored": "`MultiWorkerMirroredStrategy`",
    "parameter_servers": "parameter servers",
}
"""What peers are called, in the order of the table."""
MOST_COLUMNS = 3  # of panels in a row


@dataclass(frozen=True)
class Standing:
    """A cell: Caramel's row and the best row of each peer, by the peer's name.

    `spread` is that of the steps of all systems, on average; much of it tells of a slow hour.
    """

    network: str
    batch: int
    own: Row
    peers: dict[str, Row]
    spread: float

    @property
    def title(self) -> str:
        """The cell in few words."""
        return f"{self.network}, batch {self.batch}"


def standings(paths: Sequence[Path]) -> list[Standing]:
    """The cells of result files in which Caramel planned by search, if possible with trials."""
    found = []
    for path in paths:
        content = json.loads(path.read_text())
        batches = {
            str(cell["network"]): int(cell["batch"]) for cell in content["settings"]["cells"]
        }
        rows = [Row(**row) for row in content["rows"]]
        for cell in dict.fromkeys(row.what["cell"] for row in rows):
            valid = [r for r in rows if r.what["cell"] == cell and r.samples_s and not r.invalid]
            by_system = {row.what["system"]: row for row in valid}
            own = by_system.get(str(DEFAULT), by_system.get(str(SEARCHED)))
            if own is None:
                continue
            best: dict[str, Row] = {}
            for row in valid:
                peer = row.facts["peer"]
                if row is not own and row.what["system"] != str(ALONE):
                    best[peer] = min(best.get(peer, row), row, key=_over_plain)
            network = own.what["network"]
            spread = statistics.mean(row.spread for row in valid)
            found.append(Standing(network, batches[network], own, best, spread))
    return found


def markdown(paths: Sequence[Path]) -> str:
    """How many times as long as Caramel each peer takes at its best, with 95 % intervals."""
    found = standings(paths)
    lines = [
        _line("", [each.title for each in found]),
        "|---" * (len(found) + 1) + "|",
        _line("C, s", [f"{each.own.facts['computation_s']:.3f}" for each in found]),
        _line("wire limit, s", [f"{each.own.facts['wire_limit_s']:.3f}" for each in found]),
        _line("rho", [f"{each.own.facts['rho']:.1f}" for each in found]),
        _line("Caramel, s", [f"**{each.own.median_s:.3f}**" for each in found]),
        _line("÷ max(C, wire limit)", [f"{_over_bound(each.own):.2f}" for each in found]),
        _line("sent by a worker, MB (plain)", [_sent(each) for each in found]),
        *(_line(NAMES[peer], [_against(each, peer) for each in found]) for peer in NAMES),
        _line("predicted ÷ measured", [_prediction(each.own) for each in found]),
        _line("spread of the systems' steps", [f"{each.spread:.0%}" for each in found]),
    ]
    files = ", ".join(f"`{path.name}`" for path in paths)
    return "\n".join(
        [f"`python -m benchmarks headline`, from the result files {files}", "", *lines]
    )


def _over_plain(row: Row) -> float:
    """The step over that of the plain plan in the same lot."""
    return row.median_s / statistics.median(row.facts["plain_samples_s"])


def _line(head: str, texts: Sequence[str]) -> str:
    return f"| {head} | {' | '.join(texts)} |"


def _over_bound(row: Row) -> float:
    return row.median_s / bound_s(row)


def _sent(standing: Standing) -> str:
    """What a worker of Caramel sends in a step, and what one of plain Caramel does."""
    rows = [standing.own, standing.peers[PLAIN.peer]]
    own, plain = (statistics.mean(row.facts["tx_bytes"]) / 1e6 for row in rows)
    return f"{own:.0f} ({plain:.0f})"


def _against(standing: Standing, peer: str) -> str:
    """The ratio, by way of the plain plan if both did not take turns but came in different lots."""
    row, own = standing.peers.get(peer), standing.own
    if row is None:
        return ""
    own_plain_s = own.facts["plain_samples_s"]
    if peer == PLAIN.peer:
        return str(ratio_of_medians(own_plain_s, own.samples_s))
    plain_s = row.facts["plain_samples_s"]
    if plain_s == own_plain_s:
        return str(ratio_of_medians(row.samples_s, own.samples_s))
    return str(ratio_across_lots((row.samples_s, plain_s), (own.samples_s, own_plain_s)))


def _prediction(row: Row) -> str:
    predicted_s = row.facts["reported"].get("predicted_s")
    return f"{predicted_s / row.median_s:.2f}" if predicted_s else ""


def draw(paths: Sequence[Path], path: Path) -> None:
    """A panel for each cell: a bar for Caramel and each peer, and the bound of an all-reduce."""
    from matplotlib.figure import Figure

    found = standings(paths)
    columns = min(len(found), MOST_COLUMNS)
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.2 * rows + 0.2), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    labels = ["Caramel", *(name.strip("`") for name in NAMES.values())]
    for axes, standing in zip(panels[: len(found)], found, strict=True):
        for place, row in enumerate(_bars(standing)):
            if row is None:
                continue
            axes.barh(place, row.median_s, color="C1" if row is standing.own else "0.7")
            axes.text(row.median_s, place, f" {row.median_s:.2f}", va="center", fontsize=7)
        bound = bound_s(standing.own)
        axes.axvline(bound, color="k", linewidth=1, linestyle="--")
        longest = max(row.median_s for row in _bars(standing) if row is not None)
        axes.set_xlim(0, 1.2 * longest)
        axes.set_title(standing.title, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].invert_yaxis()
    figure.supxlabel(
        "seconds a step; dashed: max(C, wire limit), the least where gradients are sent", fontsize=8
    )
    figure.savefig(path, dpi=130)


def _bars(standing: Standing) -> Iterator[Row | None]:
    yield standing.own
    for peer in NAMES:
        yield standing.peers.get(peer)
