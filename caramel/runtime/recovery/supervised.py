"""Goes on after the loss of workers, unseen by whoever asks for steps.

Now and then all workers take a snapshot of their variables, and what is fed from then on is kept.
A session of TensorFlow that has lost a worker cannot be used any more, and what a step was doing
then may be half done. So a new one is opened, on the workers that are there then; variables get
the values of the snapshot, the steps since are done once more, and at last what was under way.

What changes variables without being a step is not kept, but followed by a snapshot.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import (
    CaramelError,
    RecoveryError,
    SessionError,
    WorkerLostError,
    WorkerStartError,
)
from caramel.core.train_steps import StepName, chosen
from caramel.core.util.sizes import bytes_text
from caramel.runtime.control.controllers import Controllers
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.course import Course
from caramel.runtime.evaluation import effects_of, evaluate
from caramel.runtime.execution.containers import drop
from caramel.runtime.job import Job
from caramel.runtime.recovery.bequest import Bequests
from caramel.runtime.recovery.kept_calls import KeptCalls, RunCall, StepCall
from caramel.runtime.recovery.members import Members
from caramel.runtime.recovery.pace import Pace
from caramel.runtime.recovery.positions import Opening, Positions, Teller, reads_of_step
from caramel.runtime.recovery.record import RecoveryRecord
from caramel.runtime.recovery.restarts import Restarts
from caramel.runtime.recovery.settings import Recovery
from caramel.runtime.recovery.snapshots import NoSnapshotError, Snapshots
from caramel.runtime.running_job import Origin, RunningJob
from caramel.runtime.saved_progress import iterators
from caramel.runtime.steps.user_fetches import UserFetches

_CLOSING_S = 5.0

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Jobs = Mapping[StepName, Job]
JobsOn = Callable[[Cluster], Jobs]
"""The steps of the job, made for a cluster; always the same for the same workers."""


class Start(Protocol):
    """Opens a session of TensorFlow: `caramel.runtime.running_job.start_job`."""

    def __call__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        parts: ExitStack,
        *,
        origin: Origin | None,
        earlier: Controllers | None,
    ) -> RunningJob:
        """A job that runs on a cluster; what is to be closed goes into `parts`."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A session of TensorFlow, and what closes it."""

    jobs: Jobs
    running: RunningJob
    parts: ExitStack


@dataclass(frozen=True, slots=True)
class _Since:
    """What there is to know of a snapshot, to be where the session was later.

    Attributes:
        positions: where input pipelines were.
        steps: how many steps of the session had been done.
        kept: what was done since.
    """

    positions: Positions = field(default_factory=Positions)
    steps: int = 0
    kept: KeptCalls = field(default_factory=KeptCalls)


