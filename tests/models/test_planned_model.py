"""Optimizations on or off, in any combination: the same bits, on all workers."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import caramel
from caramel.core.calibration import DEFAULT
from caramel.core.errors import PlanError
from caramel.core.patterns import CHUNK_ALIGNMENT_BYTES, chunk_sizes, schedule
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.util.fingerprint import Machine, graph_hash
from caramel.planning.options import Options
from caramel.planning.pattern_choice import usual_pattern
from caramel.simulation.network_model import assumed_network
from tests.support.networks import (
    CLASSES,
    FEATURES,
    FLOAT64_ONLY,
    OPTIMIZERS,
    PROCESSES,
    network,
    parameter,
    partly,
    relative_error,
    run_on_one_device,
    tf,
    wide,
)
from tests.support.slow_steps import FLAGS, every_op_takes_a_millisecond, model_of

COMBINATIONS = [
    dict(zip(FLAGS, values, strict=True))
    for values in itertools.product((False, True), repeat=len(FLAGS))
]


def train(model, feed, steps=6):
    """Enough steps for all pieces of the piecewise learning rate (`networks.OPTIMIZERS`)."""
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for _ in range(steps)]
        return initial, losses, session.variables()


@pytest.mark.parametrize(
    ("workers", "first"), partly(pytest.mark.onednn, [(2, 0), (3, 1)], every=2)
)
def test_all_combinations_of_optimizations_give_the_same_bits(workers, first):
    """Each with one number of workers."""
    job = network("adam", model=wide, dtype=tf.float32, process="clip_by_norm")
    context = job.context()
    steps = 6
    plain = caramel.ARModel(context, workers, pattern="shuffle")
    _, losses, values = train(plain, job.feed, steps)
    deferring = 0
    for flags in [each for each in COMBINATIONS if sum(each.values()) % 2 == first]:
        model = model_of(context, workers, **flags)
        assert bool(model.plan.decision.gates) == flags["scheduling"]
        deferring += bool(model.plan.consequences.deferral.moved)
        _, own_losses, own = train(model, job.feed, steps)
        assert own_losses == losses, flags
        for name, value in values.items():
            np.testing.assert_array_equal(own[name], value, err_msg=f"{name} {flags}")
    assert deferring >= 2


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "ftrl", "piecewise"])
def test_with_everything_on_training_is_that_of_one_device(optimizer):
    """Of every optimizer follows the same: the next test, and `test_exactness`."""
    job = network(optimizer, model=wide)
    model = model_of(job.context(), 2, pattern="auto")
    initial, losses, values = train(model, job.feed)
    expected = run_on_one_device(job, initial, steps=len(losses))
    assert relative_error(values, expected.values) < 1e-12
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)


@pytest.mark.parametrize("number", partly(pytest.mark.onednn, range(len(OPTIMIZERS)), first=1))
def test_every_optimizer_gives_the_bits_of_the_plain_plan(number):
    optimizer, flags = list(OPTIMIZERS)[number], COMBINATIONS[-1 - number % 8]
    dtype = tf.float64 if optimizer in FLOAT64_ONLY else tf.float32
    assert_same_bits(network(optimizer, model=wide, dtype=dtype), 2 + number % 2, flags)


@pytest.mark.parametrize("number", partly(pytest.mark.onednn, range(len(PROCESSES))))
def test_every_clipping_gives_the_bits_of_the_plain_plan(number):
    process, flags = list(PROCESSES)[number], COMBINATIONS[-1 - number % 8]
    job = network("momentum", process, model=wide, dtype=tf.float32)
    assert_same_bits(job, 3 - number % 2, flags)


def assert_same_bits(job, workers, flags):
    context = job.context()
    _, losses, values = train(caramel.ARModel(context, workers, pattern="shuffle"), job.feed)
    _, own_losses, own = train(model_of(context, workers, **flags), job.feed)
    assert own_losses == losses
    for name, value in values.items():
        np.testing.assert_array_equal(own[name], value, err_msg=name)


def test_a_slow_network_has_transfers_deferred_and_gated():
    plan = model_of(network("momentum", model=wide).context(), 2).plan
    assert any(group.deferred for group in plan.decision.groups)
    assert plan.gates_between_steps
    assert all(group.reason for group in plan.decision.groups)


def test_without_facts_the_plan_is_plain():
    context = network().context()
    plain = caramel.ARModel(context, 2, pattern="exchange").plan
    assert caramel.ARModel(context, 2).plan == plain
    off = dict.fromkeys(FLAGS, False)
    assert model_of(context, 2, **off, pattern="auto").plan == plain
    three = caramel.ARModel(context, 3, pattern="shuffle").plan  # all gradients are small
    assert caramel.ARModel(context, 3).plan == three


def test_everything_off_is_the_plain_plan_with_facts_and_defaults_too():
    context = network(model=wide).context()
    off = dict.fromkeys(FLAGS, False)
    model = model_of(context, 3, pattern="auto", planner="search", in_flight_bytes=None, **off)
    assert model.decision.outlook is not None
    assert model.plan == caramel.ARModel(context, 3, planner="plain").plan
    assert model._step.plans.live_planning() is None


def test_a_plan_can_be_saved_edited_and_carried_out():
    job = network("momentum", model=wide)
    context = job.context()
    plan = model_of(context, 2).plan
    loaded = Plan.from_json(plan.to_json())
    assert loaded == plan
    assert caramel.ARModel(context, 2, plan=loaded).plan == plan
    groups = tuple(dataclasses.replace(g, deferred=False) for g in loaded.decision.groups)
    edited = loaded.deciding(groups=groups, gates=())
    assert not caramel.ARModel(context, 2, plan=edited).plan.consequences.deferral.moved


def test_a_profile_gives_the_facts(tmp_path):
    job = network("momentum", model=wide)
    context = job.context()
    profile = Profile(
        tensorflow=tf.__version__,
        machine=Machine("some processor", 2, "CPU"),
        graph=graph_hash(context.graph_def),
        timing=every_op_takes_a_millisecond(context.op_graph),
        networks=(assumed_network(2, 1e5, 1e-4),),
    )
    profile.save(tmp_path / "profile.json")
    options = {"pattern": "shuffle", "planner": "paper", "in_flight_bytes": 0}
    model = caramel.ARModel(context, 2, profile=tmp_path / "profile.json", **options)
    assert model.plan == model_of(context, 2).plan
    other = network("adam").context()
    with pytest.raises(caramel.CaramelError, match="another graph"):
        caramel.ARModel(other, 2, profile=profile)
    with pytest.raises(caramel.CaramelError, match="no network of 3 workers"):
        caramel.ARModel(context, 3, profile=profile)


def test_the_calibration_of_a_profile_counts(monkeypatch):
    # What would help is not looked at here, and searched for longest.
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=1_000))
    context = network("momentum", model=wide).context()
    profile = Profile(
        tensorflow=tf.__version__,
        machine=Machine("some processor", 2, "CPU"),
        graph=graph_hash(context.graph_def),
        timing=every_op_takes_a_millisecond(context.op_graph),
        networks=(assumed_network(2, 1e5, 1e-4),),
    )
    few = DEFAULT.with_measured({"in_flight_bytes": 1000, "message_s": 0.01})
    usual, other = (
        caramel.ARModel(context, 2, profile=each, planner="paper")
        for each in (profile, dataclasses.replace(profile, calibration=few))
    )
    assert not usual.plan.decision.gates
    assert other.plan.decision.gates
    assert other.explain().plain_step_s > usual.explain().plain_step_s + 0.01


@pytest.mark.parametrize("planner", ["paper", "search"])
def test_with_one_group_at_a_time_every_worker_has_a_chunk_of_each(planner):
    workers, unit = 2, CHUNK_ALIGNMENT_BYTES // 4
    model = model_of(network(dtype=tf.float32).context(), workers, planner=planner)
    large = [g for g in model.plan.decision.groups if model.plan.elements(g) > unit * (workers - 1)]
    assert large
    for group in large:
        chunks = schedule(group.pattern, workers, depth=group.depth).chunks
        elements, smallest = model.plan.elements(group), group.smallest_chunk_bytes
        assert all(chunk_sizes(elements, chunks, 4, smallest_bytes=smallest)[:workers]), group


def test_less_than_nothing_in_flight_is_refused():
    with pytest.raises(PlanError, match="in_flight_bytes"):
        caramel.ARModel(network().context(), 2, in_flight_bytes=-1)


@pytest.mark.parametrize("wrong", ["12MB", 2.5])
def test_bytes_in_flight_are_a_number(wrong):
    with pytest.raises(PlanError, match="in_flight_bytes must be a whole number of bytes"):
        caramel.ARModel(network("gradient_descent").context(), 2, in_flight_bytes=wrong)


def test_an_unknown_pattern_is_refused():
    with pytest.raises(PlanError, match="pattern"):
        caramel.ARModel(network().context(), 2, pattern="tree")


def test_a_job_without_facts_takes_the_usual_patterns():
    def model(x):
        hidden = tf.tanh(x @ parameter("w1", [FEATURES, 4096], x.dtype))
        return hidden @ parameter("w2", [4096, CLASSES], x.dtype)

    job = network(model=model)
    patterns = {
        planner: [group.pattern for group in built.plan.decision.groups]
        for planner in ("search", "plain")
        for built in [caramel.ARModel(job.context(), 3, planner=planner)]
    }
    sizes = [4096 * 8 * FEATURES, 4096 * 8 * CLASSES]
    expected = [usual_pattern(size, 3) for size in sizes]
    assert patterns == {"search": expected, "plain": expected}
    given = caramel.ARModel(job.context(), 3, pattern="shuffle")
    assert {group.pattern for group in given.plan.decision.groups} == {"shuffle"}
