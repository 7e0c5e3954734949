"""What a client that was killed has left on workers that go on, for the next one to go on from.

Beside each snapshot stands a text that says all that is to be known of it: where copies are, how
many steps were done, and where input pipelines were. The next client of the same job finds it by
the leases of what was left. It goes on from the snapshot if that is newer than the checkpoints of
the directory that both were told, and these are still those that there were: who has removed some
means to go back.
"""

from __future__ import annotations

import io
import json
import logging
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from caramel.core.errors import CaramelError
from caramel.core.util.fingerprint import digest, graph_hash
from caramel.core.util.json_records import from_json_value, read_json, to_json_value
from caramel.modifiers.snapshots import Kept
from caramel.runtime.job import Job
from caramel.runtime.resuming import checkpoints, steps_told
from caramel.runtime.saved_progress import Progress

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bequest:
    """What is known of a snapshot that was left.

    Attributes:
        job: a hash of what is trained.
        directory: of the checkpoints.
        checkpoints: those that were there.
        number, slot, devices, copies: see `snapshots.Snapshot`.
        arrays: what variables were together that differ between workers.
        progress: where training was.
    """

    job: str
    directory: str
    checkpoints: tuple[str, ...]
    number: int
    slot: int
    devices: tuple[str, ...]
    copies: Mapping[str, tuple[Kept, ...]]
    arrays: Mapping[str, str]
    progress: Progress

    @property
    def together(self) -> Mapping[str, np.ndarray]:
        """What variables were together that differ between workers."""
        return {name: _array(text) for name, text in self.arrays.items()}

    def to_json(self) -> str:
        """It as text."""
        return json.dumps(to_json_value(self))


class Bequests:
    """Says what is left by a session, and what of others it can go on from.

    Args:
        directory: of the checkpoints.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.path.abspath(directory)
        self._jobs: dict[int, str] = {}

    def written(
        self,
        job: Job,
        number: int,
        slot: int,
        copies: Mapping[str, tuple[Kept, ...]],
        together: Mapping[str, np.ndarray],
        progress: Progress,
    ) -> str:
        """The text beside a snapshot."""
        return Bequest(
            self._hash(job),
            self._directory,
            tuple(checkpoints(self._directory)),
            number,
            slot,
            job.plan.job.devices,
            copies,
            {name: _text(array) for name, array in together.items()},
            progress,
        ).to_json()

    def read(self, job: Job, texts: Iterable[str]) -> list[Bequest]:
        """What of what was left this job can go on from."""
        return [each for text in dict.fromkeys(texts) if (each := self._read(job, text))]

    def read_of_any(self, texts: Iterable[str]) -> list[Bequest]:
        """What a job could go on from, whichever it is."""
        return [each for text in dict.fromkeys(texts) if (each := self._parsed(text))]

    def _read(self, job: Job, text: str) -> Bequest | None:
        found = self._parsed(text)
        return found if found is not None and found.job == self._hash(job) else None

    def _parsed(self, text: str) -> Bequest | None:
        try:
            found = from_json_value(Bequest, read_json(text))
            _ = found.together
        except (ValueError, CaramelError) as error:
            _log.info("what a client has left cannot be read: %s", error)
            return None
        is_newest = found.progress.steps >= steps_told(self._directory)
        are_there = set(checkpoints(self._directory)) >= set(found.checkpoints)
        is_same = found.directory == self._directory
        return found if is_same and is_newest and are_there else None

    def _hash(self, job: Job) -> str:
        """A hash of what is trained."""
        if id(job) not in self._jobs:
            train = job.context.captured.job
            known = graph_hash(job.context.captured.graph_def), train.train_op, str(train.loss)
            self._jobs[id(job)] = digest(*known)
        return self._jobs[id(job)]


def _text(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return b64encode(file.getvalue()).decode()


def _array(text: str) -> np.ndarray:
    """An array from its text.

    Raises:
        ValueError: it is none.
    """
    array: np.ndarray = np.load(io.BytesIO(b64decode(text, validate=True)), allow_pickle=False)
    return array
