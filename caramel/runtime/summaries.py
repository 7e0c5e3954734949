"""Numbers of training steps, written for TensorBoard: losses, times, bytes on the wire.

A file of events is a file of records of TensorFlow, each an `Event`, so nothing but TensorFlow is
needed to write it. (`tf.summary.scalar` needs the package of TensorBoard, and its ops would write
where they run.)
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean
from typing import Any

import tensorflow as tf

from caramel.core.errors import FileError
from caramel.core.train_steps import StepName, chosen
from caramel.runtime.recovery.kept_calls import StepCall
from caramel.runtime.running_job import RunningJob
from caramel.runtime.work import Work

tf1 = tf.compat.v1

LOSS, MEASURED, PLANNED, WIRE = "loss", "step/measured_s", "step/planned_s", "wire/bytes"
"""What TensorBoard calls the loss, the seconds of a step, and the bytes that one sends in all."""
_VERSION = "brain.Event:2"  # with which a file of events begins

_log = logging.getLogger(__name__)
_numbers = itertools.count()  # of the files of this process


class Summaries:
    """Writes numbers of steps into a file of events.

    Args:
        logdir: its directory, which is made if need be.
        every: of how many steps (of the same kind, if the job has several) numbers are written
            together.

    Raises:
        FileError: it cannot be written.
    """

    def __init__(self, logdir: str | os.PathLike[str], every: int) -> None:
        self._every = every
        self._taken_s: dict[StepName, list[float]] = {}  # by steps since numbers were written last
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._path = str(PurePath(logdir) / f"{name}.{os.getpid()}.{next(_numbers)}")
        self._writer: Any = None
        try:
            tf.io.gfile.makedirs(os.fspath(logdir))
            self._writer = tf.io.TFRecordWriter(self._path)
            self._record(tf1.Event(wall_time=time.time(), file_version=_VERSION))
        except tf.errors.OpError as error:
            raise FileError(f"summaries cannot be written to '{logdir}': {error.message}") from None

    def step(self, work: Work, call: StepCall, number: int) -> Any:
        """Do a step, by its number, and write the numbers of the last ones if it is time to."""
        controllers = work.running.controllers
        name = chosen(call.step, controllers.steps)
        taken_s = self._taken_s.setdefault(name, [])
        if len(taken_s) + 1 < self._every:
            return _timed(work, call, taken_s)
        # A step that returns something else has the loss all the same.
        wanted = call
        if call.fetches is not None:
            loss = controllers.own(name).job.context.job.loss
            wanted = replace(call, fetches=[call.fetches, str(loss)])
        result = _timed(work, wanted, taken_s)
        result, loss_value = (result, result) if call.fetches is None else result
        scalars = {LOSS: float(loss_value), MEASURED: fmean(taken_s)}
        scalars.update(_of_plan(work.running))
        taken_s.clear()
        prefix = "" if len(controllers.steps) == 1 else f"{name}/"
        self._write(number, {f"{prefix}{tag}": value for tag, value in scalars.items()})
        return result

    def close(self) -> None:
        """Write no more."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, number: int, scalars: Mapping[str, float]) -> None:
        """Write numbers of a step, which was done and is not to fail for this."""
        if self._writer is None:
            return
        values = [tf1.Summary.Value(tag=n, simple_value=v) for n, v in scalars.items()]
        summary = tf1.Summary(value=values)
        try:
            self._record(tf1.Event(wall_time=time.time(), step=number, summary=summary))
        except tf.errors.OpError as error:
            _log.warning("no summaries are written to '%s' any more: %s", self._path, error.message)
            self._writer = None

    def _record(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _timed(work: Work, call: StepCall, taken_s: list[float]) -> Any:
    """What a step returns; what it took is added to a list."""
    begin_s = time.perf_counter()
    result = work.steps(call, call.do)
    taken_s.append(time.perf_counter() - begin_s)
    return result


def _of_plan(running: RunningJob) -> Iterator[tuple[str, float]]:
    """What the plan that has done the last step says of it."""
    done_by = running.controllers.active
    name, plans = done_by.executor.name, done_by.job.plans
    forecast = plans.forecast(name)
    if forecast is not None:
        yield PLANNED, forecast.step_s
    yield WIRE, float(sum(plans.ensure(name).traffic.bytes.values()))
