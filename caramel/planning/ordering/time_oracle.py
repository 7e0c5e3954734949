"""How long does each op and each transfer take? The time oracle of TicTac.

TicTac 2018, section 5: "We execute each operation 5 times [...] Our Time Oracle implementation
chooses the minimum of all measured runs for a given op." TIC uses the general oracle, equation 5
(equation 1 in the 2019 text), which knows no times.

Times are compared and added up as whole picoseconds. So sums of equal times are equal, in whatever
order they were added, and ties are ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caramel.core.errors import ProfileError
from caramel.planning.ordering.transfer_graph import TransferGraph
from caramel.planning.ordering.transfer_spans import TransferSpan, transfer_times_s

PICOSECONDS = 10**12
"""In a second."""

RUNS = 5
"""That are measured at least."""


@dataclass(frozen=True, slots=True)
class TimeOracle:
    """Times as if an op had its resource for itself.

    Attributes:
        ops_s: seconds for each op that takes any.
        transfers_s: seconds for each transfer.

    Raises:
        ProfileError: A time is negative, infinite or no number.
    """

    ops_s: Mapping[str, float]
    transfers_s: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, time_s in (*self.ops_s.items(), *self.transfers_s.items()):
            if not 0 <= time_s < math.inf:
                raise ProfileError(f"'{name}' cannot take {time_s} s")

    def op_picoseconds(self, name: str) -> int:
        """Of an op; 0 if it is not listed."""
        return round(self.ops_s.get(name, 0) * PICOSECONDS)

    def transfer_picoseconds(self, name: str) -> int:
        """Of a transfer.

        Raises:
            ProfileError: Its time is unknown.
        """
        if name not in self.transfers_s:
            raise ProfileError(f"how long transfer '{name}' takes was not measured")
        return round(self.transfers_s[name] * PICOSECONDS)


def general_oracle(graph: TransferGraph) -> TimeOracle:
    """Every transfer takes 1, every op 0 (equation 5 of 2018)."""
    return TimeOracle({}, {recv.name: 1 for recv in graph.recvs})


@dataclass(frozen=True, slots=True)
class Run:
    """What was traced in one step of a worker.

    Attributes:
        ops_s: seconds that each op took.
        transfers: the spans of what it received.
    """

    ops_s: Mapping[str, float]
    transfers: tuple[TransferSpan, ...] = ()


def measured_oracle(runs: Sequence[Run]) -> TimeOracle:
    """The least time of each op and each transfer over those runs that have it.

    Raises:
        ProfileError: There are fewer than five runs.
    """
    if len(runs) < RUNS:
        raise ProfileError(f"times are the least of at least {RUNS} runs, given are {len(runs)}")
    return TimeOracle(
        _least(run.ops_s for run in runs), _least(transfer_times_s(run.transfers) for run in runs)
    )


def _least(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    least: dict[str, float] = {}
    for run in runs:
        for name, time_s in run.items():
            least[name] = min(time_s, least.get(name, math.inf))
    return least
