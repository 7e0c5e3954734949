"""A step that is a function of TensorFlow 2, done by many workers.

The variables in this process are the truth between steps: what changes here is sent to the workers
before the next step (`push`), and what steps have changed there is brought back (`pull`).
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from caramel.capture.context import Context
from caramel.capture.functions import LoweredStep
from caramel.cluster.cluster import Cluster
from caramel.core.errors import CheckpointError, FeedError, GraphError, PlanError, SessionError
from caramel.core.util.progress import working
from caramel.models.allreduce import ARModel
from caramel.models.model import START_TIMEOUT_S
from caramel.models.signatures import (
    Signature,
    dtype_and_shape,
    is_traced,
    misfit,
    same,
    signature_of,
)
from caramel.report.shown import ShownExplanation
from caramel.runtime.course import SNAPSHOT
from caramel.runtime.recovery.bequest import Bequests
from caramel.runtime.recovery.left_behind import steps_left
from caramel.runtime.resuming import check_directory, steps_told
from caramel.runtime.running_job import RunningJob
from caramel.runtime.session import Session

Lower = Callable[[Sequence[Any]], LoweredStep]
Own = TypeVar("Own", bound="StepOnWorkers")


_log = logging.getLogger(__name__)


class RemoteStep:
    """Does a step on many workers, and keeps the variables here and there together.

    A step is lowered when it is first called, and again when it is called with other dtypes, shapes
    or structures than before. Batches are split on their first dimension.

    Args:
        lower: makes a graph of the step for a signature.
        workers: as for `ARModel`.
        session_options: of `ARModel.session`.
        options: of `ARModel`.
        apart: asked for the names of variables that are neither pulled nor pushed.
        trains: whether the step updates parameters.
        name_of: puts a signature into a mapping by the names that users know its parts by.
        known: gets the signatures for which the step was lowered. Other steps of the same model may
            have the same list: it tells what the model was built for.
    """

    def __init__(
        self,
        lower: Lower,
        workers: Any,
        session_options: Mapping[str, Any],
        options: Mapping[str, Any],
        apart: Callable[[], Collection[str]] = tuple,
        trains: bool = True,
        *,
        name_of: Callable[[Signature], Mapping[str, Any]],
        known: list[Signature],
    ) -> None:
        if "variables" in session_options:
            raise PlanError(
                "session_options has variables, but these are those of this process, with whose "
                "values workers begin"
            )
        # Unknown ones are told now, and not at the first step.
        inspect.signature(ARModel).bind_partial(**options)
        inspect.signature(ARModel.session).bind_partial(**session_options)
        self._apart, self._trains = apart, trains
        self._name_of, self._known = name_of, known
        self._lower, self._workers = lower, workers
        self._session_options, self._options = dict(session_options), dict(options)
        # Only the first session goes on from what a program before has left.
        self._resume = self._session_options.pop("resume", None)
        if self._resume is not None:
            check_directory(self._resume)
        at_the_end = self._session_options.get("save_on_sigterm")
        self._tells = self._resume is not None or at_the_end is not None
        self._told: int | None = None  # how many steps were done by programs before
        self._steps = 0  # done by sessions before
        self._signature: Signature | None = None
        self._fitting: list[Any] = []  # dtypes and shapes of what was given last
        self._lowered: LoweredStep | None = None
        self._model: ARModel | None = None
        self._session: Session | None = None
        self._is_ahead = False  # whether steps have changed variables on the workers
        self._seen: dict[str, Buffer] = {}  # what variables here had when both were equal

    # What users look at

    @property
    def session(self) -> Session:
        """The session that does the steps.

        Raises:
            SessionError: no step was done yet.
        """
        if self._session is None:
            raise SessionError("there is no session before the first step")
        return self._session

    @property
    def model(self) -> ARModel:
        """The model whose session does the steps.

        Raises:
            SessionError: no step was done yet.
        """
        if self._model is None:
            raise SessionError("there is no model before the first step")
        return self._model

    @property
    def lowered(self) -> LoweredStep:
        """The step as a graph; there was a step already."""
        assert self._lowered is not None
        return self._lowered

    @property
    def running(self) -> RunningJob:
        """What the session works with; another one after a loss."""
        return self.session._running

    @property
    def workers(self) -> int:
        """Over how many workers a step is split now."""
        return self.running.job.plan.workers

    @property
    def steps_done(self) -> int:
        """How many steps were done, also before the checkpoint, or what workers still have of a
        program that was killed, from which the first session goes on.

        Raises:
            CheckpointError: no checkpoint of that directory can be gone on from.
            ClusterError, WorkerStartError: workers cannot be asked what they have.
        """
        if self._session is not None:
            return self._session.steps_done
        if self._resume is None:
            return self._steps
        if self._told is None:
            self._told = max(steps_told(self._resume), self._steps_left(self._resume))
        return self._told

    def _steps_left(self, directory: str | os.PathLike[str]) -> int:
        """How many steps were done before what workers still have of a program that was killed."""
        if self._session_options.get("recover") is None:
            return 0
        self._workers = Cluster.coerce(self._workers)
        timeout_s = self._session_options.get("start_timeout_s", START_TIMEOUT_S)
        return steps_left(self._workers, Bequests(directory), timeout_s)

    @property
    def is_usable(self) -> bool:
        """Whether there is a session, and no worker was lost."""
        return self._session is not None and not self._session.has_failed

    # Steps

    def forget(self) -> None:
        """The step has become another one: lower it again before the next."""
        self.close()
        self._signature = None

    def prepare(self, arguments: Sequence[Any]) -> None:
        """Lower the step for such arguments, and open a session, unless that was done."""
        fitting = list(map(dtype_and_shape, tf.nest.flatten(list(arguments))))
        before = self._before(arguments)
        if self._session is not None and before and fitting == self._fitting:
            return
        signature = signature_of(arguments, before)
        if self._session is None or not same(signature, self._signature):
            exact = signature_of(arguments)
            if not same(signature, exact):
                # A step may be lowered for any size, though its variables allow only one.
                self._lowered_for(exact)
            # Whatever fails until here, the session goes on with what it was given before.
            self._reopen(self._lowered_for(signature), signature)
        self._fitting = fitting

    def run(self, arguments: Sequence[Any], fetches: Any) -> Any:
        """Do the step that was prepared.

        Args:
            arguments: what it is called with.
            fetches: tensors of the lowered graph, in any structure.
        """
        lowered = self.lowered
        flat = [value for value in tf.nest.flatten(list(arguments)) if not is_traced(value)]
        fed: dict[Any, Any] = {
            placeholder.name: _array(value)
            for placeholder, value in zip(lowered.inputs, flat, strict=True)
        }
        fed |= {f"{name}:0": variable.numpy() for name, variable in lowered.scalars.items()}
        self._is_ahead = self._is_ahead or not lowered.written <= set(self._apart())
        return self.session.step(fed, fetches, repeat=True)

    @contextmanager
    def without_repeated(self, arguments: Sequence[Any]) -> Iterator[None]:
        """While the step is done: totals leave out the examples that workers only repeat.

        Args:
            arguments: of the step. It is prepared, and what was changed here is pushed.
        """
        plan, sizes = self.model.plan, [np.shape(each) for each in tf.nest.flatten(list(arguments))]
        examples = min((size[0] for size in sizes if len(size)), default=plan.workers)
        if examples >= plan.workers or not plan.job.summed:
            yield
            return
        session = self.session
        # So that one worker has all of them, whoever is lost in the step.
        values = session.variables()
        session.assign({name: values[name] for name in plan.job.summed})
        yield
        counted = [session.variables(worker=w) for w in range(min(examples, self.workers))]
        session.assign({name: sum(each[name] for each in counted) for name in plan.job.summed})

    # Variables

    def pull(self) -> None:
        """Give the variables here what steps have made of them, if there was one since.

        What the step only reads is left as it is: another step may have written it here since.
        """
        if self._is_ahead:
            self._bring(self.lowered.written)

    def _bring(self, names: Collection[str]) -> None:
        """Give variables here the values of those on the workers, by their names there.

        If that fails, it is done again by the next pull.
        """
        values, own = self.session.variables(), self.lowered.variables
        for name in sorted(set(names) - set(self._apart())):
            own[name].assign(values[name])
            self._seen[name] = Buffer(own[name].read_value())
        self._is_ahead = False

    def push(self) -> None:
        """Give the workers' variables what was changed here since both were equal."""
        if self._session is None:  # one that is opened gets all
            return
        variables, apart = self.lowered.variables.items(), self._apart()
        self._send({n: v for n, v in variables if n not in apart and not self._is_seen(n, v)})

    def _send(self, variables: Mapping[str, tf.Variable]) -> None:
        """Give workers' variables the values of variables here, by their names there."""
        if variables:
            self.session.assign({name: v.numpy() for name, v in variables.items()})
            self._seen |= {
                name: Buffer(variable.read_value()) for name, variable in variables.items()
            }

    def close(self) -> None:
        """End the session; what steps have changed is pulled before, if it can be."""
        try:
            if self.is_usable:
                self.pull()
        finally:  # a worker may be lost just then
            session, self._session = self._session, None
            if session is not None:
                self._steps = session.steps_done
                session.close()

    def _is_seen(self, name: str, variable: tf.Variable) -> bool:
        return name in self._seen and self._seen[name].is_that_of(variable)

    def _before(self, arguments: Sequence[Any]) -> Sequence[Any] | None:
        """The signature so far, if arguments of the same structure were given before."""
        before = self._signature
        if before is not None and len(before) == len(arguments):
            try:
                tf.nest.assert_same_structure(list(before), list(arguments))
            except (TypeError, ValueError):
                pass
            else:
                return before
        return None

    @working("tracing the step")
    def _lowered_for(self, signature: Signature) -> LoweredStep:
        """The step as a graph.

        Raises:
            FeedError: the step was built for another shape.
            GraphError: it cannot be lowered for another reason.
        """
        try:
            lowered = self._lower(signature)
        except GraphError as error:
            told = misfit(signature, self._known[::-1], self._name_of, self._can_be_lowered)
            if told is None:
                raise
            raise FeedError(told) from error
        self._known.append(signature)
        return lowered

    def _can_be_lowered(self, signature: Signature) -> bool:
        try:
            self._lower(signature)
        except GraphError:
            return False
        return True

    def _reopen(self, lowered: LoweredStep, signature: Signature) -> None:
        """Open a session for the step as it is lowered now."""
        if self._session is not None:
            self.close()
            _log.info("the step is lowered again, for %s", signature)
        self._lowered, self._signature = None, signature
        context = Context(
            lowered.graph, train_op=lowered.train_op, loss=lowered.loss, trains=self._trains
        )
        self._model = ARModel(context, self._workers, **self._options)
        self._lowered, self._seen = lowered, {}
        session = self._model.session(**self._session_options, resume=self._resume)
        try:
            self._go_on(session)
        except BaseException:
            session.close()
            raise

    def _go_on(self, session: Session) -> None:
        """Let a new session go on where the last one ended, or a program before."""
        assert self._lowered is not None
        if self._resume is not None:
            _check_told(session, self._told)
        elif self._tells:
            session._go_on_after(self._steps)
        self._session, self._resume = session, None
        variables, apart = self._lowered.variables, self._apart()
        if session.resumed is None:
            self._send(variables)
        else:
            self._send({name: variable for name, variable in variables.items() if name in apart})
            self._is_ahead = True
            self._bring(variables)


