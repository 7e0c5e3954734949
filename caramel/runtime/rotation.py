"""Which checkpoints of a series stay: the newest ones, and now and then one for good.

A series is what was saved under one path with the numbers of steps behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from caramel.core.errors import CheckpointError
from caramel.runtime.checkpoint import entered, forget, remove

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """How many checkpoints of a series stay.

    Attributes:
        keep: so many of the newest; None for all.
        keep_every_hours: of the others, the first one, and each that is at least so many hours
            newer than the one before that stays; None for none.

    Raises:
        CheckpointError: they are no such numbers.
    """

    keep: int | None = None
    keep_every_hours: float | None = None

    def __post_init__(self) -> None:
        if self.keep is None:
            if self.keep_every_hours is not None:
                raise CheckpointError(
                    "keep_every_hours says what stays besides the newest: give keep"
                )
            return
        if not isinstance(self.keep, Integral) or isinstance(self.keep, bool) or self.keep < 1:
            raise CheckpointError(
                f"keep must be a number of checkpoints, at least 1, not {self.keep!r}"
            )
        hours = self.keep_every_hours
        is_number = isinstance(hours, Real) and not isinstance(hours, bool)
        if hours is not None and not (is_number and hours > 0):
            raise CheckpointError(f"keep_every_hours must be more than 0, not {hours!r}")

    def of(self, times_s: Sequence[float]) -> list[bool]:
        """Which checkpoints stay, of a series that was saved at these times, in order."""
        newest = len(times_s) - (self.keep or len(times_s))
        stays, last_s = [], None
        for number, time_s in enumerate(times_s):
            is_for_good = self.keep_every_hours is not None and (
                last_s is None or time_s >= last_s + self.keep_every_hours * _HOUR_S
            )
            if is_for_good:
                last_s = time_s
            stays.append(is_for_good or number >= newest)
        return stays


def rotate(path: str, rotation: Rotation) -> None:
    """Remove what does not stay of the series of a checkpoint that was just written.

    They are no longer entered in their directory before their files go.

    Args:
        path: of the checkpoint, with its number.
        rotation: what stays.

    Raises:
        CheckpointError: a file cannot be removed, or somebody else removes one just then.
    """
    if rotation.keep is None:
        return
    series = _series(path)
    try:
        stays = rotation.of([os.path.getmtime(f"{each}.index") for each in series])
        gone = [each for each, is_kept in zip(series, stays, strict=True) if not is_kept]
        forget(Path(path).parent, gone)
        for each in gone:
            remove(Path(each))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{path}' is written, but an older one cannot be removed: {error.strerror} "
            f"('{error.filename}')"
        ) from error


def _series(path: str) -> list[str]:
    """The checkpoints of a series that are entered in their directory and there, in order."""
    numbered = re.compile(re.escape(Path(path).name.rpartition("-")[0]) + r"-\d+")
    return [
        each
        for each in entered(Path(path).parent)
        if numbered.fullmatch(Path(each).name) and os.path.exists(f"{each}.index")
    ]
