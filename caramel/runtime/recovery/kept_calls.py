"""What was asked for since the last snapshot, so that it can be done again."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.capture.structures import Fetched
from caramel.core.train_steps import StepName
from caramel.runtime.evaluation import evaluate
from caramel.runtime.running_job import RunningJob
from caramel.runtime.training import training_step


@dataclass(frozen=True, slots=True)
class StepCall:
    """What `caramel.runtime.session.Session.step` is asked for.

    Attributes:
        feed_dict: values by tensor or name.
        fetches: what is returned; None for the loss.
        step: its name, where the job has several.
        repeat: whether there may be fewer examples than workers.
        times: how many such steps are done.
        reads: ops by which each worker takes elements of input pipelines, as far as known.
    """

    feed_dict: Mapping[Any, Any] | None
    fetches: Any = None
    step: StepName | None = None
    repeat: bool = False
    times: int = 1
    reads: tuple[str, ...] = ()

    def do(self, running: RunningJob) -> Any:
        """Do one step."""
        return training_step(running, self.feed_dict, self.fetches, self.step, repeats=self.repeat)

    def copied(self) -> StepCall:
        """The same with values of its own: users write into their arrays again and again."""
        feeds, fetches = _copies(self.feed_dict, self.fetches)
        return replace(self, feed_dict=feeds, fetches=fetches)


@dataclass(frozen=True, slots=True)
class RunCall:
    """What `caramel.runtime.session.Session.run` is asked for.

    Attributes:
        feed_dict: values by tensor or name.
        fetches: what is returned.
        reads: ops by which it takes elements of input pipelines, as far as known.
    """

    feed_dict: Mapping[Any, Any] | None
    fetches: Any
    reads: tuple[str, ...] = ()

    def do(self, running: RunningJob) -> Any:
        """Run that part of the graph."""
        return evaluate(running, self.fetches, self.feed_dict)

    def copied(self) -> RunCall:
        """The same with values of its own."""
        feeds, fetches = _copies(self.feed_dict, self.fetches)
        return replace(self, feed_dict=feeds, fetches=fetches)


class KeptCalls:
    """The steps since the last snapshot, and the calls that took elements of pipelines, in order.

    Attributes:
        bytes: about how much their feeds take.
    """

    def __init__(self) -> None:
        self._calls: list[StepCall | RunCall] = []
        self.bytes = 0

    def __iter__(self) -> Iterator[StepCall | RunCall]:
        return iter(self._calls)

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return sum(isinstance(call, StepCall) for call in self._calls)

    def add(self, call: StepCall | RunCall) -> None:
        """Keep what was done, with copies of what was fed."""
        own = call.copied()
        times = 1
        if isinstance(own, StepCall):
            times, own = own.times, replace(own, times=1)
        self._calls += [own] * times
        self.bytes += _size(list((own.feed_dict or {}).values()))


def _copies(
    feed_dict: Mapping[Any, Any] | None, fetches: Any
) -> tuple[Mapping[Any, Any] | None, list[Any] | None]:
    feeds = None
    if feed_dict is not None:
        feeds = {key: _copied(value) for key, value in feed_dict.items()}
    return feeds, None if fetches is None else list(Fetched.of(fetches).leaves)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tf.Tensor | np.generic | int | float | str | bytes):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it could be fed, so it can be made an array
        return np.array(value)


def _size(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Iterable) and not isinstance(value, tf.Tensor):
        return sum(map(_size, value))
    parts = getattr(value, "__dict__", None)  # of a ragged value
    return sum(map(_size, parts.values())) if parts else 8
