"""The snapshots of a session: taken on the workers, found there again, and put back.

A worker that was restarted, or that was away, has none or an older one. Of those that have it one
gives it the variables that are equal on all. Of what differs between workers (moving averages,
totals, generators' states) the session keeps what it is together: where workers are new, all begin
with that, so means and sums are those of all that there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

import numpy as np
import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.core.errors import WorkerLostError
from caramel.core.facts import Variable
from caramel.core.plan import Plan
from caramel.modifiers import snapshots, variable_ops
from caramel.modifiers.step_tokens import host_of
from caramel.modifiers.variable_copies import differs
from caramel.runtime.execution.containers import Containers
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.running_job import RunningJob
from caramel.runtime.variables import SharedState

tf1 = tf.compat.v1

Since = TypeVar("Since")


class NoSnapshotError(WorkerLostError):
    """No worker has the last snapshot any more."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a snapshot that all workers had.

    Attributes:
        number: counts the snapshots of the session.
        slot: where the workers have it.
        devices: which workers these were.
        together: by name what variables were together that differ between workers.
    """

    number: int
    slot: int
    devices: tuple[str, ...]
    together: Mapping[str, np.ndarray]


class Snapshots(Generic[Since]):
    """Where a session with `Recovery` has its variables from, each time that it is opened.

    Args:
        since: what whoever takes snapshots knows of the time since the newest.

    Attributes:
        container: where snapshots are on the workers.
    """

    def __init__(self, since: Since) -> None:
        self.container = uuid4().hex
        # Always changed together, also if the caller is interrupted.
        self._newest_and_since: tuple[Snapshot | None, Since] = None, since
        self._begun = 0  # how many were begun to be taken
        self._has_new_workers = False

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
        return frozenset(v.name for v in plan.job.variables if self._newest is not None)

    def prepare(self, job: Job, runner: Runner, cluster: Cluster) -> None:
        """Add what takes snapshots to a new session, and what puts back the newest.

        Raises:
            NoSnapshotError: no worker has it.
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        plan, handles = job.plan, _handles(job)
        added = snapshots.keep_snapshots(plan, handles, self.container)
        runner.add(added.SerializeToString(), 0)
        if self._newest is None:
            return
        have = self._holders(self._newest, plan, runner)
        if not have:
            raise NoSnapshotError("no worker has the variables any more: all were restarted")
        givers = {worker: have[0] for worker in range(plan.workers) if worker not in have}
        back = snapshots.put_back_snapshot(plan, handles, self.container, self._newest.slot, givers)
        runner.add(back.SerializeToString(), 0)

    def hand_over(self, job: Job, runner: Runner, state: SharedState, cluster: Cluster) -> None:
        """Give all variables the values of the newest snapshot, if there is one.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        newest, plan = self._newest, job.plan
        if newest is None:
            return
        back = [snapshots.op_of(w, "put_back", newest.slot) for w in range(plan.workers)]
        runner.run([], back, {}, "putting back a snapshot")
        state.may_change()
        if plan.job.devices != newest.devices or self._has_new_workers:
            together = [v for v in plan.job.variables if v.name in newest.together]
            state.assign(together, newest.together)

    # Snapshots

    def take(self, running: RunningJob, since: Since) -> None:
        """Take one on every worker; nothing may be pending.

        Args:
            running: the workers.
            since: what `since` is from then on.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`; the newest before
                is still there then.
        """
        plan, runner, newest = running.job.plan, running.runner, self._newest
        slot = 0 if newest is None else (newest.slot + 1) % snapshots.SLOTS
        self._begun += 1
        workers = range(plan.workers)
        fed = {snapshots.number_fed(worker): np.array(self._begun) for worker in workers}
        takes = [snapshots.op_of(worker, "take", slot) for worker in workers]
        merged = [v for v in plan.job.variables if _is_kept_together(v, plan)]
        tensors = [running.state.value(v) for v in merged]
        values = runner.run(tensors, takes, fed, "taking a snapshot")
        together = {v.name: value for v, value in zip(merged, values, strict=True)}
        taken = Snapshot(self._begun, slot, plan.job.devices, together)
        self._newest_and_since = taken, since
        if newest is not None:
            drops = [snapshots.op_of(worker, "drop", newest.slot) for worker in workers]
            runner.run([], drops, {}, "letting go of a snapshot")

    def _holders(self, newest: Snapshot, plan: Plan, runner: Runner) -> list[int]:
        """The workers that have the newest snapshot."""
        graph = tf.Graph()
        with graph.as_default():
            handles = [
                _number(device, newest.slot, place, self.container)
                for device, place in zip(
                    plan.job.devices, snapshots.places(plan.job.devices), strict=True
                )
            ]
            are_there = [_on(handle, tf.raw_ops.VarIsInitializedOp) for handle in handles]
            numbers = [_on(h, tf.raw_ops.ReadVariableOp, dtype=tf.int64) for h in handles]

        def ask(session: Any) -> list[int]:
            there = [w for w, is_there in enumerate(session.run(are_there)) if is_there]
            values = session.run([numbers[worker] for worker in there])
            found = zip(there, values, strict=True)
            return [worker for worker, number in found if number == newest.number]

        have: list[int] = runner.aside(graph, ask, "looking for the last snapshot")
        self._has_new_workers = len(have) < plan.workers
        return have


def _handles(job: Job) -> dict[str, object]:
    """The nodes that put out the handles of workers' variables."""
    wanted, nodes = snapshots.originals(job.plan), tf1.GraphDef()
    nodes.ParseFromString(job.graph.parts[0].graph_def)
    return {node.name: node for node in nodes.node if node.name in wanted}


def _is_kept_together(variable: Variable, plan: Plan) -> bool:
    """Whether what workers have of a variable is something together; there is no mean of integers,
    of which a new worker gets another one's."""
    is_drawn_from = variable.name in plan.job.drawing
    return differs(variable, plan) and (is_drawn_from or variable_ops.is_merged(variable, plan))


def _number(device: str, slot: int, place: int, container: str) -> tf.Tensor:
    with tf.device(host_of(device)):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int64,
            shape=[],
            container=container,
            shared_name=snapshots.number_name(slot, place),
        )


def _on(handle: tf.Tensor, function: object, **attributes: object) -> tf.Tensor:
    """What an op makes of a handle, where that is."""
    with tf.device(handle.device):
        return function(resource=handle, **attributes)  # type: ignore[operator]


def memory_bytes(plan: Plan) -> int:
    """What a snapshot takes on each worker."""
    return sum(variable.spec.bytes or 0 for variable in plan.job.variables)
