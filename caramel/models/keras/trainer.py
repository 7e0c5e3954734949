"""The front for users: a compiled Keras model that workers train, evaluate and run.

The real `fit`, `evaluate` and `predict` of the model run in this process, with callbacks,
validation and history as ever. Only what is done with each batch is done by the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from caramel.cluster.cluster import Cluster
from caramel.core.errors import GraphError
from caramel.core.util.arguments import checked
from caramel.models.keras.callbacks import around
from caramel.models.keras.model_steps import BatchStep, PredictStep
from caramel.models.keras.refused import check, tell_uncompiled
from caramel.models.remote_step import StepOnWorkers
from caramel.models.signatures import Signature

_FOR_ALL_STEPS = ("device_list", "marks", "verbose", "check")
_FOR_ALL_SESSIONS = (
    "start_timeout_s",
    "step_timeout_s",
    "lost_after_s",
    "config",
    "stalls",
    "recover",
)


class Trainer(StepOnWorkers):
    """Lets workers do what a Keras model does with each batch. A context manager.

    ``trainer.fit``, ``evaluate`` and ``predict`` are those of the model: they take the same
    arguments and return the same. The model here is the truth between steps: what workers have made
    of its variables is brought here before callbacks look, and what callbacks change goes to the
    workers. Nothing stays on the model; it can be saved, evaluated and trained further as any
    other.

    Each batch is split over the workers. Data come from this process.

    Args:
        model: compiled, with TensorFlow as Keras's backend.
        workers: as for `ARModel`.
        session_options: arguments of `ARModel.session`, such as `start_timeout_s`.
        options: those of `ARModel`, for training steps.

    Raises:
        GraphError: it is no such model.
    """

    @checked(GraphError)
    def __init__(
        self,
        model: Any,
        workers: Any,
        *,
        session_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check(model)
        tell_uncompiled(model)
        self._keras, cluster = model, Cluster.coerce(workers)
        of_session = dict(session_options or {})
        known: list[Signature] = []
        self._training = BatchStep(model, "train_step", cluster, of_session, options, known)
        self._remote = self._training.remote
        # These plan nothing, since they send no gradients.
        options = {k: v for k, v in options.items() if k in _FOR_ALL_STEPS} | {"planner": "plain"}
        of_session = {k: v for k, v in of_session.items() if k in _FOR_ALL_SESSIONS}
        self._testing = BatchStep(model, "test_step", cluster, of_session, options, known)
        self._predicting = PredictStep(model, cluster, of_session, options, known)

    def fit(self, *arguments: Any, callbacks: Any = None, **options: Any) -> Any:
        """``model.fit``, also its validation, with the steps done by the workers; see there.

        Raises:
            GraphError: the model's step cannot be distributed; says why.
            FeedError: the model was built for data of another shape.
            WorkerLostError: a worker was lost; the model has what was brought here last.
        """
        callbacks = around(self, callbacks)
        functions = {"train_function": self._training, "test_function": self._testing}
        with self._by_workers(functions):
            return self._keras.fit(*arguments, callbacks=callbacks, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """``model.evaluate``, with the steps done by the workers; see there.

        Raises:
            GraphError, FeedError, WorkerLostError: as `fit`.
        """
        with self._by_workers({"test_function": self._testing}):
            return self._keras.evaluate(*arguments, **options)

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """``model.predict``, done by the workers, in the order of the data; see there.

        Raises:
            GraphError: the model's step cannot be distributed, or tells nothing of each example.
            FeedError: the model was built for data of another shape.
            WorkerLostError: a worker was lost.
        """
        with self._by_workers({"predict_function": self._predicting}):
            if self._predicting.remote.is_usable:
                self._predicting.remote.push()
            return self._keras.predict(*arguments, **options)

    @contextmanager
    def _by_workers(self, functions: Mapping[str, Any]) -> Iterator[None]:
        """While it lasts, the model's steps are done by the workers.

        Args:
            functions: what does them, by the model's attributes for that.
        """
        check(self._keras)
        self._pull_all()  # what failed to come here before
        before = {name: getattr(self._keras, name) for name in functions}
        for name, function in functions.items():
            setattr(self._keras, name, function)
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(self._keras, name, function)
            self._pull_all()

    def _pull_all(self) -> None:
        """Give the model what all steps have made of its variables, also if one of them fails to;
        what training has made last."""
        with ExitStack() as pulling:
            for remote in (self._remote, self._predicting.remote, self._testing.remote):
                if remote.is_usable:
                    pulling.callback(remote.pull)

    def close(self) -> None:
        """Bring here what the workers have, and end the sessions. Closing again does nothing."""
        with ExitStack() as closing:  # each, also if another one raises
            closing.callback(super().close)
            closing.callback(self._predicting.remote.close)
            closing.callback(self._testing.remote.close)
