"""Kinds of steps that are timed in turns, so that a slow moment does not hit one of them alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_ROUNDS = 4
_UNTIMED = 2  # steps of each turn; the first ones after a pause are slower

Progress = Callable[[str, int, int], None]
"""Is told what is being measured, and the turns done and to do."""


@dataclass
class Series:
    """One kind of step.

    Attributes:
        step: does one.
        seconds: that the timed ones took.
        processor_s: time of this process's threads on processors, in each of them.
    """

    step: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def take_turn(self, timed: int) -> None:
        """Do some steps and time the last of them."""
        for _ in range(_UNTIMED):
            self.step()
        for _ in range(timed):
            begin_s, processor_s = time.perf_counter(), time.process_time()
            self.step()
            self.seconds.append(time.perf_counter() - begin_s)
            self.processor_s.append(time.process_time() - processor_s)


def take_turns(series: Sequence[Series], repeats: int, what: str, report: Progress) -> None:
    """Time so many steps of each kind."""
    rounds = min(_ROUNDS, repeats)
    for number in range(rounds):
        # So that the turns add up to `repeats`.
        timed = repeats * (number + 1) // rounds - repeats * number // rounds
        for position, each in enumerate(series):
            each.take_turn(timed)
            report(what, number * len(series) + position + 1, rounds * len(series))
