"""Trains one model in three ways: ``python -m ... CASE RESULT``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

import caramel
from benchmarks.keras import FIT, STEP, V1
from benchmarks.keras.as_v1 import context_of
from benchmarks.keras.models import examples, model_of

LEARNING_RATE, MOMENTUM = 1e-3, 0.9
Steps = Callable[[int], list[float]]


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of every step of each way, its plan and last loss, and how long lowering took."""
    model = model_of(case["network"])
    context = context_of(model, LEARNING_RATE, MOMENTUM)
    model.compile(
        keras.optimizers.SGD(LEARNING_RATE, MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            "accuracy",
            "sparse_top_k_categorical_accuracy",
            "sparse_categorical_crossentropy",
        ],
    )
    x, y = examples(case["network"], case["batch"])
    losses: dict[str, float] = {}
    plain = caramel.ARModel(context, case["workers"])
    at_once = caramel.ReplanSettings(payback=0.0)  # it is the plan that is measured
    options = {"replanning": at_once}
    with (
        caramel.keras.Trainer(model, case["workers"], session_options=options) as trainer,
        plain.session(replanning=at_once) as session,
    ):
        lowering_s = _first_fit(trainer, x, y)
        own = trainer.session
        ways: dict[str, Steps] = {
            FIT: lambda steps: _fitted(trainer, x, y, steps, losses),
            STEP: lambda steps: _stepped(own, _fed(trainer, x, y), steps, losses, STEP),
            V1: lambda steps: _stepped(session, {"x:0": x, "y:0": y}, steps, losses, V1),
        }
        for name, each in ((FIT, own), (V1, session)):
            _plan(ways[name], each, case["warm_up"])
        samples_s: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(case["rounds"]):
            for name, way in ways.items():
                samples_s[name] += way(case["steps"])
        planned, of_v1 = (each.metrics().plan for each in (own, session))
    return {
        "samples_s": samples_s,
        "losses": losses,
        "plans": {FIT: planned, STEP: planned, V1: of_v1},
        "lowering_s": lowering_s,
    }


def _first_fit(trainer: Any, x: np.ndarray, y: np.ndarray) -> float:
    begin = time.perf_counter()
    trainer.fit(x, y, batch_size=len(x), verbose=0)
    return time.perf_counter() - begin


def _plan(way: Steps, session: Any, most: int) -> None:
    """Do steps until trials are over."""
    done = 0
    while done < most:
        trials = session.metrics().trials
        if trials is not None and trials.is_over:
            break
        way(4)
        done += 4


class _Timed:
    """Does the steps of a trainer, and notes when each ends.

    A callback with a hook for batches would do so, too, but would bring all variables here.
    """

    def __init__(self, step: Any) -> None:
        self._step, self.ends = step, list[float]()

    def __call__(self, batches: Any) -> Any:
        logs = self._step(batches)
        self.ends.append(time.perf_counter())
        return logs


def _fitted(
    trainer: Any, x: np.ndarray, y: np.ndarray, steps: int, losses: dict[str, float]
) -> list[float]:
    """Seconds of steps by `Trainer.fit`, from the end of one to the end of the next."""
    step = trainer._training
    trainer._training = timed = _Timed(step)
    batches = np.concatenate([x] * (steps + 1)), np.concatenate([y] * (steps + 1))
    try:
        history = trainer.fit(*batches, batch_size=len(x), shuffle=False, verbose=0).history
    finally:
        trainer._training = step
    losses[FIT] = history["loss"][-1]
    return list(np.diff(timed.ends))


def _fed(trainer: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What a step of the trainer is fed."""
    lowered = trainer._remote.lowered
    fed = {tensor.name: value for tensor, value in zip(lowered.inputs, (x, y), strict=True)}
    return fed | {f"{name}:0": value.numpy() for name, value in lowered.scalars.items()}


def _stepped(
    session: Any, fed: Mapping[str, Any], steps: int, losses: dict[str, float], name: str
) -> list[float]:
    """Seconds of steps by a session, from the end of one to the end of the next."""
    ends = []
    for _ in range(steps + 1):
        losses[name] = float(session.step(fed))
        ends.append(time.perf_counter())
    return list(np.diff(ends))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
