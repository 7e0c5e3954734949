"""How long does each transfer occupy its channel, by the spans of a trace?

Several transfers are requested at once and wait in the channel's queue, so that their spans
overlap, although "only one transfer can be active at a given moment for each channel" (TicTac 2018,
section 5.1). A moment in which several are under way belongs to the one that ends first: until then
the others waited. So each busy moment of a channel is counted once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from caramel.core.errors import ProfileError


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """One transfer as a trace shows it (a `RecvTensor` span).

    Attributes:
        name: of the transfer.
        channel: that carried it.
        begin_s: when it was requested, in seconds from any moment.
        end_s: when it had arrived.

    Raises:
        ProfileError: It ends before it begins.
    """

    name: str
    channel: str
    begin_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not self.begin_s <= self.end_s:
            raise ProfileError(
                f"transfer '{self.name}' on channel '{self.channel}' ends at {self.end_s} s, "
                f"before it begins at {self.begin_s} s"
            )


def transfer_times_s(spans: Iterable[TransferSpan]) -> dict[str, float]:
    """Seconds for each transfer without the time that it waited for others on its channel.

    The parts of a transfer that was carried in several spans are added up.
    """
    times_s: dict[str, float] = defaultdict(float)
    busy: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.end_s, span.begin_s)):
        times_s[span.name] += _newly_busy_s(busy[span.channel], span)
    return dict(times_s)


def _newly_busy_s(busy: list[tuple[float, float]], span: TransferSpan) -> float:
    """What a span adds to the busy intervals of its channel, none of which ends later; adds it."""
    begin_s, covered_s = span.begin_s, 0.0
    while busy and busy[-1][1] >= span.begin_s:
        earlier_begin_s, earlier_end_s = busy.pop()
        covered_s += earlier_end_s - max(earlier_begin_s, span.begin_s)
        begin_s = min(begin_s, earlier_begin_s)
    busy.append((begin_s, span.end_s))
    return span.end_s - span.begin_s - covered_s
