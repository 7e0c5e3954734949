"""What clients that are gone have left on workers: the snapshots there, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.core import names
from caramel.core.names import TensorRef
from caramel.modifiers import snapshots
from caramel.modifiers.step_tokens import host_of
from caramel.native.session import GraphCall, GraphSession
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.execution.runner import Runner
from caramel.runtime.recovery.bequest import Bequest, Bequests


@dataclass(frozen=True, slots=True)
class Left:
    """A snapshot that was left.

    Attributes:
        bequest: what is known of it.
        container: where it is.
        having: the tasks that have it.
    """

    bequest: Bequest
    container: str
    having: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether some task has each of its variables."""
        copies = self.bequest.copies.values()
        return all(any(kept.task in self.having for kept in own) for own in copies)


def left_on(
    tasks: Sequence[str], runner: Runner, read: Callable[[Iterable[str]], Iterable[Bequest]]
) -> Iterator[Left]:
    """What was left, the newest first.

    Args:
        tasks: where to look, by their devices.
        runner: knows what clients that are gone have left there.
        read: makes what can be gone on from of texts.

    Raises:
        WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
    """
    if not runner.left:
        return
    found = [
        (bequest, container)
        for container, own in _texts(tasks, runner).items()
        for bequest in read(own)
    ]
    found.sort(key=lambda each: (each[0].progress.steps, each[0].number), reverse=True)
    for bequest, container in found:
        having = holders(tasks, runner, container, bequest.slot, bequest.number)
        yield Left(bequest, container, having)


def steps_left(cluster: Cluster, bequests: Bequests, timeout_s: float) -> int:
    """After how many steps the newest whole snapshot was taken that a client has left on workers; 0
    if there is none.

    Args:
        cluster: the workers.
        bequests: what of it can be gone on from.
        timeout_s: how long to wait for the workers, in seconds.

    Raises:
        ClusterError, WorkerStartError: as for a session.
        WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
    """
    if cluster.kind != "remote":  # others end with their client
        return 0
    runner = Runner(
        DistributedGraph(),
        cluster.devices,
        cluster,
        start_timeout_s=timeout_s,
        call_timeout_s=timeout_s,
        looks=True,
    )
    with closing(runner):
        tasks = [*cluster.devices, *cluster.server_devices]
        steps = (
            left.bequest.progress.steps
            for left in left_on(tasks, runner, bequests.read_of_any)
            if left.is_whole
        )
        return next(steps, 0)


def holders(
    tasks: Sequence[str], runner: Runner, container: str, slot: int, number: int
) -> tuple[str, ...]:
    """The tasks that have a snapshot.

    Args:
        tasks: where to look, by their devices.
        runner: reaches them.
        container: where it is.
        slot: where it is there.
        number: which it is.

    Raises:
        WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
    """
    graph = tf.Graph()
    with graph.as_default():
        shared = names.snapshot_number(slot)
        handles = [_scalar(task, shared, container, tf.int64) for task in tasks]
        are_there = [_on(handle, tf.raw_ops.VarIsInitializedOp) for handle in handles]
        numbers = [_on(h, tf.raw_ops.ReadVariableOp, dtype=tf.int64) for h in handles]

    def ask(session: GraphSession) -> tuple[str, ...]:
        flags = GraphCall(session, are_there, [], [])()
        there = [task for task, is_there in enumerate(flags) if is_there]
        values = GraphCall(session, [numbers[task] for task in there], [], [])()
        found = zip(there, values, strict=True)
        return tuple(tasks[task] for task, value in found if value == number)

    having: tuple[str, ...] = runner.aside(graph, ask, "looking for the last snapshot")
    return having


def _texts(tasks: Sequence[str], runner: Runner) -> dict[str, list[str]]:
    """What is told beside snapshots that clients have left, by container."""
    graph = tf.Graph()
    with graph.as_default():
        handles = [
            (container, _scalar(task, names.snapshot_text(slot), container, tf.string))
            for container in runner.left
            for task in tasks
            for slot in range(snapshots.SLOTS)
        ]
        are_there = [_on(handle, tf.raw_ops.VarIsInitializedOp) for _, handle in handles]
        values = [_on(h, tf.raw_ops.ReadVariableOp, dtype=tf.string) for _, h in handles]

    def ask(session: GraphSession) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        flags = GraphCall(session, are_there, [], [])()
        there = [number for number, is_there in enumerate(flags) if is_there]
        texts = GraphCall(session, [values[number] for number in there], [], [])()
        for number, text in zip(there, texts, strict=True):
            found.setdefault(handles[number][0], []).append(text.decode())
        return found

    return runner.aside(graph, ask, "looking for what clients have left")


def _scalar(task: str, name: str, container: str, dtype: tf.DType) -> tf.Tensor:
    with tf.device(host_of(task)):
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=[], container=container, shared_name=name)


def _on(handle: tf.Tensor, function: Any, **attributes: Any) -> TensorRef:
    """What an op makes of a handle, where that is."""
    with tf.device(handle.device):
        tensor = function(resource=handle, **attributes)
    return TensorRef(tensor.op.name, tensor.value_index)
