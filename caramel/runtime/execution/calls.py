"""Calls into TensorFlow that never wait in silence.

TensorFlow's distributed session may wait for ever for a worker that is gone. Every call is
therefore made in a thread of its own, while the caller watches the workers and the clock.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import ClusterError, SessionError, StepTimeoutError, WorkerLostError
from caramel.runtime.execution.liveness import LOST_AFTER_S, SILENT, Liveness, unanswering
from caramel.runtime.execution.outcome import Outcome

_WATCH_AFTER_S = 1.0  # a call that ends sooner is never disturbed by questions
_WATCH_EVERY_S = 1.0
_LEAST_LOOK_S = 0.02
_PROBE_TIMEOUT_S = 1.5
_INTERRUPTED_S = 30.0
_ENDING_S = 1.0  # for a process whose sockets are closed to be gone
_LEAVING_S = 2.0  # for what is left of a lost session here to be gone
_DIAGNOSIS_S = 3.0  # how long to look for the lost worker once TensorFlow has reported a failure

_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
    tf.errors.NotFoundError,
)

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Look:
    """Who is to look into a call that takes long.

    Attributes:
        tell: told now and then how long it takes, in seconds, and which tasks do not answer; has to
            return at once.
        after_s: when first, in seconds, and then as often; from the first second on every second,
            since workers are then asked whether they are there, too.
    """

    tell: Callable[[float, tuple[Task, ...]], None]
    after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the calls of one step are made.

    Attributes:
        traces: gets the `RunMetadata` of each call, and of those that let all workers record (see
            `Recording`); None for no trace.
        look: who is to look into calls that take long; None for nobody.
        limit_s: after how many seconds TensorFlow cancels a call, and the session can be used on;
            None for never. A call that cannot be cancelled fails a little later, as if it had taken
            longer than calls may. The first call of a function may take much longer than later
            ones.
    """

    traces: list[Any] | None = None
    look: Look | None = None
    limit_s: float | None = None


DEFAULT = CallOptions()
"""Neither traced nor looked into, and without a limit of its own."""


class CallThread:
    """A thread that makes calls one after the other.

    It does not keep the interpreter from ending. But a thread that is inside TensorFlow then kills
    the process, so `end` it before.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._kept: list[Any] = []
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Let the thread call `function`."""
        future: Future[Result] = Future()
        self._jobs.put((function, future))
        return future

    def keep(self, thing: Any) -> None:
        """Hold on to something for as long as the thread lives, which refers to this object."""
        self._kept.append(thing)

    def end(self, timeout_s: float) -> None:
        """End the thread after the calls it has, waiting no longer than `timeout_s`."""
        self._jobs.put(None)
        if self._thread is not threading.current_thread():  # which may collect garbage, too
            self._thread.join(timeout_s)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del job, function, future  # results are not kept until the next call


