"""By how much do the clocks of several workers differ?

Like the Network Time Protocol: a clock is read over the network, between two looks at one's own.
Half way between them is when it was read, give or take half of the round trip; of several tries
the one with the least round trip says most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import tensorflow as tf

from caramel.core.names import TensorRef
from caramel.native.session import GraphCall, GraphSession

TRIES = 10
_CALL_TRIES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """What a clock showed, and when it was asked and had answered by the asker's clock."""

    asked_s: float
    shown_s: float
    answered_s: float

    @property
    def round_trip_s(self) -> float:
        """How long the answer took; the offset is uncertain by half of it."""
        return self.answered_s - self.asked_s

    @property
    def offset_s(self) -> float:
        """By how much the clock is ahead of the asker's."""
        return self.shown_s - (self.asked_s + self.answered_s) / 2


def clock_offsets_s(
    ask: Callable[[int], float],
    clocks: int,
    *,
    tries: int = TRIES,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """By how much each clock is ahead of the first one, in seconds.

    Args:
        ask: reads the clock of this number, in seconds.
        clocks: how many there are.
        tries: how often each is read, at least once.
        now: the asker's clock; it need not show the time of day.
    """
    best: dict[int, Reading] = {}
    for _ in range(tries):
        for clock in range(clocks):  # in turn: what disturbs for a while disturbs none all the time
            reading = _read(ask, clock, now)
            if clock not in best or reading.round_trip_s < best[clock].round_trip_s:
                best[clock] = reading
    return tuple(best[clock].offset_s - best[0].offset_s for clock in range(clocks))


def _read(ask: Callable[[int], float], clock: int, now: Callable[[], float]) -> Reading:
    asked_s = now()
    shown_s = ask(clock)
    return Reading(asked_s, shown_s, now())


def clock_graph(tasks: Sequence[str | None]) -> tuple[tf.Graph, list[TensorRef]]:
    """A graph that reads the clock of each task, and where it has what they show."""
    graph, stamps = tf.Graph(), []
    with graph.as_default():
        for task in tasks:
            with tf.device(task):
                stamp = tf.timestamp()
            stamps.append(TensorRef(stamp.op.name, stamp.value_index))
    return graph, stamps


def compared_clocks(session: GraphSession, stamps: Sequence[TensorRef]) -> tuple[float, ...]:
    """By how much the clock of each task is ahead of the first one's, in seconds.

    Very rarely gRPC sends a call twice, and TensorFlow gives up such a call. Other than a step,
    reading clocks can simply be done again.

    Args:
        session: runs the graph that `clock_graph` has made.
        stamps: where that has what the clocks show.

    Raises:
        tf.errors.OpError: a worker cannot be reached.
    """
    ask = [GraphCall(session, [stamp], [], []) for stamp in stamps]

    def compared() -> tuple[float, ...]:
        return clock_offsets_s(lambda clock: float(ask[clock]()[0]), len(stamps))

    for _ in range(_CALL_TRIES - 1):
        with suppress(tf.errors.AbortedError):
            return compared()
    return compared()
