"""Training by one replica that is spread over devices, to be compared with plain TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

import caramel
from tests.support.networks import STEPS, Network, Run, run_on_one_device


def placed(job: Network, workers: int = 3, **options: Any) -> caramel.PlacedModel:
    """A model of the job with its ops anywhere, unless options say otherwise."""
    return caramel.PlacedModel(
        job.context(), workers, **{"partitioner": "hash", "check": True, **options}
    )


def run_placed(model: caramel.PlacedModel, job: Network, *, steps: int = STEPS) -> Run:
    """Train by one plan."""
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(steps)]
        return Run(losses, initial, session.variables())


def assert_placed_equals_one_device(
    model: caramel.PlacedModel, job: Network, *, steps: int = STEPS, is_exact: bool = True
) -> Run:
    """The same bits of losses and variables, or but for rounding."""
    run = run_placed(model, job, steps=steps)
    expected = run_on_one_device(job, run.initial, steps=steps)
    tolerance = 0.0 if is_exact else 1e-12
    assert any(np.any(expected.values[name] != run.initial[name]) for name in job.raw)
    np.testing.assert_allclose(run.losses, expected.losses, rtol=tolerance)
    for name, value in expected.values.items():
        np.testing.assert_allclose(
            run.values[name], value, rtol=tolerance, atol=tolerance, err_msg=name
        )
    return run


def is_spread(model: caramel.PlacedModel) -> bool:
    """Whether something of each step crosses from one device to another."""
    return bool(model.plan.consequences.sendings)
