"""What a Keras model does with a batch, done by workers: a training step, a test, a prediction."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from caramel.capture.functions import LoweredStep, lower
from caramel.core.errors import GraphError
from caramel.models.keras.gathered_metrics import GatheredMetrics
from caramel.models.keras.made_before import make_variables
from caramel.models.keras.step_results import StepResults
from caramel.models.remote_step import RemoteStep
from caramel.models.signatures import Signature


class BatchStep:
    """`train_step` or `test_step` of a model. Called as Keras's own `train_function`.

    Args:
        model: compiled.
        name: of the method that does the step.
        workers: as for `ARModel`.
        session_options: of `ARModel.session`.
        options: of `ARModel`.
        known: signatures for which steps of the model were lowered; gets those of this one.

    Attributes:
        remote: does the step.
    """

    def __init__(
        self,
        model: Any,
        name: Literal["train_step", "test_step"],
        workers: Any,
        session_options: Mapping[str, Any],
        options: Mapping[str, Any],
        known: list[Signature],
    ) -> None:
        self._model, self._name = model, name
        self._trains = name == "train_step"
        self.remote = RemoteStep(
            self._lowered,
            workers,
            session_options,
            options,
            apart=self._names_of_metrics,
            trains=self._trains,
            name_of=_named,
            known=known,
        )
        self._compiled: tuple[Any, ...] = ()  # with what the step was lowered
        self._gathered: GatheredMetrics | None = None
        self._gathers: LoweredStep | None = None  # whose metrics these are
        self._results: StepResults | None = None

    def __call__(self, batches: Iterator[Any]) -> Mapping[str, Any]:
        """Do one step, or several; returns the logs."""
        logs: Mapping[str, Any] = {}
        for number in range(self._model.steps_per_execution):
            try:
                data = next(batches)
            except (StopIteration, tf.errors.OutOfRangeError):
                if number:
                    break
                raise
            logs = self._step(_without_optionals(data))
        return logs

    def _step(self, data: Any) -> Mapping[str, Any]:
        # Compiling anew makes another step of the same model: it has a new metric for the loss.
        model, remote = self._model, self.remote
        compiled = (model.optimizer, model.loss, *model.metrics[:1])
        if len(compiled) != len(self._compiled) or any(
            map(operator.is_not, compiled, self._compiled)
        ):
            remote.forget()
            self._compiled = compiled
        remote.prepare((data,))
        lowered = remote.lowered
        if self._gathered is None or self._results is None or self._gathers is not lowered:
            self._gathers = lowered
            own = {id(v.value) for metric in model.metrics for v in metric.variables}
            self._results = StepResults(lowered, own)
            self._gathered = GatheredMetrics(
                remote, model.metrics, self._loss_tracker, self._results.of_metrics
            )
        is_reset = self._gathered.push()
        if is_reset and not self._trains:  # a pass through the data begins
            remote.push()
        vectors = [vector for vector, _ in lowered.reports]
        examples = len(tf.nest.flatten(data)[0])
        self._gathered.prepare(examples)
        loss, told, gathered = remote.run((data,), [lowered.loss, self._results.told, vectors])
        computed = self._gathered.add(gathered, loss, examples)
        logs = self._results.together(told, computed)
        return logs if isinstance(logs, Mapping) else {}

    @property
    def _loss_tracker(self) -> Any:
        """The metric of the loss, where it is here that it is told the loss of a batch.

        Each worker has the loss of its own part only, of which that of the whole batch need not be
        the mean: it may be a sum, or divided by a count of the worker's own.
        """
        model, name = self._model, self._name
        is_usual = getattr(type(model), name) is getattr(keras.Model, name)
        return model.metrics[0] if is_usual and model.metrics else None

    def _names_of_metrics(self) -> frozenset[str]:
        """The names of the metrics' variables on the workers."""
        own = {id(v.value) for metric in self._model.metrics for v in metric.variables}
        variables = self.remote.lowered.variables.items()
        return frozenset(name for name, variable in variables if id(variable) in own)

    def _lowered(self, signature: Sequence[Any]) -> LoweredStep:
        model, losses = self._model, list[Any]()
        make_variables(model, self._name, signature[0])
        compute, own = model.compute_loss, vars(model).get("compute_loss")

        def compute_loss(*arguments: Any, **options: Any) -> Any:
            losses.append(compute(*arguments, **options))
            return losses[-1]

        def reported() -> list[tf.Variable]:  # metrics are built by the first step
            others = [metric for metric in model.metrics if metric is not self._loss_tracker]
            return [v.value for metric in others for v in metric.variables]

        model.compute_loss = compute_loss
        try:
            return lower(
                getattr(model, self._name),
                signature,
                reported=reported,
                losses=losses,
                trains=self._trains,
            )
        finally:
            del model.compute_loss
            if own is not None:  # the user's, of this model and not of its class
                model.compute_loss = own


class PredictStep:
    """`predict_step` of a model. Called as Keras's own `predict_function`.

    Args:
        model: any.
        workers, session_options, options, known: as for `BatchStep`.

    Attributes:
        remote: does the step.
    """

    def __init__(
        self,
        model: Any,
        workers: Any,
        session_options: Mapping[str, Any],
        options: Mapping[str, Any],
        known: list[Signature],
    ) -> None:
        self._model = model
        self.remote = RemoteStep(
            self._lowered,
            workers,
            session_options,
            options,
            trains=False,
            name_of=_named,
            known=known,
        )

    def __call__(self, batches: Sequence[Any]) -> Any:
        """What the model says of some batches, together."""
        parts = [self._predicted(_without_optionals(data)) for data in batches]
        return tf.nest.map_structure(lambda *own: tf.constant(np.concatenate(own)), *parts)

    def _predicted(self, data: Any) -> Any:
        self.remote.prepare((data,))
        outputs = self.remote.lowered.outputs
        return tf.nest.map_structure(_of_each_example, *[self.remote.run((data,), outputs)])

    def _lowered(self, signature: Sequence[Any]) -> LoweredStep:
        return lower(self._model.predict_step, signature, trains=False)


def _of_each_example(value: Any) -> np.ndarray:
    """What a prediction is, with an entry for each example of a batch.

    Raises:
        GraphError: it has none.
    """
    parts = value if isinstance(value, list) else [value]
    if any(np.ndim(part) == 0 for part in parts):
        raise GraphError(
            "predict_step returns a number for a whole batch, of which each worker has a part: "
            "return something for each example, or call model.predict, which this process does"
        )
    return np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])


def _named(signature: Signature) -> dict[str, Any]:
    """The parts of a batch by Keras's names for them."""
    try:
        data = keras.utils.unpack_x_y_sample_weight(signature[0])
    except ValueError:  # a step of the user's takes something else
        return {"data": signature[0]}
    return dict(zip(("x", "y", "sample_weight"), data, strict=True))


def _without_optionals(data: Any) -> Any:
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, tf.experimental.Optional) else value, data
    )