def _check_told(session: Session, told: int | None) -> None:
    """Raise unless a session goes on where the program was told that it would.

    Args:
        session: it goes on from what was left by a program before, if anything was.
        told: after how many steps; None if the program has not asked.

    Raises:
        CheckpointError: it goes on elsewhere.
    """
    done = session.steps_done
    # A checkpoint may not tell how many steps were done before it, but what it counts itself.
    if told is None or done == told or (done > told and session.resumed != SNAPSHOT):
        return
    begin = "the beginning" if session.resumed is None else f"'{session.resumed}'"
    raise CheckpointError(
        f"the program was told that {told} steps were done before it, but training goes on after "
        f"{done}, from {begin}: start the program again; if it is told the same then, the newest "
        "checkpoint is damaged, and its files are to be removed"
    )


class StepOnWorkers:
    """What users hold of a step that workers do. A context manager."""

    _remote: RemoteStep

    @property
    def session(self) -> Session:
        """The session that does the steps; there is none before the first.

        Raises:
            SessionError: no step was done yet.
        """
        return self._remote.session

    @property
    def steps_done(self) -> int:
        """How many steps were done, also before the checkpoint from which they go on, where
        `session_options` has ``resume``, or with ``recover`` the snapshot that workers still have;
        known before the first step.

        Raises:
            CheckpointError: none of the checkpoints there can be gone on from.
            ClusterError, WorkerStartError: workers cannot be asked what they have.
        """
        return self._remote.steps_done

    def explain(self) -> ShownExplanation:
        """What the plan of the step is, and why; as `ARModel.explain`.

        Raises:
            SessionError: no step was done yet.
        """
        return self._remote.model.explain()

    def pull(self) -> None:
        """Give the variables here what steps have made of them."""
        self._remote.pull()

    def push(self) -> None:
        """Give the workers now what was assigned to variables here."""
        self._remote.push()

    def close(self) -> None:
        """Bring here what the workers have, and end the session. Closing again does nothing."""
        self._remote.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Buffer:
    """Where a variable's value was.

    As long as it is held, a write makes another buffer, so that comparing addresses tells exactly
    whether the variable was written.

    Args:
        held: the value, as it was read from the variable.
    """

    def __init__(self, held: tf.Tensor) -> None:
        self._held = held

    def is_that_of(self, variable: tf.Variable) -> bool:
        # `read_value` is three times as slow.
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        return _address(value) == _address(self._held)


def _address(value: tf.Tensor) -> int:
    kind = np.dtype(value.dtype.as_numpy_dtype)
    if kind.isbuiltin != 1:  # Python's buffers do not know bfloat16 and its like
        value = tf.bitcast(value, f"uint{8 * kind.itemsize}")  # the same buffer
    return int(np.asarray(memoryview(value)).__array_interface__["data"][0])


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, tf.Tensor) else value  # not a copy
