"""How far has a running step come? Reads the marks that a plan's steps leave on the workers.

The variables on the workers count; what they should have counted when a call begins is known here
from the calls that have succeeded. After a failed call it is not, and they begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from caramel.core.names import marks_cleared, marks_read
from caramel.core.plan import Plan
from caramel.modifiers.progress_marks import KINDS
from caramel.runtime.execution.calls import CallOptions
from caramel.runtime.execution.runner import VariantRunner
from caramel.runtime.stalls.diagnosis import Marks


@dataclass(frozen=True, slots=True)
class Done:
    """What was done before the call that is under way.

    Attributes:
        steps: how many steps.
        parts: how many moved parts of steps.
        does_step: whether the call does another step.
        does_part: whether it does another moved part.
    """

    steps: int = 0
    parts: int = 0
    does_step: bool = False
    does_part: bool = False


class StepMarks:
    """The marks of one plan.

    Args:
        runner: runs parts of the plan's graph.
        plan: says which groups leave marks.
    """

    def __init__(self, runner: VariantRunner, plan: Plan) -> None:
        self._runner, self._groups = runner, plan.marked_groups
        self._workers = plan.workers
        workers = range(plan.workers if self._groups else 0)
        self.clears = [marks_cleared(worker, kind) for worker in workers for kind in KINDS]
        self._done = Done()
        self._is_exact = True

    @property
    def done(self) -> Done:
        """What was done before the call that is under way."""
        return self._done

    @contextmanager
    def during(self, options: CallOptions, *, step: bool, moved: bool) -> Iterator[None]:
        """A call is under way that does a step, or a moved part, or both.

        Args:
            options: how it is made.
            step: whether it does a step.
            moved: whether it does the moved part of the step before.
        """
        if not self._is_exact:
            self._clear(options)
        steps, parts = self._done.steps, self._done.parts
        self._done, self._is_exact = Done(steps, parts, step, moved), False
        yield
        self._done, self._is_exact = Done(steps + step, parts + moved), True

    def read(self, worker: int, done: Done) -> Marks:
        """What a worker has marked since then.

        Raises:
            tf.errors.OpError: the worker cannot be asked.
        """
        if not self._groups:
            return Marks()
        tensors = [marks_read(worker, kind) for kind in ("ready", "arrived")]
        ready, arrived = self._runner.compile(tensors, [], {})()
        return Marks(
            frozenset(g.name for g, n in zip(self._groups, ready, strict=True) if n > done.steps),
            frozenset(
                group.name
                for group, number in zip(self._groups, arrived, strict=True)
                if number > (done.parts if group.deferred else done.steps)
            ),
        )

    def are_complete(self, options: CallOptions) -> bool:
        """Whether each group was marked in every step so far; of deferred ones, in moved parts.

        A step that can never end may seem to have ended where no worker waits for another one.

        Args:
            options: how workers are asked.

        Raises:
            tf.errors.OpError: a worker cannot be asked.
        """
        if not (self._groups and self._is_exact):
            return True
        tensors = [marks_read(worker, kind) for kind in KINDS for worker in range(self._workers)]
        counts = self._runner.run(tensors, [], {}, "reading marks", options)
        steps, parts = self._done.steps, self._done.parts
        arrived = [parts if group.deferred else steps for group in self._groups]
        wanted = {"ready": [steps] * len(self._groups), "arrived": arrived}
        kinds = [kind for kind in KINDS for _ in range(self._workers)]
        return all(list(own) == wanted[kind] for kind, own in zip(kinds, counts, strict=True))

    def _clear(self, options: CallOptions) -> None:
        if self.clears:
            self._runner.run([], self.clears, {}, "clearing marks", options)
        self._done, self._is_exact = Done(), True