class Channel:
    """Makes calls one after the other and watches the workers of a cluster meanwhile.

    Args:
        cluster: the workers.
        lost_after_s: how long one may not answer before it counts as lost, in seconds.

    Attributes:
        lost: the tasks that were lost.
        told_of_loss: says what is gone with tasks that are lost, and what to do; None as long as
            nothing is there.
    """

    def __init__(self, cluster: Cluster, *, lost_after_s: float = LOST_AFTER_S) -> None:
        self._cluster = cluster
        self._liveness = Liveness(cluster, lost_after_s)
        self._failure: str | None = None
        self._is_closed = False
        self.lost: tuple[Task, ...] = ()
        self.told_of_loss: Callable[[Sequence[Task]], str] | None = None
        self._thread = CallThread("caramel-channel")

    def call(
        self,
        function: Callable[[], Result],
        *,
        what: str,
        timeout_s: float,
        look: Look | None = None,
    ) -> Result:
        """Call `function` and return its result.

        An interruption (Ctrl-C, or whatever else a signal handler raises) comes through when the
        call has ended, so that nothing goes on behind the back of whoever goes on then; at once if
        the call has not begun, which then is not made. A second one comes through at once, and ends
        the channel. Others than Ctrl-C do so after half a minute, too.

        Args:
            what: what is being done, for messages.
            timeout_s: how long it may take.
            look: is told while it takes long.

        Raises:
            WorkerLostError: a worker was lost meanwhile; names it.
            StepTimeoutError: it took too long although every worker can be reached.
            SessionError: an earlier call failed that way, or the channel is closed.
            tf.errors.OpError: whatever else TensorFlow reports.
        """
        if self._failure is not None:
            raise SessionError(f"the session cannot be used any more: {self._failure}")
        try:
            return self._wait_on(Outcome(), function, what, timeout_s, look)
        except ClusterError as error:
            self._fail(str(error), function)
            self.lost = getattr(error, "lost", ())
            raise
        except _LOST as error:
            lost = self._find_lost(what, error)
            if lost is None:
                raise
            self._fail(str(lost), function)
            self.lost = lost.lost
            raise lost from error

    def _wait_on(
        self,
        outcome: Outcome[Result],
        function: Callable[[], Result],
        what: str,
        timeout_s: float,
        look: Look | None,
    ) -> Result:
        """Let the thread make the call, and wait for its result, also if interrupted meanwhile."""
        try:
            self._thread.submit(lambda: outcome.of(function))
            return self._wait(outcome, what, timeout_s, look)
        except BaseException as error:
            if not _is_of_call(error, outcome) and not outcome.cancel():
                self._wait_though(error, outcome, function, what, timeout_s, look)
            raise

    def _wait_though(
        self,
        interruption: BaseException,
        outcome: Outcome[Any],
        function: Callable[[], Any],
        what: str,
        timeout_s: float,
        look: Look | None,
    ) -> None:
        """Wait for the end of a call although its caller was interrupted."""
        is_ctrl_c = isinstance(interruption, KeyboardInterrupt)
        try:
            self._wait(outcome, what, timeout_s if is_ctrl_c else _INTERRUPTED_S, look)
        except BaseException as error:
            if is_ctrl_c and isinstance(error, ClusterError):
                raise
            if _is_of_call(error, outcome) and not isinstance(error, ClusterError):
                _log.info("%s failed when it was interrupted: %s", what, error)
            else:
                self._fail(f"it was interrupted during {what}", function)

    def _fail(self, message: str, call: Callable[[], Any]) -> None:
        """No call is made any more; what this one refers to is never collected (see `close`)."""
        self._failure = message
        self._thread.keep(call)

    @property
    def has_failed(self) -> bool:
        """Whether no call can be made any more."""
        return self._failure is not None

    def close(
        self,
        last: Callable[[], Any],
        *,
        timeout_s: float,
        leave: Callable[[], Any] | None = None,
    ) -> bool:
        """Make one last call, without waiting for it longer than `timeout_s`, or for a lost worker;
        whether it has ended. Closing it again does nothing.

        Args:
            last: the call.
            timeout_s: how long it may take.
            leave: is called instead after a failure, by a thread of its own: it may wait for calls
                that have not ended yet. The thread of calls ends when these have.
        """
        if self._is_closed:
            return True
        self._is_closed = True
        ends = self._failure is None and self._ends(last, timeout_s)
        if not ends:
            self._thread.keep(last)
            leaving = threading.Thread(target=leave, name="caramel-leaving", daemon=True)
            leaving.start()
            leaving.join(_LEAVING_S)
        self._thread.end(timeout_s if ends else 0.0)
        self._failure = self._failure or "it is closed"
        self._liveness.close()
        return ends

    def _ends(self, last: Callable[[], Any], timeout_s: float) -> bool:
        """Make the last call; whether it ended in time."""
        outcome: Outcome[Any] = Outcome()
        self._thread.submit(lambda: outcome.of(last))
        try:
            self._wait(outcome, "closing the session", timeout_s, None)
        except tf.errors.OpError:
            return True
        except ClusterError as error:
            _log.warning("%s", error)
            return False
        return True

    def _wait(
        self, outcome: Outcome[Result], what: str, timeout_s: float, look: Look | None
    ) -> Result:
        begin = time.monotonic()
        self._liveness.begin()
        look_s = math.inf if look is None else max(look.after_s, _LEAST_LOOK_S)
        wait_s = min(_WATCH_AFTER_S, timeout_s, look_s)
        while True:
            if outcome.wait(wait_s):
                return outcome.result()
            elapsed_s = time.monotonic() - begin
            if elapsed_s >= timeout_s:
                raise StepTimeoutError(
                    f"{what} did not end within {timeout_s:g} s; {self._state()}"
                )
            if elapsed_s >= _WATCH_AFTER_S:
                self._liveness.look()
            if self._liveness.lost:
                raise self._lost(self._liveness.lost, what)
            if look is not None:
                look.tell(time.monotonic() - begin, self._liveness.missing)
            left_s = max(0.0, timeout_s - elapsed_s)
            early_s = _WATCH_AFTER_S - elapsed_s
            wait_s = min(left_s, _WATCH_EVERY_S if early_s <= 0 else min(look_s, early_s))

    def _find_lost(self, what: str, error: tf.errors.OpError) -> WorkerLostError | None:
        """The error for a failure that a lost worker explains; None if none is lost."""
        begin = time.monotonic()
        while True:
            lost = self._cluster.unreachable(_PROBE_TIMEOUT_S)
            if lost:
                return self._lost(dict.fromkeys(lost, ""), what)
            is_sure = not isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
            if is_sure or time.monotonic() - begin > _DIAGNOSIS_S:
                break
            time.sleep(0.2)
        if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError) and (
            self._cluster.kind != "embedded"
        ):
            return WorkerLostError(
                f"a worker, or the connection to it, failed during {what} and answers again (was "
                "it restarted, or the network interrupted?): open a new session and restore the "
                "last checkpoint, or what session.rescue(path) writes if workers still have all "
                f"variables: {error.message}"
            )
        return None

    def _lost(self, lost: Mapping[Task, str], what: str) -> WorkerLostError:
        """The error for tasks that were lost, each with what is to be said of it."""
        names = " and ".join(self._cluster.describe(task, wait_s=_ENDING_S) for task in lost)
        how = "".join(f": {said}" for said in dict.fromkeys(lost.values()) if said)
        gone = "start it again, and open a new session"
        if self.told_of_loss is not None:
            gone = self.told_of_loss(tuple(lost))
        return WorkerLostError(f"lost {names} during {what}{how}; {gone}", tuple(lost))

    def _state(self) -> str:
        """Whether workers answer."""
        silent = unanswering(self._cluster, _PROBE_TIMEOUT_S)
        if not silent:
            return "every worker answers"
        names = " and ".join(self._cluster.describe(task) for task in silent)
        return f"there is no answer from {names} ({SILENT})"


def _is_of_call(error: BaseException, outcome: Outcome[Any]) -> bool:
    """Whether an error is that of a call, or of its workers, and not of a signal handler."""
    return isinstance(error, ClusterError) or error is outcome.error
