"""Placed models whose devices hold an order: of ops, and of what they send."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from benchmarks import networks as of_papers
from benchmarks.emulate.flops import flops_times
from caramel.core.names import in_replica, sent
from caramel.core.time_facts import TimingTable
from tests.support import control_flow, convolving, step_jobs
from tests.support.control_flow import plain_network
from tests.support.networks import (
    control_flow_version,
    deep,
    network,
    run_on_one_device,
    slow_facts,
    start_from,
    tf,
    tf1,
)
from tests.support.placed import assert_placed_equals_one_device, is_spread, placed, run_placed

CLOCK_S = 3e-6  # by which traced moments are rounded


def large():
    """Its tensors have several hundred kilobytes, more than may be in flight."""
    return network("adam", model=deep, number=100, batch=100)


def ordered(job, workers=2, **options):
    """A model whose ops are known to take a millisecond each."""
    facts = slow_facts(workers)
    return placed(job, workers, **{"analyzers": facts, "order": "schedule", **options})


JOBS = {
    "clipped": lambda: network("momentum", "clip_by_global_norm"),
    "convolutions": lambda: convolving.job(convolving.usual, dtype=tf.float64),
    "large": large,
}


@pytest.mark.parametrize("job", JOBS)
def test_an_order_changes_no_bit(job):
    model = ordered(JOBS[job](), seed=1)
    assert is_spread(model)
    assert model.plan.decision.edges
    assert_placed_equals_one_device(model, JOBS[job]())


@pytest.mark.slow
def test_a_network_of_the_papers_with_times_of_a_gpu():
    job = of_papers.build("alexnet_v2", batch=2, image=80, optimizer="sgd")
    context = job.context()
    times = flops_times(context, device="K80", batch=2)

    def timing() -> TimingTable:
        return TimingTable(times)

    model = caramel.PlacedModel(
        context,
        3,
        partitioner="hash",
        order="schedule",
        analyzers=[timing, slow_facts(3)[1]],
        check=True,
    )
    assert model.plan.decision.edges
    assert model.plan.placement.gates
    feed = job.feed()
    with model.session() as session, tf1.Session(graph=job.graph) as alone:
        with job.graph.as_default():
            variables = start_from(session.variables(), alone)
        for _ in range(2):
            expected = alone.run([job.loss, job.train_op], feed)[0]
            assert session.step(feed) == expected
        trained = session.variables()
        for name, value in alone.run(variables).items():
            np.testing.assert_array_equal(trained[name], value, err_msg=name)


@pytest.mark.onednn
def test_steps_end_where_ops_are_computed_as_one():
    """Which ops are, depends on the placement, and with that how results are rounded."""
    job = convolving.job()
    model = ordered(job, seed=1)
    assert model.plan.decision.edges
    run = run_placed(model, job)
    expected = run_on_one_device(job, run.initial)
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-4)


@pytest.mark.parametrize(("model", "v2"), control_flow.CASES)
def test_control_flow(model, v2):
    with control_flow_version("v2" if v2 else "v1"):
        job = plain_network(model)
        spread = ordered(job, 3, seed=1)
        assert is_spread(spread)
        assert spread.plan.decision.edges
        assert_placed_equals_one_device(spread, job)


@pytest.mark.parametrize("make", [step_jobs.gan, step_jobs.gathering])
def test_several_steps_and_what_is_done_together_with_them(make):
    job = make()
    first, *_, last = job.steps
    turns = [(first, ()), (last, ())] * 2
    if make is step_jobs.gan:
        turns += [("g", ("clip",)), ("g", ("average",))]
    model = caramel.PlacedModel(
        job.context(),
        2,
        partitioner="hash",
        order="schedule",
        seed=1,
        check=True,
        analyzers=slow_facts(2),
    )
    assert all(step.plan.decision.edges for step in model.steps.values() if step.plan.job.gradients)
    step_jobs.assert_as_alone(job, model, turns)


def test_a_plan_with_an_order_can_be_given():
    job = large()
    plan = caramel.Plan.from_json(ordered(job, seed=1).plan.to_json())
    assert plan.placement.gates
    model = placed(job, 2, plan=plan)
    assert model.plan.decision == plan.decision
    assert_placed_equals_one_device(model, job, steps=2)


def test_planned_edges_and_gates_hold_in_each_step():
    job = large()
    model = ordered(job, seed=1)
    edges, gates = model.plan.decision.edges, model.plan.placement.gates
    assert len(edges) > 20
    assert len(gates) > 2
    with model.session() as session:
        session.step(job.feed)
        timelines = session.trace(40, job.feed)
    seen = {"edges": 0, "gates": 0}  # not what takes less than a microsecond
    for timeline in timelines:
        computed = {span.name: span for span in timeline.spans if span.resource == "compute"}
        arrived = {span.name: span for span in timeline.spans if span.resource == "receive"}
        pairs = {
            "edges": [
                tuple(computed.get(in_replica(0, name)) for name in (edge.before, edge.after))
                for edge in edges
            ],
            "gates": [
                tuple(
                    arrived.get(sent(in_replica(0, tensor.op), tensor.index, gate.device))
                    for tensor in (gate.after, gate.tensor)
                )
                for gate in gates
            ],
        }
        for kind, own in pairs.items():
            for first, then in own:
                if first and then:
                    seen[kind] += 1
                    assert then.begin_s > first.end_s - CLOCK_S
    assert seen["edges"] > 40
    assert seen["gates"] > 20 * len(gates)


def test_with_an_order_evaluation_runs_what_is_asked_for_alone():
    job = large()
    model = ordered(job, seed=1)
    with model.session() as session:
        session.step(job.feed)
        # Labels are not fed: the loss, for which something may wait, is not run.
        assert session.run("Tanh:0", {"x:0": job.feed["x:0"]}).shape == (100, 500)


def test_an_order_and_none_take_turns_if_times_are_known():
    job = network("momentum", model=deep)
    assert not placed(job, 2, order="auto").plan.decision.edges
    on_one = ordered(job, order="auto", constraints={".*": 0})
    assert not is_spread(on_one)
    assert not on_one.plan.decision.edges
    model = ordered(job, order="auto", seed=1)
    with model.session() as session:
        session.step(job.feed)
        assert {plan.name for plan in session.metrics().trials.plans} == {"own", "plain"}
    settings = caramel.TrialSettings(rounds=1, steps=1, skipped=1)
    with model.session(trials=settings) as session:
        for _ in range(5):
            session.step(job.feed)
        trials = session.metrics().trials
        own_s, plain_s = (plan.median_s for plan in trials.plans)
        kept = "plain" if plain_s < own_s * (1 - settings.margin) else "own"
        assert session.metrics().plan == kept
    with model.session() as session:
        session.step(job.feed)
        metrics = session.metrics()
        assert (metrics.plan, metrics.trials) == (kept, None)
    assert model.variants["own"].plan.decision.edges
    assert not model.variants["plain"].plan.decision.edges


def test_without_times_the_bytes_that_ops_put_out_give_an_order():
    job = network("momentum", model=deep, number=400, batch=400)  # 1.6 MB take 1.6 ms
    model = placed(job, 2, order="schedule", seed=1)
    edges = model.plan.decision.edges
    assert edges
    graph = job.context().op_graph
    assert all(sum(graph[edge.after].output_bytes) > 50e3 for edge in edges)


def test_ops_that_run_together_take_no_longer_than_a_step():
    """A device executes one op at a time in predictions; by several threads it computes more."""
    job = network("momentum")
    context = job.context()
    times = dict.fromkeys(context.op_graph.ops, 2e-3)

    def predicted_s(step_s):
        def timing() -> TimingTable:
            return TimingTable(times, step_s=step_s)

        facts = [timing, slow_facts(2)[1]]
        return caramel.PlacedModel(context, 1, analyzers=facts).predicted_step_s

    assert predicted_s(1e-3 * len(times)) == pytest.approx(predicted_s(None) / 2)
