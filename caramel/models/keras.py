"""Trains a compiled Keras model on many workers: `caramel.keras`.

The real `model.fit` runs in this process, with callbacks, validation and history as ever. Only what
one training step does is done by the workers.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.capture.functions import LoweredStep, lower
from caramel.core.errors import GraphError, NotTensorFlowError, UnsupportedOpError
from caramel.models.remote_step import RemoteStep, StepOnWorkers

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_NOT_TRACED = "run_eagerly=True runs each op by itself, from Python; compile the model without it"

_log = logging.getLogger(__name__)


class Trainer(StepOnWorkers):
    """Lets workers do the training steps of a Keras model. A context manager.

    ``trainer.fit`` is ``model.fit``: it takes the same arguments and returns the same history. The
    model here is the truth between steps: what workers have made of its variables is brought here
    before callbacks look, and what callbacks change goes to the workers. Nothing stays on the
    model; it can be saved, evaluated and trained further as any other.

    Each batch is split over the workers. Data come from this process.

    Args:
        model: compiled, with TensorFlow as Keras's backend.
        workers: as for `ARModel`.
        session_options: arguments of `ARModel.session`, such as `start_timeout_s`.
        options: those of `ARModel`.

    Raises:
        GraphError: it is no such model.
    """

    def __init__(
        self,
        model: Any,
        workers: Any,
        *,
        session_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        _check(model)
        self._keras = model
        self._remote = RemoteStep(
            self._lowered, workers, session_options or {}, options, self._names_of_metrics
        )
        self._metrics = _Metrics(self._remote, self)
        self._compiled: tuple[Any, ...] = ()  # with what the step was lowered
        self._others: Mapping[str, tf.Tensor] = {}  # what a step tells besides metrics

    # Training

    def fit(self, *arguments: Any, callbacks: Any = None, **options: Any) -> Any:
        """``model.fit``, with the steps done by the workers; see there.

        Raises:
            GraphError: the model's step cannot be distributed; says why.
            WorkerLostError: a worker was lost; the model has what was brought here last.
        """
        _check(self._keras)
        given = _listed(callbacks)
        looks = [each for each in given if _looks_at_batches(each)]
        if looks:
            _log.info(
                "all variables are brought here after each step, since %s may look at them",
                ", ".join(type(each).__name__ for each in looks),
            )
        first, last = _Pulling(self, bool(looks)), _Pushing(self, bool(looks))
        with self._steps_by_workers():
            return self._keras.fit(*arguments, callbacks=[first, *given, last], **options)

    def _names_of_metrics(self) -> frozenset[str]:
        """The names of the metrics' variables on the workers."""
        own = {id(v.value) for metric in self._keras.metrics for v in metric.variables}
        variables = self._remote.lowered.variables.items()
        return frozenset(name for name, variable in variables if id(variable) in own)

    @contextmanager
    def _steps_by_workers(self) -> Iterator[None]:
        """While it lasts, the model's training steps are done by the workers."""
        model = self._keras
        before, model.train_function = model.train_function, self._train
        try:
            yield
        finally:
            model.train_function = before
            if self._remote.is_usable:
                self.pull()

    def _train(self, batches: Iterator[Any]) -> Mapping[str, Any]:
        """What Keras calls for one step, or several."""
        logs: Mapping[str, Any] = {}
        for number in range(self._keras.steps_per_execution):
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
        model = self._keras
        compiled = (model.optimizer, model.loss, *model.metrics[:1])
        if len(compiled) != len(self._compiled) or any(
            map(operator.is_not, compiled, self._compiled)
        ):
            self._remote.forget()
            self._compiled = compiled
        self._remote.prepare((data,))
        self._metrics.push()
        lowered = self._remote.lowered
        vectors = [vector for vector, _ in lowered.reports]
        loss, values, told = self._remote.run((data,), [lowered.loss, self._others, vectors])
        results = self._metrics.add(told, loss, len(tf.nest.flatten(data)[0]))
        if not isinstance(lowered.outputs, Mapping):
            return {}
        return {k: values[k] if k in values else results.get(k) for k in lowered.outputs}

    @property
    def _loss_tracker(self) -> Any:
        """The metric of the loss, where it is here that it is told the loss of a batch.

        Each worker has the loss of its own part only, of which that of the whole batch need not be
        the mean: it may be a sum, or divided by a count of the worker's own.
        """
        model = self._keras
        is_usual = type(model).train_step is keras.Model.train_step
        return model.metrics[0] if is_usual and model.metrics else None

    def _lowered(self, signature: Sequence[Any]) -> LoweredStep:
        model, losses = self._keras, list[Any]()
        compute = model.compute_loss

        def compute_loss(*arguments: Any, **options: Any) -> Any:
            losses.append(compute(*arguments, **options))
            return losses[-1]

        def reported() -> list[tf.Variable]:  # metrics are built by the first step
            others = [metric for metric in model.metrics if metric is not self._loss_tracker]
            return [v.value for metric in others for v in metric.variables]

        model.compute_loss = compute_loss
        try:
            lowered = lower(model.train_step, signature, reported=reported, losses=losses)
        finally:
            del model.compute_loss
        own = {id(v.value) for metric in model.metrics for v in metric.variables}
        self._others = _without_metrics(lowered, own)
        return lowered


