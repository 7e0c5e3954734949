"""Which plan does the next training step? One of a session's plans, or each in its turn.

Every step is an ordinary exact one. Before another plan takes over, what is pending of the last
step is done.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from caramel.errors import PlanError
from caramel.feeds import SplitFeeds
from caramel.job import Job
from caramel.metrics import Metrics
from caramel.program import Fetch, Program, StepResult
from caramel.runner import Runner
from caramel.trials import Trials, TrialSettings, TrialState

_RECENT_STEPS = 50

_log = logging.getLogger(__name__)


class Stepper:
    """Runs training steps.

    Args:
        job: the distributed graph with its plans; more may be added to it.
        runner: runs parts of the graph.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self._job, self._runner = job, runner
        self._trials: Trials | None = None
        self._is_trying = False
        self._steps = 0
        self._recent_s: deque[float] = deque(maxlen=_RECENT_STEPS)
        first = next(iter(job.variants.values()))
        self._program = Program(first, job, runner)
        self._programs = {first.name: self._program}

    def begin(self) -> None:
        """Prepare the first step."""
        self._program.begin()

    @property
    def program(self) -> Program:
        """What did the last step, or will do the first."""
        return self._program

    def step(self, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        """One training step, by the plan whose turn it is.

        Raises:
            WorkerLostError: a worker was lost.
            tf.errors.OpError: an op has failed; that step does not count.
        """
        self._take_turn()
        result = self._timed(fetches, feeds)
        if self._trials is not None:
            self._trials.record(self._recent_s[-1], counts=result.is_usual)
        return result

    def step_as_before(self, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        """One training step by the plan of the last one, which counts in no trial.

        Raises:
            WorkerLostError, tf.errors.OpError: as `step`.
        """
        return self._timed(fetches, feeds)

    def use(self, name: str) -> None:
        """Let a plan do all following steps; trials end.

        Raises:
            PlanError: there is no such plan.
            WorkerLostError, tf.errors.OpError: what was pending has failed.
        """
        self._check(name)
        self._trials, self._is_trying = None, False
        self._keep(name)

    def try_plans(self, names: Sequence[str], settings: TrialSettings) -> None:
        """Let plans take turns from the next step on, until one of them is chosen.

        Raises:
            PlanError: there is no such plan, or none is named.
        """
        for name in names:
            self._check(name)
        self._trials, self._is_trying = Trials(names, settings), True

    def flush(self) -> None:
        """Do what is pending of the last step."""
        self._program.flush()

    def metrics(self) -> Metrics:
        """How training goes."""
        trials = self._trials.state() if self._trials else None
        return Metrics(self._steps, self._program.name, tuple(self._recent_s), trials)

    def close(self) -> None:
        """End the threads of all programs."""
        for program in self._programs.values():
            program.close()

    def _timed(self, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        begin_s = time.perf_counter()
        result = self._program.step(fetches, feeds)
        self._recent_s.append(time.perf_counter() - begin_s)
        self._steps += 1
        return result

    def _take_turn(self) -> None:
        """Let the plan whose turn it is, or the one that was chosen, do the next step."""
        if self._trials is None or not self._is_trying:
            return
        if not self._trials.is_over:
            self._switch(self._trials.turn)
            return
        self._keep(self._trials.turn)
        self._is_trying = False
        _log.info("plan '%s' is kept: %s", self._trials.turn, _told(self._trials.state()))

    def _switch(self, name: str) -> None:
        """Let a plan do the next step."""
        program = self._program_of(name)
        if program is not self._program:
            self._program.flush()
            self._program = program

    def _keep(self, name: str) -> None:
        """Let a plan do all steps; the others let go of what they keep."""
        self._switch(name)
        for program in self._programs.values():
            if program is not self._program:
                program.free()

    def _program_of(self, name: str) -> Program:
        """A plan's program, made when it is first asked for."""
        if name not in self._programs:
            program = Program(self._job.variants[name], self._job, self._runner)
            program.begin()
            self._programs[name] = program
        return self._programs[name]

    def _check(self, name: str) -> None:
        if name not in self._job.variants:
            known = ", ".join(f"'{each}'" for each in self._job.variants)
            raise PlanError(f"the session has no plan called '{name}'; there are {known}")


def _told(state: TrialState) -> str:
    """The medians in one line."""
    return ", ".join(
        f"'{plan.name}' " + ("untimed" if plan.median_s is None else f"{plan.median_s:.4f} s")
        for plan in state.plans
    )
