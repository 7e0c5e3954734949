"""No plan can stop a job: the first steps of a new plan are given up if they never end.

A plan other than the plain one is on probation until a step of it has ended, and, if it defers
something, also what that step has left to be done later. Before, the variables are copied on their
workers (`Remembered`). A call of a plan on probation is cancelled by TensorFlow after
`TIMES_EXPECTED` times as long as the step was predicted or usually takes. The first call of a plan
is also prepared, so it gets at least `LEAST_S`, and more for a large graph; where nothing is known,
`UNKNOWN_S`. It never gets longer than a call of the session may take.

Where no worker waits for another one, TensorFlow takes a step that can never end for done, without
what stands still; so the marks of the step are counted, too (`StepMarks.are_complete`).

Some updates of such a step may have been done by then, on some workers, and nobody can tell which.
So all variables get back the values that they had, and whoever runs the steps does those that began
since then once more, by the plain plan, with the same feeds: each is done exactly once. What cannot
be taken back is what they have read: the batches of input pipelines are left out, random ops draw
anew, and what was put into tables and queues stays. What they had returned already, of a step whose
deferred part hangs, was right.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import TypeVar

import tensorflow as tf

from caramel.modifiers.variable_copies import differs
from caramel.native.malloc import total_bytes
from caramel.runtime.control.kept_variables import Remembered
from caramel.runtime.execution.calls import CallOptions
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.steps.feeds import SplitFeeds
from caramel.runtime.steps.plan_executor import PlanExecutor
from caramel.runtime.steps.step_result import Fetch, StepResult
from caramel.runtime.variables import SharedState

TIMES_EXPECTED = 100.0
LEAST_S, UNKNOWN_S = 30.0, 120.0
COPIED_SHARE = 0.25
"""Of the memory of this machine, that copies may take; larger variables are not copied, and a plan
of theirs is not given up."""

_SETTLED_S = 1.0  # for ops of a cancelled call that were running

_log = logging.getLogger(__name__)

Step = tuple[Sequence[Fetch], SplitFeeds]
Result = TypeVar("Result")


class GivenUpError(Exception):
    """A plan's step did not end; the variables are as before the steps that are to be done again.

    Attributes:
        plan: its name.
        steps: what was fetched and fed in each of these steps.
    """

    def __init__(self, plan: str, steps: Sequence[Step]) -> None:
        super().__init__(plan)
        self.plan, self.steps = plan, tuple(steps)


class Probation:
    """Watches over plans that have not done a step yet.

    Args:
        job: the distributed graph with its plans.
        runner: runs parts of the graph.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self._job, self._runner = job, runner
        self._state, self._remembered = SharedState(job, runner), Remembered(job, runner)
        self._trusted: set[str] = set()
        self._since: list[Step] = []  # which began since copies were taken, if there are any

    def prepare(self, plan: str) -> None:
        """A plan is about to be sent to the workers, by its name."""
        if plan not in self._trusted and not self._job.plans.is_plain(plan) and self._has_room():
            self._remembered.prepare()

    def step(
        self,
        executor: PlanExecutor,
        fetches: Sequence[Fetch],
        feeds: SplitFeeds,
        usual_s: Sequence[float],
        options: CallOptions,
    ) -> StepResult:
        """One step by an executor.

        Args:
            usual_s: how long the last usual steps took.
            options: how its calls are made; while the executor is on probation, it gets a limit.

        Raises:
            GivenUpError: it did not end; the step is to be done by another executor.
            WorkerLostError, tf.errors.OpError: as `PlanExecutor.step`.
        """
        if self._trusts(executor) or not (self._since or self._has_copies(executor)):
            return executor.step(fetches, feeds, options)
        self._since.append((fetches, feeds))
        return self._tried(executor, usual_s, partial(executor.step, fetches, feeds), options)

    def flush(self, executor: PlanExecutor, usual_s: Sequence[float], options: CallOptions) -> None:
        """Do what is pending of an executor's last step.

        Raises:
            GivenUpError: it did not end; the steps are to be done by another executor.
            WorkerLostError, tf.errors.OpError: as `PlanExecutor.flush`.
        """
        if self._trusts(executor) or not self._since or not executor.is_pending:
            executor.flush(options)
        else:
            self._tried(executor, usual_s, executor.flush, options)

    def _trusts(self, executor: PlanExecutor) -> bool:
        name = executor.name
        if name not in self._trusted and self._job.plans.is_plain(name):
            self._trusted.add(name)
        return name in self._trusted

    def _has_copies(self, executor: PlanExecutor) -> bool:
        """Copy all variables; whether that could be done."""
        if executor.is_pending:  # of a step that was interrupted
            return False
        if not self._has_room():
            _log.info("variables are too large to be copied before the first step of a plan")
            return False
        try:
            self._remembered.take()
        except tf.errors.OpError as error:
            _log.info("variables cannot be copied before the first step of a plan: %s", error)
            return False
        return True

    def _has_room(self) -> bool:
        """Whether the variables are small enough to be copied."""
        size = sum(variable.spec.bytes or 0 for variable in self._job.plan.job.variables)
        return size <= COPIED_SHARE * total_bytes()

    def _tried(
        self,
        executor: PlanExecutor,
        usual_s: Sequence[float],
        function: Callable[[CallOptions], Result],
        options: CallOptions,
    ) -> Result:
        """What a plan on probation does, within its limit."""
        limit_s = self._limit_s(executor.name, usual_s)
        limited = dataclasses.replace(options, limit_s=limit_s)
        begin_s = time.monotonic()
        try:
            result = function(limited)
            did_all = executor.did_all(limited)
        except tf.errors.OpError:
            if time.monotonic() - begin_s >= limit_s:
                late = f"did not end within {limit_s:.1f} s"
                raise self._given_up(executor, late) from None
            self._forget()
            raise
        except BaseException:
            self._since = []
            raise
        if not did_all:
            raise self._given_up(executor, "left out a part of what it is to do")
        if executor.is_proven:
            self._trusted.add(executor.name)
        if not executor.is_pending or executor.is_proven:
            self._forget()
        return result

    def _limit_s(self, plan: str, usual_s: Sequence[float]) -> float:
        """How long a call may take."""
        forecast = self._job.plans.forecast(plan)
        known_s = [] if forecast is None else [forecast.step_s]
        known_s += [median(usual_s)] if usual_s else []
        longest_s = TIMES_EXPECTED * max(known_s) if known_s else UNKNOWN_S
        prepared_s = self._runner.seconds_to_prepare(self._job.plans.ensure(plan).number)
        longest_s = max(longest_s, LEAST_S + prepared_s)
        return min(longest_s, self._runner.limit_of_calls_s)

    def _given_up(self, executor: PlanExecutor, why: str) -> GivenUpError:
        """Take back what was done of the steps since the copies were taken."""
        time.sleep(_SETTLED_S)
        executor.abandon()
        plan, steps = self._job.plan, self._since
        self._remembered.put_back()
        self._state.broadcast(v for v in plan.job.variables if not differs(v, plan))
        self._forget()
        lost = (
            "; the batches that it has read are left out" if plan.consequences.input_reads else ""
        )
        _log.warning(
            "plan '%s' is given up: its step %s. The variables are as they were before it%s; the "
            "plain plan does it in its place",
            executor.name,
            why,
            lost,
        )
        return GivenUpError(executor.name, steps)

    def _forget(self) -> None:
        """Let go of the copies; that it fails would not matter."""
        self._since = []
        with suppress(tf.errors.OpError):
            self._remembered.drop()
