"""Lets workers do a training step that is a function: `caramel.distribute`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.capture.functions import lower
from caramel.capture.structures import PerWorker
from caramel.core.errors import GraphError
from caramel.core.util.arguments import checked
from caramel.models.remote_step import RemoteStep, StepOnWorkers


class DistributedStep(StepOnWorkers):
    """A step that many workers do. Called as the function, and a context manager.

    The arguments are split over the workers on their first dimension; scalars go to all; truth
    values and texts are part of the graph, so that each makes another. It returns
    what the function returns: floating scalars are combined as by `Session.step`, what has an entry
    for each example is in the order of the batch, anything else is a list with one value for each
    worker. What it returns as `caramel.per_worker(...)` is a tuple with one value for each worker.

    The variables that the function uses stay here, and are the truth between steps: what is
    assigned to them here goes to the workers with the next step. What steps have made of them comes
    here when the context is left, or by `pull`.

    Args:
        function: a Python function or `tf.function`; it marks its loss by `caramel.loss`.
        workers: as for `ARModel`.
        session_options: arguments of `ARModel.session`, such as `start_timeout_s`.
        options: those of `ARModel`.

    Raises:
        GraphError: when it is first called: the step cannot be traced or distributed; says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        workers: Any,
        *,
        session_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        def lowered(signature: Any) -> Any:
            arguments, named = signature
            return lower(function, arguments, named=named)

        def name_of(signature: Any) -> dict[str, Any]:
            arguments, named = signature
            own = _names_of(function, len(arguments))
            return dict(zip(own, arguments, strict=True)) | named

        self._remote = RemoteStep(
            lowered, workers, session_options or {}, options, name_of=name_of, known=[]
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Do the step."""
        given = (arguments, named)
        self._remote.prepare(given)
        self._remote.push()
        outputs = self._remote.lowered.outputs
        flat = tf.nest.flatten(outputs)
        wanted = [value for value in flat if isinstance(value, tf.Tensor | PerWorker)]
        with self._remote.without_repeated(given):
            got = iter(self._remote.run(given, wanted))
        done = [
            _tensor(next(got)) if isinstance(each, tf.Tensor | PerWorker) else each for each in flat
        ]
        return tf.nest.pack_sequence_as(outputs, done) if flat else outputs


@checked(GraphError)
def distribute(
    function: Callable[..., Any],
    workers: Any,
    *,
    session_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> DistributedStep:
    """A step that many workers do, in place of one that this process does; see `DistributedStep`.

    As in::

        with caramel.distribute(step, workers=4) as step:
            for batch in dataset:
                loss = step(*batch)
    """
    return DistributedStep(function, workers, session_options=session_options, **options)


def _names_of(function: Callable[..., Any], number: int) -> list[str]:
    """What a function calls its first arguments; those that it does not name get a number."""
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    python = getattr(function, "python_function", function)
    parameters = inspect.signature(python).parameters.values()
    names = [each.name for each in parameters if each.kind in named][:number]
    return names + [f"argument {place + 1}" for place in range(len(names), number)]


def _tensor(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_tensor(each) for each in value)
    return tf.convert_to_tensor(np.asarray(value))
