"""How far has a running step come? Reads the marks that a plan's steps leave on the workers.

The variables on the workers count; what they should have counted when a call begins is known here
from the calls that have succeeded. After a failed call it is not, and they begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from caramel.core.names import Mark, marks_cleared, marks_read
from caramel.core.plan import Plan
from caramel.modifiers.progress_marks import KINDS
from caramel.runtime.execution.calls import CallOptions
from caramel.runtime.execution.variant_runner import VariantRunner
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
        self._runner, self._marked = runner, plan.marked
        self._deferred = {group.name for group in plan.marked_groups if group.deferred}
        self._boards = [
            (place, kind) for kind in KINDS for place, own in plan.marked.items() if own.of(kind)
        ]
        self.clears = [marks_cleared(place, kind) for place, kind in self._boards]
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

    def read(self, place: int, done: Done) -> Marks:
        """What a worker, or the server at a place, has marked since then.

        Raises:
            tf.errors.OpError: it cannot be asked.
        """
        kinds, is_server = [kind for at, kind in self._boards if at == place], place < 0
        if not kinds:
            return Marks(is_server=is_server)
        counts = self._runner.compile([marks_read(place, kind) for kind in kinds], [], {})()
        found = {
            kind: frozenset(
                name
                for name, number in zip(self._marked[place].of(kind), own, strict=True)
                if number > self._wanted(kind, name, done)
            )
            for kind, own in zip(kinds, counts, strict=True)
        }
        return Marks(
            found.get("ready", frozenset()),
            found.get("arrived", frozenset()),
            is_server=is_server,
        )

    def _wanted(self, kind: Mark, name: str, done: Done) -> int:
        """How often something should have been marked."""
        return done.parts if kind == "arrived" and name in self._deferred else done.steps

    def are_complete(self, options: CallOptions) -> bool:
        """Whether each group was marked in every step so far; of deferred ones, in moved parts.

        A step that can never end may seem to have ended where no worker waits for another one.

        Args:
            options: how workers are asked.

        Raises:
            tf.errors.OpError: a worker cannot be asked.
        """
        if not (self._boards and self._is_exact):
            return True
        tensors = [marks_read(place, kind) for place, kind in self._boards]
        counts = self._runner.run(tensors, [], {}, "reading marks", options)
        return all(
            list(own) == [self._wanted(kind, n, self._done) for n in self._marked[place].of(kind)]
            for (place, kind), own in zip(self._boards, counts, strict=True)
        )

    def _clear(self, options: CallOptions) -> None:
        if self.clears:
            self._runner.run([], self.clears, {}, "clearing marks", options)
        self._done, self._is_exact = Done(), True
