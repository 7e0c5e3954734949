"""What the metrics of a model have gathered of the examples of all workers.

Each worker gathers what its own examples say. After each step all tell the values of their metrics'
variables, and the model's metrics here get what these are together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.models.remote_step import Buffer, RemoteStep
from caramel.runtime.running_job import RunningJob


class GatheredMetrics:
    """The metrics of a model while workers do one of its steps.

    Args:
        remote: does the step; it is open.
        metrics: of the model.
        tracker: the one that is told here the loss of each batch, if there is one.
        results: computes something from the metrics.
    """

    def __init__(
        self,
        remote: RemoteStep,
        metrics: Sequence[Any],
        tracker: Any,
        results: Callable[[], Sequence[Any]],
    ) -> None:
        self._remote, self._tracker, self._results = remote, tracker, results
        self._variables = [v.value for metric in metrics for v in metric.variables]
        self._vectors = [_Vector(remote, names) for _, names in remote.lowered.reports]
        self._running: RunningJob | None = None  # of which it is known what workers have
        self._begin(list(self._values_here()))  # a session has got them when it was opened
        self._held: list[Buffer] = []  # what the variables here were given last
        self._write = self._writer()

    def push(self) -> bool:
        """Give the workers what anybody else has written here: a reset, say.

        Returns:
            Whether anything was written: a pass through the data may begin.
        """
        held = zip(self._held, self._variables, strict=True) if self._held else ()
        if self._held and all(buffer.is_that_of(variable) for buffer, variable in held):
            return False
        values = list(self._values_here())
        if not all(map(np.array_equal, values, (vector.whole for vector in self._vectors))):
            self._share(values)
        return True

    def prepare(self, examples: int) -> None:
        """A step is about to be done.

        What workers count that only repeat an example is to be left out again, whoever of them is
        lost meanwhile: so one has everything before.

        Args:
            examples: how many it has.
        """
        if examples < self._remote.workers:
            self._share([vector.whole for vector in self._vectors])

    def add(self, told: Sequence[Sequence[np.ndarray]], loss: Any, examples: int) -> Sequence[Any]:
        """Give the model's metrics what a step has made of the workers' variables.

        Args:
            told: for each report the vectors of the workers that had an example.
            loss: that of the whole batch.
            examples: how many there were in the step.

        Returns:
            The results then.
        """
        workers = self._remote.workers
        counts = np.array([examples // workers + (w < examples % workers) for w in range(workers)])
        if self._remote.running is not self._running:  # perhaps not the same workers as before
            for vector, own in zip(self._vectors, told, strict=True):
                if examples < workers:
                    vector.begin(vector.whole, workers)
                else:
                    vector.begin_anew(np.stack(own), counts)
            self._running = self._remote.running
        for vector, own in zip(self._vectors, told, strict=True):
            vector.gather(np.stack(own), counts[: len(own)])
        whole = [vector.whole for vector in self._vectors]
        if examples < workers:  # those without an example have counted another one's
            self._share(whole)
        results, held = self._write(
            [tf.constant(each) for each in whole],
            tf.constant(loss, self._remote.lowered.loss.dtype),
            tf.constant(examples, tf.float32),
        )
        self._held = [Buffer(value) for value in held]
        return list(results)

    def _values_here(self) -> Iterator[np.ndarray]:
        variables = self._remote.lowered.variables
        for vector in self._vectors:
            yield np.concatenate([np.ravel(variables[name].numpy()) for name in vector.names])

    def _share(self, values: Sequence[np.ndarray]) -> None:
        """Give workers values; of what is added up the first one gets all."""
        found: dict[str, np.ndarray] = {}
        for vector, value in zip(self._vectors, values, strict=True):
            found |= vector.by_name(value)
        if found:
            self._remote.session.assign(found)
        self._begin(values)

    def _begin(self, values: Sequence[np.ndarray]) -> None:
        self._running = self._remote.running
        for vector, value in zip(self._vectors, values, strict=True):
            vector.begin(value, self._remote.workers)

    def _writer(self) -> Any:
        """One call of TensorFlow that writes the model's metrics, and computes the results."""
        lowered = self._remote.lowered

        def write(vectors: Sequence[Any], loss: Any, examples: Any) -> Any:
            for vector, value in zip(self._vectors, vectors, strict=True):
                for name, part in vector.by_name(value).items():
                    lowered.variables[name].assign(part)
            if self._tracker is not None:
                self._tracker.update_state(loss, sample_weight=examples)
            return self._results(), [variable.read_value() for variable in self._variables]

        vectors = [tf.TensorSpec(each.whole.shape, each.whole.dtype) for each in self._vectors]
        scalars = tf.TensorSpec([], lowered.loss.dtype), tf.TensorSpec([], tf.float32)
        return tf.function(write, autograph=False).get_concrete_function(vectors, *scalars)


class _Vector:
    """The variables of one dtype, one behind the other.

    Args:
        remote: does the step.
        names: of the variables.

    Attributes:
        names: of the variables.
        whole: what they are for all workers together.
    """

    def __init__(self, remote: RemoteStep, names: Sequence[str]) -> None:
        self.names = names
        self._shapes = [tuple(remote.lowered.variables[name].shape) for name in names]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._ends = np.cumsum(sizes)
        job = remote.model.plan.job
        self._is_summed = np.repeat([name in job.summed for name in names], sizes)
        # Each worker has added a mean over its own examples.
        self._is_mean = ~self._is_summed & np.repeat([n in job.local for n in names], sizes)
        self.whole = np.zeros(0)
        self._parts = np.zeros((0, 0))  # what each worker has

    def by_name(self, values: Any) -> dict[str, Any]:
        """A vector's parts, by the names of the variables and in their shapes."""
        ends = zip(self.names, self._shapes, self._ends, strict=True)
        return {
            name: values[end - int(np.prod(shape)) : end].reshape(shape)
            if isinstance(values, np.ndarray)
            else tf.reshape(values[end - int(np.prod(shape)) : end], shape)
            for name, shape, end in ends
        }

    def begin(self, whole: np.ndarray, workers: int) -> None:
        """The variables have values, which so many workers have got, too."""
        self.whole = whole
        self._parts = np.repeat(whole[None], workers, 0)
        self._parts[1:, self._is_summed] = 0  # the whole is on worker 0

    def begin_anew(self, own: np.ndarray, counts: np.ndarray) -> None:
        """Nothing is known but what all workers have now: after a loss.

        Args:
            own: what each has.
            counts: how many examples each had last.
        """
        self._parts = own
        self.whole = own[0].copy()
        self.whole[self._is_mean] = np.tensordot(counts / counts.sum(), own, 1)[self._is_mean]

    def gather(self, own: np.ndarray, counts: np.ndarray) -> None:
        """Some workers have gathered more.

        Args:
            own: what each of the first workers has.
            counts: how many examples each of these had.
        """
        whole = self._parts[0].copy()
        if self._is_mean.any():
            steps = (own - self._parts[: len(own)]).astype(np.float64)
            mean = self.whole + np.tensordot(counts / counts.sum(), steps, 1)
            whole[self._is_mean] = mean[self._is_mean]
        self._parts[: len(own)] = own
        is_equal = ~(self._is_mean | self._is_summed)
        whole[is_equal] = own[0][is_equal]
        whole[self._is_summed] = self._parts[:, self._is_summed].sum(0)
        self.whole = whole
