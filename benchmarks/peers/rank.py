"""One process of a peer: what it is told, when it does its steps, and what it reports.

All ranks and the measuring process (`running`) meet, by files in a directory of the run, so that
counters are read while nothing is under way:

============ ====================================================================================
`checked`    the initial values and the checked steps are done; rank 0 writes the parameters
`begin0`     the warm-up of the first block is done; the counters are read
`end0`       its timed steps are done; the counters are read again
`begin1` ... the same for further blocks
============ ====================================================================================

A rank may be told to have several `plans`, in `extra`: they take turns in one session. It meets at
`checked-PLAN` for each of them, and orders say whose block is to be done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.data import Case, write_values

POLL_S = 0.01
IDLE_POLL_S = 0.05
OVER = "over"
ONLY = ""  # the plan of a session that has one


@dataclass(frozen=True)
class Rank:
    """What one process of a peer is told.

    Attributes:
        case: what to run.
        setting: the variant.
        number: which worker it is.
        workers: how many there are.
        directory: of the run, for what it reports.
        prepared: the directory with data and initial values.
        extra: what else this peer's ranks have to know, such as addresses.
    """

    case: Case
    setting: dict[str, Any]
    number: int
    workers: int
    directory: str
    prepared: str
    extra: dict[str, Any]

    def to_json(self) -> str:
        """All of it as one argument of a command."""
        return json.dumps(asdict(self))

    @staticmethod
    def read() -> Rank:
        """What the command line of this process says."""
        values = json.loads(sys.argv[1])
        return Rank(**{**values, "case": Case(**values["case"])})

    def alone(self) -> Rank:
        """The same rank, as the only worker there is."""
        return replace(self, number=0, workers=1)

    def meet(self, point: str) -> None:
        """Wait at a point until all are there and the measuring process lets them go on."""
        directory = Path(self.directory)
        (directory / f"{point}.{self.number}").touch()
        while not (directory / f"{point}.go").exists():
            time.sleep(POLL_S)

    def order(self, number: int) -> dict[str, Any] | None:
        """The next block of steps to do; None if there is none any more."""
        directory = Path(self.directory)
        wanted, over = directory / f"block{number}.go", directory / f"{OVER}.go"
        while not wanted.exists():
            if over.exists():
                return None
            time.sleep(IDLE_POLL_S)
        order: dict[str, Any] = json.loads(wanted.read_text())
        return order

    def measure(
        self,
        step: Callable[[], Any],
        parameters: Callable[[], Mapping[str, np.ndarray]] | None,
        *,
        own_step: Callable[[], Any] | None = None,
        facts: Callable[[], Mapping[str, Any]] | None = None,
        use: Callable[[str], None] | None = None,
    ) -> None:
        """Do the checked steps, and blocks of steps until it is over.

        Args:
            step: does one step and returns when it is done.
            parameters: reads the parameters; called at rank 0.
            own_step: does the computation of one step alone; timed before everything else.
            facts: what else there is to report; called at rank 0 after the checked steps.
            use: lets another plan do the steps from now on.
        """
        directory = Path(self.directory)
        own_s = timed(own_step, self.case.warm_up, self.case.steps) if own_step else None
        for plan in self.extra.get("plans", [ONLY]):
            if use is not None:
                use(plan)
            for _ in range(self.case.checked_steps):
                step()
            self.meet(of_plan("checked", plan))
            if self.number == 0 and parameters is not None:
                write_values(directory / f"{of_plan('parameters', plan)}.npz", parameters())
            if self.number == 0 and facts is not None:
                (directory / f"{of_plan('facts', plan)}.json").write_text(json.dumps(facts()))
            (directory / f"{of_plan('written', plan)}.{self.number}").touch()
        number = 0
        while (order := self.order(number)) is not None:
            if use is not None:
                use(order["plan"])
            timed(step, 0, order["warm_up"])
            self.meet(f"begin{number}")
            step_s = timed(step, 0, order["steps"])
            if self.number == 0:
                own = float(np.median(own_s)) if own_s else None
                measured = {"step_s": step_s, "own_computation_s": own}
                (directory / f"measured{number}.json").write_text(json.dumps(measured))
            self.meet(f"end{number}")
            number += 1


def of_plan(word: str, plan: str) -> str:
    """The name of a point or a file, for one of several plans."""
    return word if plan == ONLY else f"{word}-{plan}"


def timed(step: Callable[[], Any], warm_up: int, steps: int) -> list[float]:
    """Seconds of each of `steps` steps, after `warm_up` that are not timed."""
    for _ in range(warm_up):
        step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def leave() -> None:
    """End this process at once: nobody waits for the threads of its libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
