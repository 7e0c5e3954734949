"""Where a program goes on that was started again: at the newest whole checkpoint of a directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caramel.core.errors import CheckpointError, DamagedCheckpointError
from caramel.runtime.checkpoint import entered, read_progress
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saved_progress import Progress
from caramel.runtime.saving import restore_variables

_INDEX = ".index"
_STEP = "global_step"  # what TensorFlow calls the variable that counts steps

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a session goes on.

    Attributes:
        path: the checkpoint.
        progress: where training was; None where the checkpoint does not tell.
    """

    path: str
    progress: Progress | None

    def steps(self, running: RunningJob) -> int:
        """How many steps were done before it; without its own word, what the variable
        ``global_step`` says."""
        if self.progress is not None:
            return self.progress.steps
        counters = [v for v in running.job.context.variables if v.name == _STEP]
        values = [np.asarray(value) for _, value in running.state.values(counters)]
        if values and values[0].shape == () and values[0].dtype.kind in "iu":
            return int(values[0])
        _log.warning(
            "checkpoint '%s' does not tell how many steps were done before it: they count as 0",
            self.path,
        )
        return 0


def resume(running: RunningJob, directory: str | os.PathLike[str]) -> Resumed | None:
    """Give all global variables the values of the newest checkpoint of a directory that is whole.

    Returns:
        None where there is no checkpoint: training begins.

    Raises:
        DamagedCheckpointError: there are checkpoints, but none is whole.
        CheckpointError: the newest does not fit the graph, or this is no directory.
    """
    check_directory(directory)
    found = checkpoints(directory)
    for number, path in enumerate(reversed(found), start=1):
        try:
            text = read_progress(path)
            progress = None if text is None else Progress.from_json(text, path)
            restore_variables(running, path, partial=False)
        except DamagedCheckpointError as error:
            if number == len(found):
                raise DamagedCheckpointError(
                    f"none of the checkpoints in '{os.fspath(directory)}' is whole; move them away "
                    f"to begin anew ({error})"
                ) from error
            _log.warning("%s; the one before is taken", error)
        else:
            _log.info("training goes on from checkpoint '%s'", path)
            return Resumed(path, progress)
    return None


def steps_told(directory: str | os.PathLike[str]) -> int:
    """How many steps were done before the newest checkpoint of a directory that tells it, and whose
    word is not damaged; 0 if there is none."""
    for path in reversed(checkpoints(directory)):
        with suppress(DamagedCheckpointError):
            text = read_progress(path)
            return 0 if text is None else Progress.from_json(text, path).steps
    return 0


def check_directory(directory: Any) -> None:
    """Raise unless a directory was given, which need not exist yet.

    Raises:
        CheckpointError: it is something else.
    """
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise CheckpointError(f"resume must be a directory of checkpoints, not {directory!r}")
    path = Path(directory)
    if not path.is_dir() and (path.exists() or path.with_name(f"{path.name}{_INDEX}").exists()):
        raise CheckpointError(
            f"resume is '{path}', which is no directory; give the directory of the checkpoints, "
            "whose newest is taken (session.restore takes a certain one)"
        )


def checkpoints(directory: str | os.PathLike[str]) -> Sequence[str]:
    """The checkpoints of a directory, the newest last.

    They are in the order in which they are entered in its ``checkpoint`` file. What is newer than
    all of these was written when the program ended before it was entered, or that file was lost.
    """
    named = [path for path in entered(Path(directory)) if os.path.exists(f"{path}{_INDEX}")]
    known = {os.path.abspath(path) for path in named}
    newest_s = max((_written_s(path) for path in named), default=-1.0)
    others = [
        str(file.with_name(file.name.removesuffix(_INDEX)))
        for file in sorted(Path(directory).glob(f"*{_INDEX}"))
        if not file.name.startswith(".")
    ]
    newer = [
        path
        for path in others
        if os.path.abspath(path) not in known and _written_s(path) > newest_s
    ]
    return [*named, *sorted(newer, key=_written_s)]


def _written_s(path: str) -> float:
    return os.path.getmtime(f"{path}{_INDEX}")
