"""How far input pipelines are, so that another session can go on with their next elements.

Its iterators are new: they are opened by the calls that opened those before. TensorFlow can tell
how far those of workers are, with all that they hold, and put them back there. Where it cannot, or
they hold too much, and in the copy for evaluation, elements are taken as often as before: they come
in the same order only if the pipeline itself says so, as one does that shuffles with a seed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from caramel.core import names
from caramel.core.op_types import ITERATOR_READS
from caramel.core.util.sizes import bytes_text
from caramel.core.variable_access import handle_of
from caramel.modifiers.variable_ops import source_prefix
from caramel.runtime.course import Course
from caramel.runtime.evaluation import Effects
from caramel.runtime.job import Job
from caramel.runtime.recovery.kept_calls import RunCall, StepCall
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saved_progress import iterators, put_back_position, read_position

_AT_ONCE = 100  # elements that are taken in one call
MOST_BYTES = 16 * 2**20  # of what pipelines hold, for them to be kept with each snapshot

_log = logging.getLogger(__name__)

Reads = Mapping[tuple[str, str], int]
"""How often an op took an element: by the prefix of its copy, and its name."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A call of `session.run` that opened pipelines, or filled tables.

    Attributes:
        call: what was asked for.
        effects: what it did.
    """

    call: RunCall
    effects: Effects


@dataclass(frozen=True, slots=True)
class Positions:
    """Where pipelines are, at one moment.

    Attributes:
        openings: what opened them, in order.
        reads: how many elements were taken of each copy since.
        told: by iterator how far each worker is, as TensorFlow tells it, where it does.
    """

    openings: tuple[Opening, ...] = ()
    reads: Reads = field(default_factory=dict)
    told: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    @property
    def are_any(self) -> bool:
        """Whether anything is to be brought back."""
        return bool(self.openings or self.reads)

    def after_opening(self, job: Job, opening: Opening) -> Positions:
        """After pipelines were opened, perhaps again."""
        opened = opening.effects.opened
        reads = {key: count for key, count in self.reads.items() if _handle(job, key) not in opened}
        earlier = [o for o in self.openings if not _replaces(opening, o)]
        return Positions((*earlier, opening), reads)

    def after(self, job: Job, call: StepCall | RunCall) -> Positions:
        """After steps, in which each worker takes elements, or another call, in which one does."""
        if not call.reads:
            return self
        if isinstance(call, StepCall):
            times, places = call.times, [*map(names.replica_prefix, range(job.plan.workers))]
        else:
            times, places = 1, [source_prefix(job.plan)]
        taken = {(place, op): times for op in call.reads for place in places}
        return replace(self, reads=Counter(self.reads) + Counter(taken))

    def bring_back(self, running: RunningJob, course: Course) -> None:
        """Open the pipelines of a new session, and take what was taken before.

        Args:
            running: the new session.
            course: knows where pipelines began that had been opened by an earlier program.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        for opening in self.openings:
            opening.call.do(running)
            course.ran_again(running, opening.call.fetches)
        for iterator, positions in self.told.items():
            put_back_position(running, iterator, positions)
        left = Counter({k: n for k, n in self.reads.items() if not self._is_told(running.job, k)})
        while left:
            several = min(_AT_ONCE, min(left.values()))
            targets = [names.in_copy(*key) for key in left]
            _take(running, targets, several)
            left -= Counter(dict.fromkeys(left, several))

    def _is_told(self, job: Job, key: tuple[str, str]) -> bool:
        workers = [*map(names.replica_prefix, range(job.plan.workers))]
        return key[0] in workers and _handle(job, key) in self.told


class Teller:
    """Asks TensorFlow how far pipelines are, until they hold too much."""

    def __init__(self) -> None:
        self._asks = True

    def told(self, running: RunningJob) -> dict[str, Sequence[bytes]]:
        """By iterator how far each worker is; nothing of those of which it cannot be told.

        Raises:
            WorkerLostError, StepTimeoutError: as `Runner.run`.
        """
        found: dict[str, Sequence[bytes]] = {}
        for iterator in iterators(running.job) if self._asks else ():
            try:
                found[iterator] = read_position(running, iterator)
            except tf.errors.OpError as error:
                _log.info("how far input pipeline '%s' is cannot be told: %s", iterator, error)
        size = sum(len(each) for own in found.values() for each in own)
        if size > MOST_BYTES:
            self._asks = False
            _log.warning(
                "input pipelines hold %s: after a loss they are opened again, and what was "
                "taken is skipped, which gives the same elements if they shuffle with a seed",
                bytes_text(size),
            )
            return {}
        return found


def reads_of_step(job: Job, fetched: Iterable[str]) -> tuple[str, ...]:
    """The ops by which a step takes elements of pipelines."""
    if not job.pipelines.iterators:
        return ()
    train, graph = job.context.job, job.context.op_graph
    needed = graph.ancestors([*fetched, train.train_op, train.loss.op])
    return tuple(sorted(name for name in needed if graph[name].kind in ITERATOR_READS))


def _take(running: RunningJob, targets: list[str], several: int) -> None:
    one = running.runner.compile([], targets, {})

    def take() -> list[Any]:
        for _ in range(several):
            one()
        return []

    running.runner.call(take, "taking elements of input pipelines again")


def _handle(job: Job, key: tuple[str, str]) -> str:
    graph = job.context.op_graph
    return handle_of(graph, graph[key[1]].inputs[0])


def _replaces(new: Opening, old: Opening) -> bool:
    """Whether nothing is left of what an earlier call did."""
    return new.effects.prepared >= old.effects.prepared