class Supervised:
    """A job that is brought back after each loss (`caramel.runtime.work.Work`).

    Args:
        jobs_on: makes the job for workers.
        start: opens a session of TensorFlow.
        cluster: the workers.
        settings: what the user says of it.
        parts: gets what is to be closed in the end.
        course: how far training is.
        bequests: for the next client, if this one is killed; None where that begins anew.
    """

    def __init__(
        self,
        jobs_on: JobsOn,
        start: Start,
        cluster: Cluster,
        settings: Recovery,
        parts: ExitStack,
        course: Course,
        bequests: Bequests | None = None,
    ) -> None:
        self._jobs_on, self._start, self._all = jobs_on, start, cluster
        self._course = course
        self._members = Members(cluster, settings)
        self._restarts = Restarts(settings.restarts)
        self._snapshots = Snapshots(_Since(), bequests)
        self._pace = Pace(settings.snapshot_every)
        self._positions = Positions()  # now
        self._teller = Teller()
        self._reads: dict[Any, tuple[str, ...]] = {}
        self._done: Counter[StepName] = Counter()  # by name of the step how often it was done
        self._wants_snapshot = True  # whether steps since the last one would not lead to here
        self._loss: WorkerLostError | None = None  # from which it has not recovered yet
        self._lost: tuple[Task, ...] = ()  # what has to be brought back for that
        self._records: tuple[RecoveryRecord, ...] = ()
        self._unfit: set[tuple[Task, ...]] = set()  # those that cannot do the job together
        self._given_up: str | None = None  # why nothing can be done any more
        self._closings: list[threading.Thread] = []
        parts.callback(self._close)
        self._opened = self._open(earlier=None)
        course.found = None if self._snapshots.found is None else self._snapshots.found.progress
        most = bytes_text(self._snapshots.most_bytes)
        _log.info("snapshots take up to %s of memory on each worker and server", most)

    @property
    def running(self) -> RunningJob:
        """The workers, and what is on them; another one after a loss."""
        return self._opened.running

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be done any more."""
        has_lost = self._loss is not None  # and may go on
        return self._given_up is not None or (self.running.runner.has_failed and not has_lost)

    @property
    def missing(self) -> tuple[Task, ...]:
        """Tasks without which it goes on, since they were lost."""
        return self._members.missing

    @property
    def _since(self) -> _Since:
        return self._snapshots.since

    # What is asked for

    def steps(self, call: StepCall, function: Callable[[RunningJob], Result]) -> Result:
        """Training steps, after a snapshot if it is time for one."""

        def work() -> Result:
            if self._wants_snapshot or self._pace.is_due(self._since.kept.bytes):
                self._snapshot()
                self._take_in()
            begin_s = time.perf_counter()
            try:
                result = function(self.running)
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError:  # what it has taken of pipelines is gone
                self._advance(self._reading(call))
                raise
            self._pace.stepped(time.perf_counter() - begin_s, call.times)
            own = self._reading(call)
            self._since.kept.add(own)
            self._advance(own)
            self._done[chosen(call.step, self._opened.jobs)] += call.times
            self._restarts.succeeded()
            return result

        return self._attended(work)

    def read(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes no variables."""
        return self._attended(lambda: function(self.running))

    def change(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes variables."""

        def work() -> Result:
            result = function(self.running)
            self._snapshot()
            return result

        return self._attended(work)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Part of the graph."""

        def work() -> Any:
            result = evaluate(self.running, fetches, feed_dict)
            self._course.ran(self.running, fetches)
            job = self.running.job
            effects = effects_of(job, fetches, feed_dict)
            call = RunCall(feed_dict, fetches, effects.reads)
            self._advance(call)
            if effects.prepared:
                opening = Opening(call.copied(), effects)
                self._positions = self._positions.after_opening(job, opening)
            if effects.prepared or effects.writes:
                self._snapshot()
            elif effects.reads:
                self._since.kept.add(call)
            return result

        return self._attended(work)

    def metrics(self, step: StepName | None) -> Metrics:
        """How training by a step goes; steps that were done again count once."""
        metrics = self.running.controllers.metrics(step)
        done = self._done[chosen(step, self._opened.jobs)]
        return dataclasses.replace(metrics, steps=done, recoveries=self._records)

    # Losses

    def _attended(self, work: Callable[[], Result]) -> Result:
        """What something returns that is done again after each loss."""
        if self._given_up is not None:
            raise SessionError(f"the session cannot be used any more: {self._given_up}")
        while True:
            try:
                if self._loss is not None:
                    self._recover(self._loss)
                return work()
            except RecoveryError as error:
                self._given_up = str(error)
                raise
            except WorkerLostError as loss:
                self._loss, self._lost = loss, loss.lost
            except BaseException:
                self._wants_snapshot = True
                raise

    def _recover(self, loss: WorkerLostError) -> None:
        """Be where the session was before a loss.

        Raises:
            RecoveryError: it cannot be.
        """
        begin_s, at_s = time.monotonic(), time.time()
        lost, before = self._members.describe(loss.lost), self._members.missing
        _log.warning("%s; going back to the last snapshot", _short(loss))
        error: Exception = loss
        while True:
            if not self._restarts.begin():
                raise RecoveryError(
                    f"{error}; given up, since it was tried to go on {self._restarts.most} times "
                    "within an hour (caramel.Recovery.restarts)",
                    loss.lost,
                ) from error
            try:
                self._bring_back()
                break
            except NoSnapshotError as none:
                raise RecoveryError(
                    f"{_short(loss)}; given up, since {none}: restore the last checkpoint in a new "
                    "session",
                    loss.lost,
                ) from none
            except RecoveryError as few:
                raise RecoveryError(f"{loss}; given up: {few}", few.lost) from loss
            except WorkerLostError as again:
                error, self._lost = again, again.lost
            except WorkerStartError as again:
                error = again
            _log.warning("it did not go on: %s", error)
        self._loss = None
        returned = [task for task in before if task not in self._members.missing]
        self._tell(lost, returned, at_s, time.monotonic() - begin_s, _short(loss))

    def _bring_back(self) -> None:
        """Open a session on the workers that are there, and do again what was done."""
        self._members.gather(self._lost)
        self._lost = ()
        self._close_beside(self._opened.parts)
        self._reopen()
        for call in self._since.kept:
            call.do(self.running)
            self._advance(call)

    def _reopen(self) -> None:
        """Open another session of TensorFlow, with what the last snapshot has."""
        earlier = self._opened.running.controllers
        self._opened = self._open(earlier)
        self._wants_snapshot = self._wants_snapshot or self._snapshots.is_thin
        self._pace.begin_again()
        then = self._since.positions
        self._positions = dataclasses.replace(then, told={})
        if then.are_any:
            then.bring_back(self.running, self._course)
            # What opened pipelines may have written variables.
            running = self.running
            self._snapshots.hand_over(
                running.job, running.runner, running.state, self._members.cluster
            )

    def _open(self, earlier: Controllers | None) -> _Opened:
        cluster, parts = self._members.cluster, ExitStack()
        jobs = self._made(cluster)
        is_same = earlier is not None and jobs is self._opened.jobs
        try:
            running = self._start(
                jobs,
                cluster,
                parts,
                origin=self._snapshots,
                earlier=earlier if is_same else None,
            )
        except BaseException:
            parts.close()
            raise
        return _Opened(jobs, running, parts)

    def _made(self, cluster: Cluster) -> Jobs:
        """The job for those that take part.

        Raises:
            RecoveryError: they cannot do it.
        """
        try:
            return self._jobs_on(cluster)
        except CaramelError as error:
            missing = self._members.missing
            raise RecoveryError(
                f"it cannot go on without {', '.join(self._members.describe(missing))}: {error}",
                missing,
            ) from error

    # Snapshots

    def _snapshot(self) -> None:
        begin_s = time.perf_counter()
        self.running.settle()
        told = self._teller.told(self.running) if self._positions.are_any else {}
        positions = dataclasses.replace(self._positions, told=told)
        has_all = told.keys() >= set(iterators(self.running.job)) or not self._positions.are_any
        progress = self._course.progress(self.running, told) if has_all else None
        self._snapshots.take(self.running, _Since(positions, self._done.total()), progress)
        if self._wants_snapshot:
            self.running.runner.clear_left()
        self._wants_snapshot = False
        self._pace.taken(time.perf_counter() - begin_s)

    def _take_in(self) -> None:
        """Let workers take part again that have come back; a snapshot was just taken."""
        before, those_of_now = self._members.missing, self._members.cluster
        if not before or not self._members.returned():
            return
        if not self._can_do(self._members.cluster):
            self._members.cluster = those_of_now
            return
        begin_s, at_s = time.monotonic(), time.time()
        self._opened.parts.close()
        try:
            self._reopen()
        except WorkerStartError as error:
            raise WorkerLostError(str(error)) from error
        returned = [task for task in before if task not in self._members.missing]
        self._tell((), returned, at_s, time.monotonic() - begin_s, "workers have come back")

    def _can_do(self, cluster: Cluster) -> bool:
        """Whether the job can be done by more than do it now; if not, it goes on with these."""
        if cluster.tasks in self._unfit:
            return False
        try:
            self._made(cluster)
        except RecoveryError as error:
            _log.warning("who has come back cannot take part: %s", error)
            self._unfit.add(cluster.tasks)
            return False
        return True

    def _reading(self, call: StepCall) -> StepCall:
        """A step, with the ops by which it takes elements of pipelines."""
        job = self.running.job
        if not job.pipelines.iterators:
            return call
        fetched = UserFetches(job, [] if call.fetches is None else call.fetches).ops
        key = (call.step, tuple(fetched))
        if key not in self._reads:
            controller = self.running.controllers.own(call.step)
            self._reads[key] = reads_of_step(controller.job, fetched)
        return dataclasses.replace(call, reads=self._reads[key])

    def _advance(self, call: StepCall | RunCall) -> None:
        """What was done has taken elements of pipelines."""
        self._positions = self._positions.after(self.running.job, call)

    # Telling, and the end

    def _tell(
        self,
        lost: Sequence[str],
        returned: Sequence[Task],
        at_s: float,
        took_s: float,
        reason: str,
    ) -> None:
        record = RecoveryRecord(
            tuple(lost),
            self._members.describe(returned),
            at_s,
            took_s,
            self._since.steps,
            self._since.kept.steps,
            self._members.cluster.size,
            len(self._members.cluster.servers),
            reason,
        )
        self._records = (*self._records, record)
        servers = ""
        if self._all.servers:
            servers = f" and {record.servers} of {len(self._all.servers)} parameter servers"
        _log.warning(
            "training goes on with %d of %d workers%s after %.1f s: %d steps were done again from "
            "the snapshot after step %d",
            record.workers,
            self._all.size,
            servers,
            record.took_s,
            record.repeated,
            record.snapshot,
        )

    def _close_beside(self, parts: ExitStack) -> None:
        """Close what was lost; threads that wait for a lost worker are not waited for."""
        thread = threading.Thread(target=parts.close, name="caramel-closing", daemon=True)
        thread.start()
        self._closings = [each for each in self._closings if each.is_alive()] + [thread]

    def _close(self) -> None:
        opened = getattr(self, "_opened", None)
        if opened is not None:
            opened.parts.close()
        for thread in self._closings:
            thread.join(_CLOSING_S)
        drop([self._snapshots.container], self._members.cluster.targets)


def _short(loss: WorkerLostError) -> str:
    """What was lost, without what to do."""
    return str(loss).partition(";")[0]
