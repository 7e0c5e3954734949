"""Gates hold transfers back until earlier ones have arrived, and change no bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import caramel
from caramel.core.decision import Gate
from caramel.core.errors import PlanError
from caramel.core.names import in_group
from caramel.core.plan import Plan
from tests.support.embeddings import embedding
from tests.support.networks import network, relative_error, run_on_one_device, wide


def gated(plan: Plan, *, deferred: bool | int, depth: int = 1) -> Plan:
    """The plan with each group behind the next in the list; the last are deferred, or all."""
    count = len(plan.decision.groups) * deferred if isinstance(deferred, bool) else deferred
    groups = tuple(
        dataclasses.replace(g, deferred=len(plan.decision.groups) - number <= count, depth=depth)
        for number, g in enumerate(plan.decision.groups)
    )
    gates = tuple(
        Gate(group.name, before.name)
        for before, group in zip(groups[::-1], groups[-2::-1], strict=False)
    )
    return plan.deciding(groups=groups, gates=gates)


def train(model, feed, steps=5):
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for _ in range(steps)]
        return initial, losses, session.variables()


@pytest.mark.parametrize(
    ("workers", "pattern", "depth", "deferred"),
    [(2, "shuffle", 1, False), (3, "ring", 4, True), (3, "shuffle", 4, 1), (2, "ring", 1, 2)],
)
def test_a_chain_of_gates_gives_the_same_bits(workers, pattern, depth, deferred):
    job = network("adam", model=wide)
    context = job.context()
    plain = caramel.ARModel(context, workers, pattern=pattern)
    split = tuple(dataclasses.replace(g, depth=depth) for g in plain.plan.decision.groups)
    ungated = caramel.ARModel(context, workers, plan=plain.plan.deciding(groups=split))
    plan = gated(plain.plan, deferred=deferred, depth=depth)
    assert len(plan.gates_between_steps) == (deferred in (1, 2) and deferred is not True)
    model = caramel.ARModel(context, workers, plan=plan, check=True)
    _, losses, values = train(ungated, job.feed)
    _, gated_losses, gated_values = train(model, job.feed)
    assert gated_losses == losses
    for name, value in values.items():
        np.testing.assert_array_equal(gated_values[name], value, err_msg=name)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_worker_sends_nothing_of_a_group_before_the_one_it_waits_for_has_arrived(deferred):
    context = network("momentum", model=wide).context()
    plan = gated(caramel.ARModel(context, 2).plan, deferred=deferred)
    model = caramel.ARModel(context, 2, plan=plan)
    for gate in plan.decision.gates:
        for worker in range(2):
            held = model.graph.get_operation_by_name(in_group(gate.group, worker, "gated"))
            arrived = in_group(gate.after, worker, "aggregated", "0")
            assert [op.name for op in held.control_inputs] == [arrived]
            senders = [consumer.name for output in held.outputs for consumer in output.consumers()]
            assert senders


def test_a_group_of_the_step_waits_for_one_of_the_step_before_by_a_token():
    context = network("momentum", model=wide).context()
    plan = gated(caramel.ARModel(context, 2).plan, deferred=1)
    (gate,) = plan.gates_between_steps
    graph = caramel.ARModel(context, 2, plan=plan).graph
    for worker in range(2):
        held = graph.get_operation_by_name(in_group(gate.group, worker, "gated"))
        (taken,) = held.control_inputs
        assert taken.type == "QueueDequeueV2"
        put = taken.name.removesuffix("take") + "put"
        assert [op.name for op in graph.get_operation_by_name(put).control_inputs] == [
            in_group(gate.after, worker, "aggregated", "0")
        ]


@pytest.mark.parametrize("sparse", ["gather", "dense"])
def test_sparse_gradients_may_wait_too(sparse):
    job = embedding("adam")
    context = job.context()
    plain = caramel.ARModel(context, 2, sparse=sparse)
    for deferred in (False, True, 1):
        plan = gated(plain.plan, deferred=deferred)
        model = caramel.ARModel(context, 2, plan=plan, check=True)
        initial, losses, values = train(model, job.feed)
        expected = run_on_one_device(job, initial, steps=5)
        assert relative_error(values, expected.values) < 1e-12
        np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)


def test_gates_that_cannot_open_are_refused():
    context = network().context()
    plan = caramel.ARModel(context, 2).plan
    first, second, *_ = (group.name for group in plan.decision.groups)
    for gates, message in (
        ([Gate(first, second), Gate(second, first)], "wait for each other"),
        ([Gate(first, "no_group")], "names group 'no_group'"),
    ):
        with pytest.raises(PlanError, match=message):
            plan.deciding(gates=tuple(gates))
    groups = (
        dataclasses.replace(plan.decision.groups[0], deferred=True),
        *plan.decision.groups[1:],
    )
    with pytest.raises(PlanError, match="is deferred and cannot wait"):
        plan.deciding(groups=groups, gates=(Gate(first, second),))
