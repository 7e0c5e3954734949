"""Lets TensorFlow record all transfers of calls that are traced.

A traced call asks every worker to record what it receives, without waiting until the worker does.
On a busy machine that is too late for what a worker receives first: one step in five was traced
without some or all of its transfers, where four other processes had the two processors. So another
traced call, which only waits, is under way before and after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from caramel.native.session import GraphCall, GraphSession, NoSuchOpError
from caramel.runtime.execution.calls import CallThread

tf1 = tf.compat.v1

_END_S = 1.0

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Recording:
    """A session of its own, whose graph is small, so that its calls are ready at once.

    Each step needs a waiting call of its own: with one for forty steps, eight lacked transfers.

    Args:
        session: a new one.
        tasks: those that are to record; the first one waits.

    Raises:
        tf.errors.OpError: a worker cannot be reached.
    """

    def __init__(self, session: GraphSession, tasks: Sequence[str | None]) -> None:
        self._session = session
        begin, begun, wait, end = _graph(self._session, tasks)
        self._wait = GraphCall(self._session, [], [*begin, wait], [])
        self._begun = GraphCall(self._session, [], begun, [])
        self._end = GraphCall(self._session, [], [end], [])
        self._thread = CallThread("caramel-recording")

    def during(self, function: Callable[[], Result], traces: list[Any]) -> Result:
        """What a function returns that makes traced calls, while all workers record.

        Args:
            function: makes the traced calls of a step.
            traces: gets the `RunMetadata` of the waiting call. It has nothing of interest but where
                there are GPUs, since a process may give all their kernels to the first of the calls
                under way (not tried).

        Raises:
            tf.errors.OpError: a call has failed, or no worker records.
        """
        traces.append(metadata := tf1.RunMetadata())
        waiting = self._thread.submit(lambda: self._wait((), metadata))
        try:
            self._begun()
            return function()
        finally:
            self._end()
            if (error := waiting.exception()) is not None:
                _log.info("transfers may not have been recorded: %s", error)

    def prepare(self, graph_def: Any, op: str) -> Callable[[], list[Any]]:
        """What runs an op of a GraphDef while all workers record, and returns what was traced.

        Raises:
            tf.errors.OpError: an op cannot be placed, or a worker cannot be reached.
        """
        try:
            self._session.op(op)
        except NoSuchOpError:  # else it is there from a check that failed
            self._session.extend(graph_def.SerializeToString())
            self._session.place()
        call = GraphCall(self._session, [], [op], [])

        def trace() -> list[Any]:
            traces = [metadata := tf1.RunMetadata()]
            self.during(lambda: call((), metadata), traces)
            return [each.step_stats for each in traces]

        return trace

    def close(self) -> None:
        """End the session.

        Raises:
            tf.errors.OpError: TensorFlow failed to end it.
        """
        self._session.close()
        self.end()

    def end(self) -> None:
        """End the thread; the session was closed."""
        self._thread.end(_END_S)


def _graph(
    session: GraphSession, tasks: Sequence[str | None]
) -> tuple[list[str], list[str], str, str]:
    """Ops that say on each task that it has begun, wait for that, wait for the end, and end."""
    graph, begin, begun = tf.Graph(), [], []
    with graph.as_default():
        for task in tasks:
            with tf.device(task):
                queue = tf.queue.FIFOQueue(1, [tf.bool], [[]])
                begin.append(queue.enqueue(True).name)
                begun.append(queue.dequeue().op.name)
        with tf.device(tasks[0]):
            queue = tf.queue.FIFOQueue(1, [tf.bool], [[]])
            wait, end = queue.dequeue().op.name, queue.enqueue(True).name
    session.extend(graph.as_graph_def().SerializeToString())
    session.place()
    return begin, begun, wait, end
