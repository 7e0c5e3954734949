"""How a session lets things be done on its workers: once, or again after each loss of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from caramel.cluster.tasks import Task
from caramel.core.train_steps import StepName
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.course import Course
from caramel.runtime.evaluation import evaluate
from caramel.runtime.recovery.kept_calls import StepCall
from caramel.runtime.running_job import RunningJob

Result = TypeVar("Result")


class Work(Protocol):
    """Does what a session is asked for."""

    @property
    def running(self) -> RunningJob:
        """The workers, and what is on them; another one after a loss."""

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be done any more."""

    @property
    def missing(self) -> tuple[Task, ...]:
        """Tasks without which it goes on, since they were lost."""

    def steps(self, call: StepCall, function: Callable[[RunningJob], Result]) -> Result:
        """Training steps, which a function does.

        Args:
            call: what they are.
            function: does them.
        """

    def read(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes no variables, but may do what is pending of the last step."""

    def change(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes variables, and comes to the same if it is done again."""

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Part of the graph; see `caramel.runtime.session.Session.run`."""

    def metrics(self, step: StepName | None) -> Metrics:
        """How training by a step goes."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """A loss ends it.

    Attributes:
        running: the workers, and what is on them.
        course: how far training is.
    """

    running: RunningJob
    course: Course

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be done any more."""
        return self.running.runner.has_failed

    @property
    def missing(self) -> tuple[Task, ...]:
        """Tasks without which it goes on: none."""
        return ()

    def steps(self, call: StepCall, function: Callable[[RunningJob], Result]) -> Result:
        """Training steps."""
        return function(self.running)

    def read(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes no variables."""
        return function(self.running)

    def change(self, function: Callable[[RunningJob], Result]) -> Result:
        """What changes variables."""
        return function(self.running)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Part of the graph."""
        result = evaluate(self.running, fetches, feed_dict)
        self.course.ran(self.running, fetches)
        return result

    def metrics(self, step: StepName | None) -> Metrics:
        """How training by a step goes."""
        return self.running.controllers.metrics(step)
