"""A timeline: what each worker did when, as a simulator predicts it or a trace shows it.

Figures of a step as a whole are those of the Caramel paper, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from caramel.core.memory import MemoryCurve

# What a worker does, and the two directions of its link.
Resource = Literal["compute", "reduce", "send", "receive"]

_LINK: frozenset[Resource] = frozenset({"send", "receive"})


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that one resource of one worker was busy with.

    Attributes:
        resource: "compute" for the ops of the step, "reduce" for what aggregation computes, "send"
            and "receive" for transfers.
        name: of the op, or of the transfer.
        begin_s: in seconds, from any moment that is the same for all spans of a timeline.
        end_s: likewise.
        worker: whose resource.
        bytes: size of a transfer, None if unknown.
    """

    resource: Resource
    name: str
    begin_s: float
    end_s: float
    worker: int = 0
    bytes: int | None = None

    def __post_init__(self) -> None:
        if not (self.begin_s <= self.end_s):
            raise ValueError(
                f"'{self.name}' on worker {self.worker} ends at {self.end_s} s, before it begins "
                f"at {self.begin_s} s"
            )


@dataclass(frozen=True, slots=True)
class LinkPauses:
    """When a link is idle in a step: before its first transfer, between transfers, after the last.

    Together with the time in which the link is in use this is the step.
    """

    before_s: float = 0.0
    between_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one step.

    Attributes:
        spans: in any order.
        plan: the name of the plan that did the step, where a session traced it.
        memory: what tensors take on each device, where one replica is spread over several.
    """

    spans: tuple[Span, ...] = ()
    plan: str = ""
    memory: tuple[MemoryCurve, ...] = ()

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that do anything."""
        return tuple(sorted({span.worker for span in self.spans}))

    def of_worker(self, worker: int) -> Timeline:
        """What one worker does."""
        return Timeline(tuple(span for span in self.spans if span.worker == worker))

    @property
    def begin_s(self) -> float:
        """When the first span begins."""
        return min((span.begin_s for span in self.spans), default=0.0)

    @property
    def step_s(self) -> float:
        """T: from the first begin to the last end."""
        return max((span.end_s for span in self.spans), default=0.0) - self.begin_s

    @property
    def computation_s(self) -> float:
        """C: how long the busiest worker computes."""
        return self._busiest_s(frozenset({"compute"}))

    @property
    def communication_s(self) -> float:
        """N: how long the busiest link is in use, in any direction."""
        return self._busiest_s(_LINK)

    @property
    def link_pauses(self) -> LinkPauses:
        """When the busiest link is idle: what keeps a step that the wire bounds from its limit.

        Gradients that appear late leave it idle before, transfers that wait for each other between,
        updates after.
        """
        if not any(span.resource in _LINK for span in self.spans):
            return LinkPauses()
        busiest = max(self.workers, key=lambda worker: self.busy_s(worker, *_LINK))
        own = [span for span in self.spans if span.worker == busiest and span.resource in _LINK]
        first_s, last_s = min(span.begin_s for span in own), max(span.end_s for span in own)
        between_s = last_s - first_s - self.busy_s(busiest, *_LINK)
        after_s = self.begin_s + self.step_s - last_s
        return LinkPauses(first_s - self.begin_s, max(0.0, between_s), max(0.0, after_s))

    @property
    def rho(self) -> float:
        """N / C; infinite if only the network is busy."""
        if self.computation_s == 0:
            return math.inf if self.communication_s else 0.0
        return self.communication_s / self.computation_s

    @property
    def alpha(self) -> float:
        """How much overlaps of what could: (N + C - T) / min(N, C).

        1 at best, negative if the step also waits for other things; 0 where nothing can overlap.
        """
        least_s = min(self.communication_s, self.computation_s)
        if least_s == 0:
            return 0.0
        return (self.communication_s + self.computation_s - self.step_s) / least_s

    @property
    def utilisation(self) -> float:
        """U = 1 / (1 + rho - alpha * min(rho, 1)), which is C / T."""
        return self.computation_s / self.step_s if self.step_s else 0.0

    def busy_s(self, worker: int, *resources: Resource) -> float:
        """How long any of the resources of a worker is in use."""
        return _covered_s(
            (span.begin_s, span.end_s)
            for span in self.spans
            if span.worker == worker and span.resource in resources
        )

    def sent_bytes(self, worker: int) -> int:
        """Bytes that a worker sends, as far as they are known."""
        return self._bytes(worker, "send")

    def received_bytes(self, worker: int) -> int:
        """Bytes that a worker receives, as far as they are known."""
        return self._bytes(worker, "receive")

    def _bytes(self, worker: int, resource: Resource) -> int:
        return sum(
            span.bytes or 0
            for span in self.spans
            if span.worker == worker and span.resource == resource
        )

    def _busiest_s(self, resources: frozenset[Resource]) -> float:
        return max((self.busy_s(worker, *resources) for worker in self.workers), default=0.0)


def wire_limit_s(size_bytes: float, bytes_per_s: float) -> float:
    """The least time in which a worker can send `size_bytes` at the payload rate of its link."""
    if bytes_per_s <= 0:
        raise ValueError(f"a link carries more than {bytes_per_s} bytes per second")
    return size_bytes / bytes_per_s


def _covered_s(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total_s, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(intervals):
        # Only what no interval before it covers.
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s