class _Metrics:
    """The variables of metrics: each worker gathers what its own examples say.

    After each step they are told by all workers, and the model's metrics get what they are
    together.

    Args:
        remote: does the steps.
        trainer: has the model.
    """

    def __init__(self, remote: RemoteStep, trainer: Trainer) -> None:
        self._remote, self._trainer = remote, trainer
        self._parts: dict[str, np.ndarray] = {}  # what each worker has, by the variable's name
        self._told: dict[str, np.ndarray] = {}  # what the variables here were given
        self._step: LoweredStep | None = None  # of which these are
        self._give: Any = None
        self.may_differ = True  # whether anybody else may have written the variables here

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables on the workers."""
        return tuple(n for _, names in self._remote.lowered.reports for n in names)

    def push(self) -> None:
        """Give the workers what anybody else has written here: a reset, say."""
        lowered = self._remote.lowered
        is_new = self._step is not lowered
        if not (is_new or self.may_differ):
            return
        values = {name: lowered.variables[name].numpy() for name in self.names}
        if is_new:  # a new session has got them when it was opened
            self._step, self._give = lowered, tf.function(self._given, autograph=False)
            changed = values
        else:
            changed = {n: v for n, v in values.items() if not np.array_equal(v, self._told[n])}
            self._send(changed)
        self._begin(changed)
        self.may_differ = False

    def add(
        self, told: Sequence[Sequence[np.ndarray]], loss: Any, examples: int
    ) -> Mapping[str, Any]:
        """Give the model's metrics what a step has made of the workers' variables.

        Args:
            told: for each report the vectors of the workers that had an example.
            loss: that of the whole batch.
            examples: how many there were in the step.

        Returns:
            What the metrics are then.
        """
        variables, workers = self._remote.lowered.variables, self._remote.model.plan.workers
        counts = np.array([examples // workers + (w < examples % workers) for w in range(workers)])
        for vectors, (_, names) in zip(told, self._remote.lowered.reports, strict=True):
            begin = 0
            for name in names:
                shape = variables[name].shape
                end = begin + int(np.prod(shape))
                own = np.stack([np.reshape(vector[begin:end], shape) for vector in vectors])
                self._told[name] = self._together(name, own, counts[: len(own)])
                begin = end
        if examples < workers:  # those without an example have counted another one's
            whole = {name: self._told[name] for name in self.names}
            self._send(whole)
            self._begin(whole)
        given = [self._told[name] for name in self.names]
        results: Mapping[str, Any] = self._give(given, loss, float(examples))
        return results

    def _send(self, values: Mapping[str, np.ndarray]) -> None:
        if values:
            self._remote.session.assign(values)

    def _begin(self, values: Mapping[str, np.ndarray]) -> None:
        """Variables here have values, which the workers have got, too."""
        plan = self._remote.model.plan
        for name, value in values.items():
            parts = np.repeat(value[None], plan.workers, 0)
            if name in plan.job.summed:  # the whole is on worker 0
                parts[1:] = 0
            self._parts[name], self._told[name] = parts, value

    def _together(self, name: str, own: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """What a variable of all workers is; `own` has those of the first ones."""
        job, parts = self._remote.model.plan.job, np.array(self._parts[name])
        before = parts[: len(own)].copy()
        parts[: len(own)] = own
        self._parts[name] = parts
        if name in job.summed:
            return np.asarray(parts.sum(0))
        if name not in job.local:
            return np.asarray(parts[0])
        # A mean over the examples was added, by each worker over its own.
        steps = (own - before).astype(np.float64)
        step = np.tensordot(counts / counts.sum(), steps, 1)
        return np.asarray((self._told[name] + step).astype(parts.dtype))

    def _given(self, values: Sequence[Any], loss: Any, examples: Any) -> Any:
        """One call of TensorFlow that writes the model's metrics, and says what they are."""
        variables = self._remote.lowered.variables
        for name, value in zip(self.names, values, strict=True):
            variables[name].assign(value)
        if self._trainer._loss_tracker is not None:
            self._trainer._loss_tracker.update_state(loss, sample_weight=examples)
        return self._trainer._keras.get_metrics_result()


