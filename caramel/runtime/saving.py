"""Variables into a checkpoint, and back, or from anywhere else."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import tensorflow as tf

from caramel.core.errors import CheckpointError, FeedError
from caramel.core.names import TensorRef
from caramel.core.util.progress import working
from caramel.core.util.suggestion import suggestion
from caramel.runtime.checkpoint import (
    Restored,
    SavedTensor,
    path_of,
    read_checkpoint,
    some_of,
    write_checkpoint,
)
from caramel.runtime.rotation import Rotation, rotate
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.feeds import Feed, check_whole, to_array

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copied:
    """What a checkpoint is to hold, brought here from the workers.

    Attributes:
        path: its path, with the number of steps.
        tensors: the values of variables.
        rotation: which earlier ones of the same path stay.
    """

    path: str
    tensors: Sequence[SavedTensor]
    rotation: Rotation

    @working("writing a checkpoint")
    def write(self, progress: str | None) -> None:
        """Write it.

        Args:
            progress: what stands beside the variables; None for nothing.

        Raises:
            CheckpointError: it cannot be written, or an older one not be removed.
        """
        write_checkpoint(self.path, self.tensors, progress)
        rotate(self.path, self.rotation)


@working("copying variables for a checkpoint")
def copy_variables(
    running: RunningJob,
    path: str | os.PathLike[str],
    global_step: int | None,
    rotation: Rotation,
) -> Copied:
    """What a checkpoint is to hold; see `caramel.runtime.session.Session.save`.

    Args:
        path: its path, without the endings that TensorFlow adds.
        global_step: a number to append to the path; None for none.
        rotation: which earlier ones of the same path stay.
    """
    check_path(path)
    if rotation.keep is not None and global_step is None:
        raise CheckpointError(
            "keep is about checkpoints with a number behind their path: give global_step, too; "
            "without one each replaces the one before"
        )
    is_number = isinstance(global_step, Integral) and not isinstance(global_step, bool)
    if global_step is not None and not (is_number and global_step >= 0):
        raise CheckpointError(
            f"global_step must be a whole number, at least 0, not {global_step!r}; "
            "session.run(global_step) returns that of a tensor"
        )
    prefix = path_of(path if global_step is None else f"{os.fspath(path)}-{global_step}")
    path_of(path)  # a number alone is no name
    running.settle()
    saved = [variable for variable in running.job.context.variables if variable.saved]
    if not saved:
        raise CheckpointError("the graph has no global variables to save")
    values = dict(running.state.values(saved))
    tensors = [SavedTensor(v.full_name, v.slice_spec, values[v.name]) for v in saved]
    return Copied(str(prefix), tensors, rotation)


@working("restoring variables")
def restore_variables(
    running: RunningJob, path: str | os.PathLike[str], *, partial: bool
) -> tuple[str, ...]:
    """Give variables the values of a checkpoint; see `caramel.runtime.session.Session.restore`.

    Args:
        path: what `save` returned, or a directory, whose latest checkpoint is taken.
        partial: whether it may lack some of the variables.

    Returns:
        The names of the variables that it lacks.
    """
    check_path(path)
    saved = [variable for variable in running.job.context.variables if variable.saved]
    if not saved:
        raise CheckpointError("the graph has no global variables to restore")
    found = read_checkpoint(path, saved, partial=partial)
    try:
        running.settle()
    except tf.errors.OpError as error:  # nothing of what was to be done counts any more
        _log.info("what was left to do of the last step failed before a restore: %s", error)
        running.settle()
    with running.state.torn_by_failures():
        running.state.assign([v for v in saved if v.name in found.values], found.values)
    _tell_of_difference(path, found)
    return found.missing


def assign_variables(running: RunningJob, values: Mapping[str, Any]) -> None:
    """Give variables new values; see `caramel.runtime.session.Session.assign`.

    Args:
        values: arrays by the variables' names.
    """
    if not isinstance(values, Mapping):
        raise FeedError(f"assign takes arrays by names of variables, not a {type(values).__name__}")
    variables, arrays = running.job.plan.job.variable_of, {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise FeedError(f"assign takes names of variables, not {name!r:.100}")
        if name not in variables:
            raise FeedError(f"there is no variable '{name}'{suggestion(name, variables)}")
        spec = variables[name].spec
        feed = Feed(TensorRef(name), spec, tf.as_dtype(spec.dtype).as_numpy_dtype, value)
        arrays[name] = to_array(feed)
        check_whole(feed, arrays[name])
    running.settle()
    with running.state.torn_by_failures():
        running.state.assign([variables[name] for name in arrays], arrays)


def check_path(path: Any) -> None:
    """Raise unless a path of a checkpoint was given."""
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"the path of a checkpoint must be a string or a path, not {path!r}")


def _tell_of_difference(path: str | os.PathLike[str], found: Restored) -> None:
    """Log where a checkpoint that was restored and the graph differ."""
    if found.missing:
        _log.warning(
            "checkpoint '%s' lacks %d variables, which are as they were: %s",
            os.fspath(path),
            len(found.missing),
            some_of(found.missing),
        )
    if found.left_over:
        _log.warning(
            "checkpoint '%s' holds %d values of which the graph has no variable: %s",
            os.fspath(path),
            len(found.left_over),
            some_of(found.left_over),
        )
