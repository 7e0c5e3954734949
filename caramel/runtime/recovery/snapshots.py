"""The snapshots of a session: taken on workers and servers, found there again, and put back.

A task that was restarted, or that was away, has none or an older one. Of those that have it one
gives it the variables that are equal on all, or that nobody else has. Of what differs between
workers (moving averages, totals, generators' states) the session keeps what it is together: where
workers are new, all begin with that, so means and sums are those of all that there were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from uuid import uuid4

import numpy as np

from caramel.cluster.cluster import Cluster
from caramel.core import names
from caramel.core.errors import WorkerLostError
from caramel.core.facts import Variable
from caramel.core.plan import Plan
from caramel.modifiers import snapshots, variable_ops
from caramel.modifiers.snapshots import Kept
from caramel.modifiers.values_left import Source
from caramel.modifiers.variable_copies import differs
from caramel.runtime.checkpoint import some_of
from caramel.runtime.execution.containers import Containers
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.recovery.bequest import Bequest, Bequests
from caramel.runtime.recovery.left_behind import holders, left_on
from caramel.runtime.remains import sources_of
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saved_progress import Progress
from caramel.runtime.variables import SharedState

Since = TypeVar("Since")


class NoSnapshotError(WorkerLostError):
    """Some variables are in no snapshot any more."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a snapshot that all tasks had.

    Attributes:
        number: counts the snapshots of the session.
        slot: where the tasks have it.
        devices: the workers of then.
        copies: by variable where it is.
        together: by name what variables were together that differ between workers.
    """

    number: int
    slot: int
    devices: tuple[str, ...]
    copies: Mapping[str, tuple[Kept, ...]]
    together: Mapping[str, np.ndarray]


class Snapshots(Generic[Since]):
    """Where a session with `Recovery` has its variables from, each time that it is opened.

    Args:
        since: what whoever takes snapshots knows of the time since the newest.
        bequests: for the next client, if this one is killed; None where it begins anew.

    Attributes:
        container: where snapshots are.
        most_bytes: what a snapshot takes of the memory of a task, at most.
        found: what a client that was killed has left, from which the session went on.
        is_thin: whether something of the newest is on fewer tasks than it would be of a new one, so
            that another loss may be one too many.
    """

    def __init__(self, since: Since, bequests: Bequests | None = None) -> None:
        self.container = uuid4().hex
        self._bequests = bequests
        self.found: Bequest | None = None
        # Always changed together, also if the caller is interrupted.
        self._newest_and_since: tuple[Snapshot | None, Since] = None, since
        self._begun = 0  # how many were begun to be taken
        self._copies: Mapping[str, tuple[Kept, ...]] = {}  # of the next one
        self._is_mixed = False  # whether workers got what others had for themselves
        self.most_bytes = 0
        self.is_thin = False

    @property
    def _newest(self) -> Snapshot | None:
        return self._newest_and_since[0]

    @property
    def since(self) -> Since:
        """What was given when the newest one was taken."""
        return self._newest_and_since[1]

    # What a session has its variables from (`running_job.Origin`)

    def check(self, plan: Plan) -> None:
        """Any plan of the job will do."""

    def containers(self) -> Containers | None:
        """The session's own state is in new containers."""
        return None

    def given(self, plan: Plan) -> frozenset[str]:
        """The variables that a snapshot gives values: all, if there is one."""
        has_one = self._newest is not None or self.found is not None
        return frozenset(v.name for v in plan.job.variables if has_one)

    @property
    def looks(self) -> bool:
        """Whether it looks at what clients that are gone have left: before its first snapshot."""
        return self._bequests is not None and self._newest is None

    def prepare(self, job: Job, runner: Runner, cluster: Cluster) -> None:
        """Add what takes snapshots to a new session, and what puts back the newest.

        Raises:
            NoSnapshotError: variables are in no snapshot any more.
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        plan, sources, newest = job.plan, sources_of(job), self._newest
        copies = [kept for _, kept in snapshots.kept_copies(plan, sources)]
        self._copies = _by_variable(copies)
        self.most_bytes = max(_bytes_of_tasks(copies).values(), default=0)
        before = [] if newest is None else [k for each in newest.copies.values() for k in each]
        added = snapshots.keep_snapshots(plan, sources, self.container, before)
        runner.add(added.SerializeToString(), 0)
        if newest is None:
            self._look(job, sources, runner)
            return
        tasks = snapshots.tasks_of(plan)
        have = holders(tasks, runner, self.container, newest.slot, newest.number)
        self.is_thin = any(
            _times_kept(newest.copies.get(name, ()), have) < _times_kept(new, tasks)
            for name, new in self._copies.items()
        )
        found = [(s, snapshots.kept_from(plan, s, newest.copies, have)) for s in sources]
        given = [(source, kept) for source, kept in found if kept is not None]
        if len(given) < len(found):
            gone = dict.fromkeys(source.variable.name for source, kept in found if kept is None)
            raise NoSnapshotError(f"{some_of(list(gone))} were on tasks that were lost together")
        self._is_mixed = any(
            kept.task != source.task for source, kept in given if differs(source.variable, plan)
        )
        back = snapshots.put_back_snapshot(plan, given, self.container, newest.slot)
        runner.add(back.SerializeToString(), 0)

    def hand_over(self, job: Job, runner: Runner, state: SharedState, cluster: Cluster) -> None:
        """Give all variables the values of the newest snapshot, if there is one.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        newest, plan = self._newest, job.plan
        if newest is None and self.found is not None:
            newest = _snapshot_of(self.found)
        if newest is None:
            return
        tasks = range(len(snapshots.tasks_of(plan)))
        back = [names.snapshot(task, "put_back", newest.slot) for task in tasks]
        runner.run([], back, {}, "putting back a snapshot")
        state.may_change()
        if plan.job.devices != newest.devices or self._is_mixed:
            together = [v for v in plan.job.variables if v.name in newest.together]
            state.assign(together, newest.together)

    # Snapshots

    def take(self, running: RunningJob, since: Since, progress: Progress | None = None) -> None:
        """Take one on every task; nothing may be pending.

        Args:
            running: the workers.
            since: what `since` is from then on.
            progress: where training is, for another client; None if that cannot be told.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`; the newest before
                is still there then.
        """
        plan, runner, newest = running.job.plan, running.runner, self._newest
        slot = 0 if newest is None else (newest.slot + 1) % snapshots.SLOTS
        self._begun += 1
        tasks = range(len(snapshots.tasks_of(plan)))
        fed = {names.snapshot_number_fed(task): np.array(self._begun) for task in tasks}
        takes = [names.snapshot(task, "take", slot) for task in tasks]
        merged = [v for v in plan.job.variables if _is_kept_together(v, plan)]
        tensors = [running.state.value(v) for v in merged]
        values = runner.run(tensors, [], {}, "taking a snapshot") if tensors else []
        together = {v.name: value for v, value in zip(merged, values, strict=True)}
        text = ""
        if self._bequests is not None and progress is not None:
            told = self._begun, slot, self._copies, together, progress
            text = self._bequests.written(running.job, *told)
        fed |= {names.snapshot_text_fed(task): np.array(text.encode()) for task in tasks}
        runner.run([], takes, fed, "taking a snapshot")
        taken = Snapshot(self._begun, slot, plan.job.devices, self._copies, together)
        self._newest_and_since = taken, since
        self.is_thin = False
        if newest is not None:
            drops = [names.snapshot(task, "drop", newest.slot) for task in tasks]
            runner.run([], drops, {}, "letting go of a snapshot")

    def _look(self, job: Job, sources: Sequence[Source], runner: Runner) -> None:
        """See whether a client that is gone has left a snapshot of this job, and add what gives
        variables its values."""
        self.found, plan, bequests = None, job.plan, self._bequests
        if bequests is None:
            return
        for left in left_on(snapshots.tasks_of(plan), runner, partial(bequests.read, job)):
            found = left.bequest
            kept = [(s, snapshots.kept_from(plan, s, found.copies, left.having)) for s in sources]
            given = [(source, each) for source, each in kept if each is not None]
            fits = all(source.variable.spec == each.spec for source, each in given)
            if len(given) == len(kept) and fits:
                back = snapshots.put_back_snapshot(plan, given, left.container, found.slot)
                runner.add(back.SerializeToString(), 0)
                runner.clear_left([left.container])
                self.found = found
                return
        runner.clear_left()


def _snapshot_of(found: Bequest) -> Snapshot:
    return Snapshot(found.number, found.slot, found.devices, found.copies, found.together)


def _by_variable(copies: list[Kept]) -> Mapping[str, tuple[Kept, ...]]:
    found: dict[str, list[Kept]] = {}
    for kept in copies:
        found.setdefault(kept.variable, []).append(kept)
    return {name: tuple(each) for name, each in found.items()}


def _times_kept(copies: Iterable[Kept], tasks: Iterable[str]) -> int:
    """How many of some tasks have a copy."""
    return len({kept.task for kept in copies}.intersection(tasks))


def _bytes_of_tasks(copies: list[Kept]) -> Mapping[str, int]:
    sizes: Counter[str] = Counter()
    for kept in copies:
        sizes[kept.task] += kept.spec.bytes or 0
    return sizes


def _is_kept_together(variable: Variable, plan: Plan) -> bool:
    """Whether what workers have of a variable is something together, also if there is only one
    worker now. There is no mean of integers, of which a new worker gets another one's."""
    is_drawn_from = variable.name in plan.job.drawing
    return differs(variable, plan) and (is_drawn_from or variable_ops.has_parts(variable, plan))