class _Pulling(keras.callbacks.Callback):
    """Before all other callbacks: the model here gets what the workers have."""

    def __init__(self, trainer: Trainer, each_batch: bool) -> None:
        super().__init__()
        self._trainer, self._each_batch = trainer, each_batch

    def on_test_begin(self, logs: Any = None) -> None:
        self._trainer.pull()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._trainer.pull()

    def on_train_end(self, logs: Any = None) -> None:
        self._trainer.pull()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._each_batch:
            self._trainer.pull()


class _Pushing(keras.callbacks.Callback):
    """After all other callbacks: the workers get what these have changed."""

    def __init__(self, trainer: Trainer, each_batch: bool) -> None:
        super().__init__()
        self._trainer, self._each_batch = trainer, each_batch

    def _push(self) -> None:
        self._trainer._metrics.may_differ = True
        if self._trainer._remote.is_usable:
            self._trainer.push()

    def on_train_begin(self, logs: Any = None) -> None:
        self._push()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._push()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._push()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._each_batch:
            self._push()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._each_batch:
            self._push()


def _check(model: Any) -> None:
    """Raise unless the model's steps can be done by workers.

    Raises:
        GraphError: it cannot; says what to do.
    """
    if not isinstance(model, keras.Model):
        raise NotTensorFlowError(f"a Trainer takes a keras.Model, not {type(model).__name__}")
    if keras.backend.backend() != "tensorflow":
        raise GraphError(
            f"Keras's backend is {keras.backend.backend()}; Caramel distributes graphs of "
            "TensorFlow: set KERAS_BACKEND=tensorflow before Keras is imported"
        )
    if not model.compiled:
        raise GraphError("the model is not compiled: call model.compile(...) before")
    if model.run_eagerly:
        raise GraphError(_NOT_TRACED)
    is_default = model.distribute_strategy is tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or not is_default:
        raise GraphError(
            "the model was made in the scope of a tf.distribute strategy, which has variables of "
            "its own kind; make it outside"
        )
    for layer in _layers(model):
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            raise UnsupportedOpError(
                f"layer '{layer.name}' is stateful: its state has a row for each example of a "
                "whole batch; use stateful=False"
            )
        if getattr(layer, "synchronized", False):
            raise UnsupportedOpError(
                f"layer '{layer.name}' is a synchronized BatchNormalization; without "
                "synchronized=True each worker normalises its own part of the batch"
            )


def _layers(layer: Any) -> Iterator[Any]:
    """A layer and all within it."""
    yield layer
    wrapped = getattr(layer, "layer", None)
    within = [*getattr(layer, "layers", ()), *([] if wrapped is None else [wrapped])]
    for each in within:
        yield from _layers(each)


def _without_metrics(lowered: LoweredStep, metrics: Container[int]) -> dict[str, tf.Tensor]:
    """What a step returns that is not computed from the variables of metrics.

    Args:
        metrics: the ids of these variables.
    """
    if not isinstance(lowered.outputs, Mapping):
        return {}
    graph = lowered.graph
    names = (name for name, v in lowered.variables.items() if id(v) in metrics)
    of_metrics = {graph.get_operation_by_name(name) for name in names}

    def is_other(tensor: tf.Tensor) -> bool:
        waiting, seen = [tensor.op], {tensor.op}
        while waiting:
            op = waiting.pop()
            if op in of_metrics:
                return False
            new = {t.op for t in op.inputs} - seen
            seen |= new
            waiting += new
        return True

    outputs = lowered.outputs.items()
    return {k: value for k, value in outputs if isinstance(value, tf.Tensor) and is_other(value)}


def _listed(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise GraphError("give callbacks as a list: trainer.fit adds its own to them")
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _looks_at_batches(callback: Any) -> bool:
    """Whether a callback may look at the model after each batch."""
    kind = type(callback)
    if kind.__module__.startswith("keras."):
        return isinstance(getattr(callback, "save_freq", None), int)
    base = keras.callbacks.Callback
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return False
    return any(getattr(kind, hook, None) is not getattr(base, hook) for hook in _BATCH_HOOKS)


def _without_optionals(data: Any) -> Any:
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, tf.experimental.Optional) else value, data
    )
