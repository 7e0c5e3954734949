"""The checkpoints of a session: written at once, or beside its next steps."""

from __future__ import annotations

import logging
import os
from functools import partial

from caramel.core.errors import CheckpointError
from caramel.runtime.course import Course
from caramel.runtime.rescue import rescue_variables
from caramel.runtime.rotation import Rotation
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saving import Copied, copy_variables
from caramel.runtime.writer import BackgroundWriter

_log = logging.getLogger(__name__)


class Checkpoints:
    """Writes them, one after the other, and knows those that were written.

    Args:
        course: how far training is.
    """

    def __init__(self, course: Course) -> None:
        self._course, self._writer = course, BackgroundWriter()
        self._written: dict[str, None] = {}  # in order

    def save(
        self,
        running: RunningJob,
        path: str | os.PathLike[str],
        global_step: int | None,
        rotation: Rotation,
        *,
        wait: bool,
    ) -> str:
        """Write one; see `caramel.runtime.session.Session.save`."""
        self._writer.wait()  # so that there is one copy at a time
        copied = copy_variables(running, path, global_step, rotation)
        write = partial(self._write, copied, self._course.told(running))
        if wait:
            write()
        else:
            self._writer.start(write)
        return copied.path

    def rescue(self, running: RunningJob, path: str | os.PathLike[str]) -> str:
        """Write what is left after a loss; see `caramel.runtime.session.Session.rescue`."""
        self._writer.wait()
        written = rescue_variables(running, path)
        self._note(written)
        return written

    @property
    def paths(self) -> tuple[str, ...]:
        """Those that are written, and still there, the newest last."""
        return tuple(path for path in list(self._written) if os.path.exists(f"{path}.index"))

    def wait(self) -> None:
        """Wait for what is being written.

        Raises:
            CheckpointError: it cannot be written, which was not told yet.
        """
        self._writer.wait()

    def check(self) -> None:
        """Raise if what was written beside steps has failed, which was not told yet.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._writer.check()

    def give_up(self) -> None:
        """Wait for what is being written; should it fail, it is logged and no error."""
        try:
            self._writer.wait()
        except CheckpointError as error:
            _log.error("%s", error)

    def _write(self, copied: Copied, progress: str | None) -> None:
        copied.write(progress)
        self._note(copied.path)

    def _note(self, path: str) -> None:
        """What was written last."""
        self._written.pop(path, None)
        self._written[path] = None
