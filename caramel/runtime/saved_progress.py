"""Where training was when a checkpoint was written: what a program that is started again needs
besides variables.

It stands in a file of its own beside the variables: how many steps were done, and how far each
worker was in the input pipelines of the graph. A pipeline goes on where it was when the program
initialises its iterator for the first time.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from caramel.core.errors import DamagedCheckpointError, PlanError
from caramel.core.util.json_records import from_json_value, read_json, to_json_value
from caramel.core.variable_access import handle_of
from caramel.modifiers.positions import position, put_back_op, to_put_back
from caramel.runtime.job import Job
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.user_fetches import UserFetches

_log = logging.getLogger(__name__)

Positions = Mapping[str, Sequence[bytes]]
"""By iterator how far each worker is, in a form that only TensorFlow knows."""


@dataclass(frozen=True)
class Progress:
    """Where training was.

    Attributes:
        steps: how many training steps were done, also by programs before.
        workers: how many workers there were.
        positions: by iterator how far each of them was.
    """

    steps: int
    workers: int
    positions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        """It as text."""
        return json.dumps(to_json_value(self)) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Progress:
        """What `to_json` wrote.

        Raises:
            DamagedCheckpointError: the text is something else; names the checkpoint `path`.
        """
        try:
            progress = from_json_value(cls, read_json(text))
            for workers in progress.positions.values():
                _ = [b64decode(each, validate=True) for each in workers]
        except ValueError as error:  # also a `PlanError`
            raise DamagedCheckpointError(
                f"what tells where training was at checkpoint '{path}' is damaged: {error}"
            ) from None
        return progress


class Pipelines:
    """How far the workers are in the input pipelines of a job.

    Args:
        is_kept: whether anybody wants to know.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._has_ended = False  # since it was initialised
        self._pending: dict[str, tuple[bytes, ...]] = {}
        self._begun: dict[
            str, tuple[bytes, ...] | None
        ] = {}  # where they were put when initialised

    def go_on_from(self, progress: Progress, job: Job) -> None:
        """Let each iterator go on where it was when it is initialised for the first time."""
        if progress.positions and progress.workers != job.plan.workers:
            _log.warning(
                "input pipelines begin anew: there were %d workers when the checkpoint was "
                "written, and are %d now",
                progress.workers,
                job.plan.workers,
            )
            return
        known = {name: each for name, each in progress.positions.items() if name in iterators(job)}
        self._pending = {n: tuple(b64decode(p) for p in each) for n, each in known.items()}

    def end(self) -> None:
        """A step has found that one is at its end: they begin anew if a program goes on here."""
        self._has_ended = True

    def ran(self, running: RunningJob, fetches: Any) -> None:
        """What was run may have initialised iterators; those that have not gone on yet do so."""
        if not self._is_kept:
            return
        for name in _initialised(running.job, fetches):
            self._has_ended = False
            if name in self._pending:
                put_back_position(running, name, self._pending[name])
            self._begun[name] = self._pending.pop(name, None)

    def ran_again(self, running: RunningJob, fetches: Any) -> None:
        """Iterators were initialised once more, by another session: they begin where they did."""
        for name in _initialised(running.job, fetches) if self._is_kept else ():
            begun = self._begun.get(name)
            if begun is not None:
                put_back_position(running, name, begun)

    def as_told(self, told: Positions) -> dict[str, tuple[str, ...]]:
        """How far the workers are, where TensorFlow has told it; nothing if they are at the end."""
        known = {} if self._has_ended else {**self._pending, **told}
        return {name: tuple(map(_as_text, each)) for name, each in known.items()}

    def positions(self, running: RunningJob) -> dict[str, tuple[str, ...]]:
        """How far the workers are; nothing of those that are not initialised, or at their end."""
        if not self._is_kept or self._has_ended:
            return {}
        found = {}
        for name in iterators(running.job):
            try:
                found[name] = tuple(map(_as_text, read_position(running, name)))
            except tf.errors.FailedPreconditionError:  # it is not initialised
                if name in self._pending:
                    found[name] = tuple(map(_as_text, self._pending[name]))
            except tf.errors.OpError as error:
                _log.warning(
                    "a program that goes on from this checkpoint begins input pipeline '%s' anew: "
                    "how far it is cannot be told (%s)",
                    name,
                    error.message,
                )
        return found


def iterators(job: Job) -> tuple[str, ...]:
    """The iterators of the input pipelines of a job."""
    return tuple(dict.fromkeys(pipeline.iterator for pipeline in job.plan.job.pipelines))


def _initialised(job: Job, fetches: Any) -> Collection[str]:
    """The iterators of the job that fetches initialise."""
    graph, known = job.context.op_graph, iterators(job)
    made = (
        handle_of(graph, graph[op].inputs[1])
        for op in graph.ancestors(UserFetches(job, fetches).ops)
        if graph[op].kind == "MakeIterator"
    )
    return [name for name in dict.fromkeys(made) if name in known]


def read_position(running: RunningJob, iterator: str) -> list[bytes]:
    """How far each worker is in the pipeline of an iterator.

    Raises:
        tf.errors.FailedPreconditionError: it is not initialised.
        tf.errors.OpError: TensorFlow cannot tell.
    """
    workers = range(running.job.plan.workers)
    tensors = [position(worker, iterator) for worker in workers]
    return running.runner.run(tensors, [], {}, "reading the positions of input pipelines")


def put_back_position(running: RunningJob, iterator: str, positions: Sequence[bytes]) -> None:
    """Let each worker go on there, in an iterator that is initialised.

    Raises:
        PlanError: the pipeline is another one.
    """
    targets = [put_back_op(worker, iterator) for worker in range(len(positions))]
    fed = {to_put_back(worker, iterator): each for worker, each in enumerate(positions)}
    try:
        running.runner.run([], targets, fed, "putting back the positions of input pipelines")
    except tf.errors.OpError as error:
        raise PlanError(
            f"input pipeline '{iterator}' cannot go on where it was when the checkpoint was "
            f"written; was it changed since? Remove the files of the checkpoint with '.progress-' "
            f"in their names to begin it anew: {error.message}"
        ) from error


def _as_text(position: Any) -> str:
    """A position as it stands in `Progress`."""
    return b64encode(bytes(position)).decode()
