"""How far training is, also over several runs of a program: counted here, and gone on from."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from caramel.runtime.resuming import resume
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saved_progress import Pipelines, Positions, Progress

SNAPSHOT = "snapshot"
"""From where a session goes on if not from a checkpoint."""

_log = logging.getLogger(__name__)


class Course:
    """How far training is.

    Args:
        is_kept: whether checkpoints are to tell where a program can go on.

    Attributes:
        steps: how many training steps were done, also those before the checkpoint from which the
            session went on.
        resumed: the path of that checkpoint, or `SNAPSHOT`; None if it began anew.
        found: where a client was that was killed, if the workers still have its variables, and the
            session has begun with them.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._pipelines = Pipelines(is_kept=is_kept)
        self.steps = 0
        self.resumed: str | None = None
        self.found: Progress | None = None

    def resume(self, running: RunningJob, directory: str | os.PathLike[str]) -> None:
        """Go on from the newest checkpoint of a directory, if there is one.

        Raises:
            CheckpointError: it does not fit, or none is whole.
        """
        left = self.found
        if left is not None:
            _log.warning(
                "training goes on after step %d, with the variables that workers still had of a "
                "program that was killed",
                left.steps,
            )
            self.resumed, self.steps = SNAPSHOT, left.steps
            self._pipelines.go_on_from(left, running.job)
            return
        found = resume(running, directory)
        if found is None:
            return
        self.resumed, self.steps = found.path, found.steps(running)
        if found.progress is not None:
            self._pipelines.go_on_from(found.progress, running.job)

    def progress(self, running: RunningJob, told: Positions) -> Progress:
        """Where training is.

        Args:
            running: the workers.
            told: by iterator how far they are.
        """
        return Progress(self.steps, running.job.plan.workers, self._pipelines.as_told(told))

    def go_on_after(self, steps: int) -> None:
        """So many steps were done by an earlier session, whose checkpoints told it, too."""
        self._is_kept, self.steps = True, steps

    @contextmanager
    def counted(self, steps: int = 1) -> Iterator[None]:
        """While training steps are done."""
        try:
            yield
        except tf.errors.OutOfRangeError:
            self._pipelines.end()
            raise
        self.steps += steps

    def ran(self, running: RunningJob, fetches: Any) -> None:
        """Something was run besides steps: iterators that it initialised go on where they were."""
        self._pipelines.ran(running, fetches)

    def ran_again(self, running: RunningJob, fetches: Any) -> None:
        """The same was run once more, in another session after a loss."""
        self._pipelines.ran_again(running, fetches)

    def told(self, running: RunningJob) -> str | None:
        """What is to stand in a checkpoint beside the variables; None for nothing."""
        if not self._is_kept:
            return None
        positions = self._pipelines.positions(running)
        return Progress(self.steps, running.job.plan.workers, positions).to_json()
