"""Training with parameter servers, to be compared with plain TensorFlow and with `ARModel`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import caramel
from caramel.core.decision import Gate
from caramel.core.plan import Plan
from tests.support.networks import (
    STEPS,
    Network,
    Run,
    relative_error,
    replicas_of,
    run_distributed,
    run_on_one_device,
)


def served(job: Network, workers: int, servers: int, **options: Any) -> caramel.PSModel:
    """A model of the job whose transfers have no order, unless options say so."""
    return caramel.PSModel(
        job.context(), workers, servers, **{"ordering": None, "check": True, **options}
    )


def gradients_in_order(plan: Plan) -> Plan:
    """The plan whose dense gradients are sent one after the other on each channel, the last one of
    the plan first."""
    server_of = plan.decision.server_of
    groups = tuple(reversed(plan.decision.groups))
    gates = []
    for server in range(len(plan.job.servers)):
        own = [g.name for g in groups if server_of[g.members[0]] == server and g.is_summed]
        own = [name for name in own if not plan.gradient(plan.group(name).members[0]).indices]
        gates += [Gate(later, earlier) for earlier, later in itertools.pairwise(own)]
    return plan.deciding(groups=groups, gates=tuple(gates))


def run_model(model: Any, job: Network, *, steps: int = STEPS) -> Run:
    """Train by one plan however slow the machine is."""
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(steps)]
        return Run(losses, initial, session.variables(), replicas_of(session))


def run_served(
    job: Network,
    workers: int,
    servers: int,
    *,
    steps: int = STEPS,
    sparse: Any = "gather",
    ordering: Any = None,
    **options: Any,
) -> Run:
    """Train with parameter servers inside this process; options are the context's."""
    model = caramel.PSModel(
        job.context(**options), workers, servers, ordering=ordering, sparse=sparse, check=True
    )
    return run_model(model, job, steps=steps)


def assert_same_run(run: Run, other: Run) -> None:
    """The same bits of all variables and losses."""
    assert run.losses == other.losses
    assert run.values.keys() == other.values.keys()
    for name, value in other.values.items():
        np.testing.assert_array_equal(run.initial[name], other.initial[name], err_msg=name)
        np.testing.assert_array_equal(run.values[name], value, err_msg=name)


def assert_served_equals_one_device(
    job: Network,
    workers: int,
    servers: int,
    *,
    tolerance: float = 1e-12,
    steps: int = STEPS,
    **options: Any,
) -> Run:
    """Train with servers and on one device; the same variables and losses must come out."""
    run = run_served(job, workers, servers, steps=steps, **options)
    expected = run_on_one_device(job, run.initial, steps=steps)
    assert any(np.any(expected.values[name] != run.initial[name]) for name in job.raw)
    assert relative_error(run.values, expected.values) < tolerance
    np.testing.assert_allclose(run.losses, expected.losses, rtol=tolerance)
    return run


def assert_served_as_shuffled(
    job: Network, workers: int, servers: int, *, steps: int = STEPS, **options: Any
) -> Run:
    """Train with servers, and between workers by the plain plan: the same bits must come out."""
    run = run_served(job, workers, servers, steps=steps, **options)
    assert_same_run(run, run_distributed(job, workers, "shuffle", steps=steps, **options))
    return run
