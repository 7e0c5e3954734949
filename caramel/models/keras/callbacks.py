"""What stands around the user's callbacks: variables come here before, and go to workers after."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import keras

from caramel.core.errors import GraphError

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_MUCH = 0.1  # the part of the time that bringing variables here may take without a word

_log = logging.getLogger(__name__)


class Remote(Protocol):
    """Whose variables go to and fro."""

    def pull(self) -> None: ...

    def push(self) -> None: ...


class Pulling(keras.callbacks.Callback):
    """Before all other callbacks: the model here gets what the workers have.

    Args:
        remote: has the variables.
        looking: callbacks that may look at the model after each batch.
    """

    def __init__(self, remote: Remote, looking: Sequence[Any]) -> None:
        super().__init__()
        self._remote, self._looking = remote, looking
        self._pulling_s, self._begin = 0.0, 0.0

    def on_test_begin(self, logs: Any = None) -> None:
        self._remote.pull()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin, self._pulling_s = perf_counter(), 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._remote.pull()
        part = self._pulling_s / max(perf_counter() - self._begin, 1e-9)
        if part > _MUCH:
            _log.warning(
                "%.0f %% of this epoch's time went into bringing all variables here after each "
                "batch, since %s may look at them there; a callback without hooks for batches "
                "costs nothing",
                100 * part,
                ", ".join(type(each).__name__ for each in self._looking),
            )

    def on_train_end(self, logs: Any = None) -> None:
        self._remote.pull()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._looking:
            begin = perf_counter()
            self._remote.pull()
            self._pulling_s += perf_counter() - begin


class Pushing(keras.callbacks.Callback):
    """After all other callbacks: the workers get what these have changed.

    Args:
        remote: gets the variables.
        each_batch: whether callbacks may change them at each batch.
    """

    def __init__(self, remote: Remote, each_batch: bool) -> None:
        super().__init__()
        self._remote, self._each_batch = remote, each_batch

    def on_train_begin(self, logs: Any = None) -> None:
        self._remote.push()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._remote.push()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._remote.push()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._each_batch:
            self._remote.push()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._each_batch:
            self._remote.push()


def around(remote: Remote, callbacks: Any) -> list[Any]:
    """The user's callbacks with ours around them.

    Args:
        remote: has the variables.
        callbacks: as they are given to `keras.Model.fit`.

    Raises:
        GraphError: they are a `CallbackList`.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise GraphError("give callbacks as a list: trainer.fit adds its own to them")
    if callbacks is None:
        given = []
    else:
        given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    looking = [each for each in given if _looks_at_batches(each)]
    return [Pulling(remote, looking), *given, Pushing(remote, bool(looking))]


def _looks_at_batches(callback: Any) -> bool:
    """Whether a callback may look at the model after each batch."""
    kind, base = type(callback), keras.callbacks.Callback
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return any(hook in vars(callback) for hook in _BATCH_HOOKS)
    if kind.__module__.startswith("keras."):
        return isinstance(getattr(callback, "save_freq", None), int)
    return any(getattr(kind, hook, None) is not getattr(base, hook) for hook in _BATCH_HOOKS)
