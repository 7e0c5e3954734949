"""Which gradients are aggregated together? Caramel paper, section 4.2.

Small gradients are joined only while the network is busy with others, where they would wait
anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """A gradient that is to be sent.

    Attributes:
        parameter: whose it is.
        size_bytes: what is aggregated.
        ready_s: when it is complete, from the begin of the step.
        dtype: only gradients of one dtype are joined (and of one weight, which may stand here too).
        alone: it must not be joined (a sparse gradient, for example).
    """

    parameter: str
    size_bytes: int
    ready_s: float
    dtype: str = "float32"
    alone: bool = False


def batches(
    gradients: Sequence[ReadyGradient],
    *,
    threshold_bytes: int,
    seconds: Callable[[int], float],
) -> tuple[tuple[str, ...], ...]:
    """The parameters of each group, in the order in which the groups are sent.

    Gradients come in the order in which they are complete, and the network carries out one transfer
    after another.

    Args:
        gradients: in activation order, which decides between those that are ready together.
        threshold_bytes: a larger gradient is sent alone.
        seconds: predicted time to aggregate that many bytes.
    """
    queue = _Queue(seconds)
    order = sorted(gradients, key=lambda gradient: gradient.ready_s)
    active: dict[str, list[ReadyGradient]] = {}  # by dtype; the one that was begun first is first
    for number, gradient in enumerate(order):
        if gradient.alone or gradient.size_bytes > threshold_bytes:
            queue.send([gradient], gradient.ready_s)
        else:
            batch = active.setdefault(gradient.dtype, [])
            batch.append(gradient)
            # The active batch is sent as soon as it exceeds the threshold.
            if sum(member.size_bytes for member in batch) > threshold_bytes:
                queue.send(active.pop(gradient.dtype), gradient.ready_s)
        next_s = order[number + 1].ready_s if number + 1 < len(order) else math.inf
        # Or if the network has done all transfers before the next gradient is complete. So a small
        # gradient that meets an idle network is sent at once and alone.
        while active and queue.done_s <= next_s:
            queue.send(active.pop(next(iter(active))), gradient.ready_s)
    return tuple(queue.sent)


class _Queue:
    """The network, which carries out one transfer after another."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self.done_s = 0.0
        self.sent: list[tuple[str, ...]] = []

    def send(self, batch: Sequence[ReadyGradient], ready_s: float) -> None:
        size_bytes = sum(member.size_bytes for member in batch)
        self.done_s = max(self.done_s, ready_s) + self._seconds(size_bytes)
        self.sent.append(tuple(member.parameter for member in batch))
