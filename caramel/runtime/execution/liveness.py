"""Which workers answer? Each is asked by a call that TensorFlow's server answers by itself.

It is `MarkRecvFinished` of TensorFlow's worker service, with nothing in it: the thread that takes
calls answers it at once, whatever the worker computes. (`GetStatus` waits for one of the threads
that compute: a worker in the middle of long ops would seem lost.) A process that was stopped, or a
proxy in place of one that has ended, does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import grpc

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task

_METHOD = "/tensorflow.WorkerService/MarkRecvFinished"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # workers are reached directly, as TensorFlow does
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
)
LOST_AFTER_S = 30.0
"""How long a worker may not answer, unless the user says something else: a network that is
interrupted for some seconds, or a machine that is moved, ends no job."""

_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_ANSWER_S = 5.0  # for one call, before another one is made over a new connection
_AT_ONCE_S = 0.1  # what is alive has answered by then
_MISSING_S = 1.5  # a slow link may hold an answer up for long
_REFUSE_S = 0.5
_REFUSALS = 2  # in a row, before a task counts as lost: it may be starting anew
_LONGEST_LOOK_S = 2.0

SILENT = "was the process stopped, or does a proxy accept in its place?"


class Liveness:
    """Whether the tasks of a cluster answer, while somebody waits for them.

    Those inside this process always do. Connections are kept from the first look on.

    Args:
        cluster: the tasks.
        lost_after_s: how long a task may say nothing before it counts as lost, in seconds.

    Attributes:
        missing: the tasks that refuse to answer, or have not for a while.
        lost: those that count as lost, and what is to be said of it.
    """

    def __init__(self, cluster: Cluster, lost_after_s: float) -> None:
        self._cluster, self._lost_after_s = cluster, lost_after_s
        self._pulses = _pulses_of(cluster)
        self._looked_s: float | None = None
        self.missing: tuple[Task, ...] = ()
        self.lost: Mapping[Task, str] = {}

    def begin(self) -> None:
        """A call begins: no task has been silent yet."""
        self._looked_s, self.missing, self.lost = None, (), {}
        for pulse in self._pulses.values():
            pulse.silent_s, pulse.refusals = 0.0, 0

    def look(self) -> None:
        """Ask all tasks again that have answered, and see who has not."""
        now_s = time.monotonic()
        # If this process did not run for long (was it stopped?), others need not have been silent.
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        for pulse in self._pulses.values():
            pulse.ask(_ANSWER_S)
        for pulse in self._pulses.values():
            pulse.listen(now_s + _AT_ONCE_S - time.monotonic(), passed_s)
        failed = any(pulse.has_failed for pulse in self._pulses.values())
        refusing = self._cluster.refusing(_REFUSE_S) if failed else ()
        for task, pulse in self._pulses.items():
            pulse.refusals = pulse.refusals + 1 if task in refusing else 0
        self.missing = tuple(task for task, p in self._pulses.items() if p.is_missing)
        losses = {task: self._loss(pulse) for task, pulse in self._pulses.items()}
        self.lost = {task: how for task, how in losses.items() if how is not None}

    def _loss(self, pulse: _Pulse) -> str | None:
        """What is to be said of a task if it counts as lost; None if it does not."""
        if pulse.refusals >= _REFUSALS:
            return ""  # how its process ended says more
        if pulse.silent_s >= self._lost_after_s:
            return f"no answer for {self._lost_after_s:g} s ({SILENT})"
        return None

    def close(self) -> None:
        """Close the connections."""
        for pulse in self._pulses.values():
            pulse.close()


def unanswering(cluster: Cluster, timeout_s: float) -> tuple[Task, ...]:
    """The tasks that do not answer in time, asked all at once over connections of their own.

    Args:
        cluster: the tasks; those inside this process always answer.
        timeout_s: how long they may take together, in seconds.
    """
    pulses, deadline = _pulses_of(cluster), time.monotonic() + timeout_s
    for pulse in pulses.values():
        pulse.ask(timeout_s)
    for pulse in pulses.values():
        pulse.listen(deadline - time.monotonic(), 0.0)
        pulse.close()
    return tuple(task for task, pulse in pulses.items() if not pulse.has_answered)


def _pulses_of(cluster: Cluster) -> dict[Task, _Pulse]:
    places = zip(cluster.tasks, cluster.targets, strict=True)
    return {task: _Pulse(target) for task, target in places if target}


class _Pulse:
    """Whether one task answers.

    Attributes:
        has_answered, has_failed: what became of the last call; neither, if it is not answered yet.
        silent_s: how long there has been no answer, in seconds.
        refusals: how often in a row nobody listened.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._channel: Any = None
        self._call: Any = None
        self.has_answered = self.has_failed = False
        self.silent_s, self.refusals = 0.0, 0

    @property
    def is_missing(self) -> bool:
        """Whether the task refuses to answer, or has not for a while."""
        return self.has_failed or self.silent_s >= _MISSING_S

    def ask(self, timeout_s: float) -> None:
        """Make a call, unless the answer to one is still to come."""
        if self._call is not None:
            return
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._target, options=_OPTIONS)
        try:
            self._call = self._channel.unary_unary(_METHOD).future(b"", timeout=timeout_s)
        except RuntimeError:  # Python begins no thread while it ends: then nothing is known
            self._call = None

    def listen(self, timeout_s: float, passed_s: float) -> None:
        """Wait for the answer no longer than that.

        Args:
            timeout_s: how long, in seconds; also less than 0.
            passed_s: how long there was nobody to listen before, in seconds.
        """
        self.has_answered = self.has_failed = False
        self.silent_s += passed_s
        try:
            error = None if self._call is None else self._call.exception(max(0.0, timeout_s))
        except grpc.FutureTimeoutError:
            return
        self._call = None
        if error is None or error.code() not in _UNANSWERED:
            self.has_answered, self.silent_s = True, 0.0
        else:
            self.has_failed = error.code() is grpc.StatusCode.UNAVAILABLE
            # TCP tries an old connection again after ever longer times, gRPC a new one likewise.
            self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._call = None
