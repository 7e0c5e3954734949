"""A session's life: how it is opened, what it tells of itself, and how it ends.

`session` has what it is asked to do.
"""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import FeedError, SessionError
from caramel.core.plan import Plan
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import checked
from caramel.core.util.rows import Row, html_table
from caramel.core.util.sizes import counted
from caramel.core.util.stopwatch import Stopwatch
from caramel.runtime.checkpoints import Checkpoints
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.course import Course
from caramel.runtime.execution.liveness import LOST_AFTER_S
from caramel.runtime.inheritance import Inheritance
from caramel.runtime.job import Job
from caramel.runtime.preemption import Preemption, check_last, path_of_last
from caramel.runtime.recovery.bequest import Bequests
from caramel.runtime.recovery.settings import Recovery
from caramel.runtime.recovery.supervised import JobsOn, Supervised
from caramel.runtime.running_job import RunningJob, start_job
from caramel.runtime.summaries import Summaries
from caramel.runtime.turns import Turns, in_turn, last_turn
from caramel.runtime.work import Unattended, Work

Own = TypeVar("Own", bound="SessionLife")


class SessionLife:
    """What `caramel.runtime.session.Session` is besides what it does.

    Args:
        jobs: the steps of the job by name.
        settings: how plans are chosen, and when a step counts as stalled.
        cluster: the workers.
        start_timeout_s: how long to wait for the workers, in seconds.
        step_timeout_s: how long one step, or any other call, may take, in seconds; to place the
            graph of a plan may take longer.
        lost_after_s: how long a worker may not answer before it counts as lost, in seconds.
        config: options of the TensorFlow session, such as thread counts.
        stopwatch: told how long each part of the opening takes.
        building_s: how long it took to build the model, in seconds.
        initial_feeds: values by tensor or name, of placeholders that initial values depend on.
        variables: another session, with whose variables on parameter servers this one begins.
        shares: whether it works on these themselves, and not on copies.
        resume: the directory from whose newest checkpoint it goes on.
        save_on_sigterm: the path of what is saved when the process is told to end.
        recover: how it goes on after the loss of a worker; None for not at all.
        jobs_on: for that makes the job for other workers.

    Raises:
        SessionError: the other session is closed.
        PlanError: the other session has other variables or servers.
        FeedError: an initial value depends on a placeholder that is not fed.
        WorkerStartError: a worker cannot be reached, or is none of this cluster.
        ClusterError: a device that is asked for does not exist.
    """

    def __init__(
        self,
        jobs: Mapping[StepName, Job],
        settings: ControlSettings,
        cluster: Cluster,
        *,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 1800.0,
        lost_after_s: float = LOST_AFTER_S,
        config: Any = None,
        stopwatch: Stopwatch | None = None,
        building_s: float = 0.0,
        initial_feeds: Mapping[Any, Any] | None = None,
        variables: SessionLife | None = None,
        shares: bool = False,
        resume: str | os.PathLike[str] | None = None,
        save_on_sigterm: str | os.PathLike[str] | None = None,
        recover: Recovery | None = None,
        jobs_on: JobsOn | None = None,
    ) -> None:
        begin_s = time.perf_counter()
        self._turns = Turns()
        self._course = Course(is_kept=resume is not None or save_on_sigterm is not None)
        self._checkpoints = Checkpoints(self._course)
        self._summaries: Summaries | None = None
        if save_on_sigterm is not None:
            check_last(save_on_sigterm)
        self._last, self._resume = save_on_sigterm, resume
        self._parts = parts = ExitStack()
        # Also if nobody closes the session, when it is collected or the interpreter ends.
        self._end = weakref.finalize(self, _end, self._turns, parts)
        # Agents read what the other session has for as long as that is open.
        self._origin = variables if shares else None
        self._inherited: Inheritance | None = None
        try:
            start = partial(
                start_job,
                settings=settings,
                start_timeout_s=start_timeout_s,
                step_timeout_s=step_timeout_s,
                lost_after_s=lost_after_s,
                config=config,
                stopwatch=stopwatch or Stopwatch(False),
                initial_feeds=initial_feeds,
            )
            self._work: Work
            if recover is not None and jobs_on is not None:
                bequests = None if resume is None else Bequests(resume)
                self._work = Supervised(
                    jobs_on, start, cluster, recover, parts, self._course, bequests
                )
            else:
                origin = None if variables is None else variables._bequeathed(shares=shares)
                self._inherited = origin
                self._work = Unattended(start(jobs, cluster, parts, origin=origin), self._course)
            parts.callback(self._checkpoints.wait)
            if resume is not None:
                self._resume_from(resume)
            if save_on_sigterm is not None:
                parts.callback(Preemption(self._save_last, self._turns).end)
            self._spent_s = building_s, time.perf_counter() - begin_s
        except BaseException:
            self.close()
            raise

    # What it tells of itself

    @property
    def plan(self) -> Plan:
        """The plan in use: the one that did the last step, or will do the first.

        While plans take turns, another one may do the next step (`Session.metrics`).
        """
        return self._running.controllers.active.executor.plan

    @property
    def resumed(self) -> str | None:
        """The path of the checkpoint from which this session went on, where it was opened with
        ``resume``; "snapshot" if it went on with what workers still had of a program that was
        killed; None if training began anew."""
        return self._course.resumed

    @property
    def steps_done(self) -> int:
        """How many training steps were done, also those before the checkpoint from which this
        session went on. Where the job has several steps, all of them together."""
        return self._course.steps

    def _resume_from(self, directory: str | os.PathLike[str]) -> None:
        """Go on from the newest checkpoint of a directory, if there is one."""
        self._work.change(lambda running: self._course.resume(running, directory))

    def _go_on_after(self, steps: int) -> None:
        """An earlier session has done so many steps of this training."""
        self._course.go_on_after(steps)

    @checked(FeedError)
    def metrics(self, *, step: StepName | None = None) -> Metrics:
        """How training goes: steps, the plan in use, step times, trials, stalls.

        Also after the end, and from another thread while a step runs.

        Args:
            step: of which step, where the job has several.

        Raises:
            FeedError: the job has several steps, and `step` is none of them.
        """
        found, (building_s, opening_s) = self._work.metrics(step), self._spent_s
        spent = dataclasses.replace(found.spent, building_s=building_s, opening_s=opening_s)
        return dataclasses.replace(found, spent=spent)

    @property
    def has_failed(self) -> bool:
        """Whether it cannot be used any more: a worker was lost, or it is closed."""
        return not self._end.alive or self._work.has_failed

    @property
    def has_servers(self) -> bool:
        """Whether the variables are on parameter servers."""
        return bool(self._running.job.plan.job.servers)

    @property
    def _missing(self) -> tuple[Task, ...]:
        """Tasks without which it goes on, since they were lost."""
        return self._work.missing

    @property
    def _state(self) -> str:
        """Whether it can be used, in words."""
        if not self._end.alive:
            return "closed"
        if not self._work.has_failed:
            return "open"
        runner = self._running.runner
        lost = [runner.cluster.name(runner.cluster.tasks.index(task)) for task in runner.lost]
        return f"lost {' and '.join(lost)}" if lost else "failed"

    def __repr__(self) -> str:
        if not hasattr(self, "_work"):  # it is looked at while it is being opened
            return f"<{type(self).__name__}: not opened>"
        steps = counted(self.steps_done, "step")
        name = self._running.controllers.active.executor.name
        return f"<{type(self).__name__}: {self._state}, {steps} done, plan '{name}': {self.plan!r}>"

    def _rows(self) -> Iterator[Row]:
        yield "session", self._state
        names = self._running.controllers.steps
        for step in names:
            for name, value in self._work.metrics(step).rows():
                yield name if len(names) == 1 else f"{step}: {name}", value
        yield from self.plan.rows()

    def _repr_html_(self) -> str:
        return html_table(self._rows())

    # Life

    def _open(self) -> Work:
        """What does what the session is asked for.

        Raises:
            SessionError: it is closed.
            CheckpointError: what was written beside the last steps has failed.
        """
        if not self._end.alive:
            raise SessionError("the session is closed; open another with model.session()")
        if self._origin is not None and not self._origin._end.alive:
            raise SessionError(
                "the session on whose variables this one works was closed, and they are gone"
            )
        origin, inherited = self._origin, self._inherited
        if origin and inherited and origin._running.runner is not inherited.runner:
            raise SessionError(
                "the session on whose variables this one works has gone on after a loss, with "
                "others on the servers: open this one again"
            )
        self._checkpoints.check()
        return self._work

    @property
    def _running(self) -> RunningJob:
        """What the session works with now."""
        return self._work.running

    @in_turn
    def _bequeathed(self, *, shares: bool) -> Inheritance:
        """What another session begins with; also after a worker was lost."""
        running = self._open().running
        if not running.runner.has_failed:
            running.settle()
        return Inheritance(running.job.plan, running.runner, shares)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write a checkpoint: see `caramel.runtime.session.Session.save`."""
        raise NotImplementedError

    def _save_last(self) -> str:
        """Save when the process is told to end; waits for a turn."""
        assert self._last is not None
        self._checkpoints.give_up()
        # Only now: the directory may have been made by what was saved before.
        return self.save(path_of_last(self._last, self._resume))

    @last_turn
    def close(self) -> None:
        """End the session; the variables are gone. Closing it again does nothing.

        It waits for what another thread is doing in the session, a step for no longer than
        `step_timeout_s`. Other threads that wait for their turn then get a `SessionError`. In a
        forked child it returns at once, and the parent goes on.

        Raises:
            CheckpointError: what was written beside the last steps has failed; it is closed all the
                same.
        """
        self._end()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:  # which is more important than that of a checkpoint
            self._checkpoints.give_up()
        self.close()


def _end(turns: Turns, parts: ExitStack) -> None:
    """Close the parts of a session.

    Not in a forked child, and not when the interpreter ends while a thread is in the middle of
    something, which may take long.
    """
    if not turns.are_of_others:
        parts.close()
