"""Gradients that every worker computes from the factors of all workers."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack

import numpy as np
import pytest

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.factors import gradient_factors
from caramel.cluster.processes import free_ports
from caramel.core.decision import FACTORS, Gate, Group, Part
from caramel.core.errors import PlanError
from caramel.core.facts import Cut, GradientFactors, GradientFrontier, RawGradient
from caramel.core.names import TensorRef, in_group, is_checksum
from caramel.core.plan import Plan
from caramel.models.variants import UNFACTORED
from caramel.planning.search.split import with_parts
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.steps.factor_comparison import FactorComparison
from tests.support.models import MODELS, conditional, loop
from tests.support.networks import (
    Network,
    cross_entropy,
    deep,
    inputs,
    network,
    parameter,
    partly,
    relative_error,
    replicas_of,
    run_on_one_device,
    tf,
    tf1,
    tied,
    wide,
)
from tests.support.pending_updates import assert_equal
from tests.support.processes import WORKER, started
from tests.support.variants import plain_training

STEPS = 5  # bits are compared after 1, 2 and 4


def convolutional(x):
    """Two convolutions, a depthwise one and one in three dimensions, and a dense layer."""
    h = tf.reshape(x, [-1, 6, 1, 1])
    h = tf.nn.conv2d(h, parameter("k", [3, 1, 1, 4], x.dtype), 1, "SAME")
    h = tf.nn.bias_add(h, parameter("b", [4], x.dtype))
    h = tf.nn.depthwise_conv2d(h, parameter("d", [3, 1, 4, 2], x.dtype), [1, 1, 1, 1], "SAME")
    h = tf.tanh(tf.nn.conv2d(h, parameter("k2", [6, 1, 8, 5], x.dtype), 1, "VALID"))
    h = tf.reshape(h, [-1, 1, 1, 1, 5])
    h = tf.nn.conv3d(h, parameter("k3", [1, 1, 1, 5, 4], x.dtype), [1, 1, 1, 1, 1], "SAME")
    return tf.reshape(h, [-1, 4]) @ parameter("w", [4, 3], x.dtype)


def biased(x):
    """A convolution of many channels whose gradient is computed beside that of its bias."""
    h = tf.reshape(x @ parameter("w", [6, 4 * 4 * 32], x.dtype), [-1, 4, 4, 32])
    h = tf.nn.conv2d(h, parameter("k", [3, 3, 32, 64], x.dtype), 1, "SAME")
    h = tf.nn.relu(tf.nn.bias_add(h, parameter("b", [64], x.dtype)))
    return tf.reduce_mean(h, [1, 2]) @ parameter("w2", [64, 3], x.dtype)


def by_factors(plan: Plan) -> Plan:
    """The plan with every gradient by its factors that has some."""
    groups = [
        dataclasses.replace(group, pattern=FACTORS)
        if plan.gradient(group.members[0]).factors is not None
        else group
        for group in plan.decision.groups
    ]
    return plan.deciding(groups=tuple(groups))


def factored(job: Network, workers: int) -> caramel.ARModel:
    plain = caramel.ARModel(job.context(), workers, pattern="shuffle").plan
    return caramel.ARModel(job.context(), workers, plan=by_factors(plain), check=True)


def factors_of(job: Network) -> GradientFactors:
    context = job.context()
    return Analysis([context.op_graph, context.job], ANALYZERS).get(GradientFactors)


def assert_same_bits(job: Network, workers: int, *, feeds=None):
    """Training by factors has the bits of training by `shuffle`, on each worker."""
    losses, values = plain_training(job, workers, steps=STEPS, feeds=feeds)
    model = factored(job, workers)
    assert any(group.pattern == FACTORS for group in model.plan.decision.groups)
    with model.session() as session:
        initial = session.variables()
        for step in range(STEPS):
            assert session.step(feeds[step] if feeds else job.feed) == losses[step], step
        for own in replicas_of(session):
            assert_equal(own, values)
    return initial, values


# Exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "workers", "dtype"),
    partly(
        pytest.mark.onednn,
        [
            (wide, 2, tf.float32),
            (wide, 3, tf.float64),
            (convolutional, 4, tf.float32),
            (convolutional, 2, tf.float64),
            (biased, 3, tf.float32),
        ],
        every=2,
    ),
)
def test_factors_give_the_bits_of_shuffle(model, workers, dtype):
    assert_same_bits(network("momentum", model=model, dtype=dtype), workers)


@pytest.mark.parametrize("model", [wide, convolutional])
def test_factors_train_as_one_device(model):
    job = network("adam", model=model)
    initial, values = assert_same_bits(job, 3)
    assert relative_error(values, run_on_one_device(job, initial, steps=STEPS).values) < 1e-12


def test_parts_of_a_batch_count_as_they_do_with_shuffle():
    job = network("momentum", model=convolutional)
    sizes = [40, 39, 38, 7]
    feeds = [
        {name: value[: sizes[step % 4]] for name, value in job.feed.items()}
        for step in range(STEPS)
    ]
    assert_same_bits(job, 3, feeds=feeds)


@pytest.mark.onednn
def test_small_floats_are_divided_before_they_are_added():
    assert_same_bits(network("gradient_descent", model=wide, dtype=tf.float16), 3)


@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
def test_sums_of_losses_are_added_up(reduce):
    job = network("momentum", model=wide, reduce=reduce, number=36)
    context = job.context(loss_reduction="sum" if reduce is tf.reduce_sum else "mean")
    plain = caramel.ARModel(context, 3, pattern="shuffle")
    model = caramel.ARModel(context, 3, plan=by_factors(plain.plan), check=True)
    with plain.session() as one, model.session() as other:
        for _ in range(5):
            assert one.step(job.feed) == other.step(job.feed)
        assert_equal(other.variables(), one.variables())


@pytest.mark.parametrize("model", [wide, convolutional])
def test_weight_decay_in_the_loss_is_added_by_each_worker(model):
    """What is aggregated is the product; the same on every worker is added afterwards."""
    job = network("momentum", model=model, decayed_loss=True)
    initial, values = assert_same_bits(job, 3)
    assert relative_error(values, run_on_one_device(job, initial, steps=STEPS).values) < 1e-12


@pytest.mark.onednn
def test_factors_beside_deferred_groups_and_behind_gates():
    job = network("adam", model=wide, dtype=tf.float32)
    _, values = plain_training(job, 2, steps=STEPS)
    plan = by_factors(caramel.ARModel(job.context(), 2, pattern="shuffle").plan)
    summed = [group for group in plan.decision.groups if group.pattern != FACTORS]
    first = next(group for group in plan.decision.groups if group.pattern == FACTORS)
    groups = [dataclasses.replace(g, deferred=g.pattern != FACTORS) for g in plan.decision.groups]
    gates = (Gate(first.name, summed[0].name),)
    model = caramel.ARModel(job.context(), 2, plan=plan.deciding(groups=tuple(groups), gates=gates))
    with model.session() as session:
        for _ in range(STEPS):
            session.step(job.feed)
        for worker in range(2):
            assert_equal(session.variables(worker=worker), values)
    waits = {control.name for control in gated_op(model, first).control_inputs}
    assert any("arrived" in name or "token" in name for name in waits), waits


def gated_op(model: caramel.ARModel, group: Group) -> tf.Operation:
    """What puts out a factor of the first worker to be sent."""
    return model.graph.get_operation_by_name(in_group(group.name, 0, "factor", "0"))


# What has factors --------------------------------------------------------------------------------


def test_products_have_factors_and_sums_have_none():
    assert set(factors_of(network(model=convolutional)).of) == {"k", "d", "k2", "k3", "w"}
    assert "b" not in factors_of(network(model=biased)).of
    assert set(factors_of(network(model=wide)).of) == {"w1", "w2"}  # not the biases
    assert not factors_of(network(model=tied)).of.get("w1")  # read twice: the sum of two products


@pytest.mark.parametrize("model", MODELS)
def test_factors_are_what_the_gradient_is_computed_from(model):
    """By hand: what the ops of the single-device graph make of other values of the factors."""
    job = network(model=model)
    plan = caramel.ARModel(job.context(), 2, pattern="shuffle").plan
    config = tf1.ConfigProto()  # without the graph optimizer, which has no layer norm in float64
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf1.Session(graph=job.graph, config=config) as session:
        session.run([v.initializer for v in job.graph.get_collection("variables")])
        for name, factors in factors_of(job).of.items():
            tensors, gradient = list(map(str, factors.tensors)), str(plan.gradient(name).values)
            *first, last = session.run(tensors, job.feed)
            own, doubled, none = (
                session.run(gradient, job.feed | dict(zip(tensors, (*first, each), strict=True)))
                for each in (last, 2 * last, 0 * last)
            )
            np.testing.assert_array_equal(own, session.run(gradient, job.feed))
            np.testing.assert_array_equal(doubled, 2 * own)  # a product is linear in each of them
            assert not none.any()


@pytest.mark.parametrize("v2", [False, True])
def test_what_is_computed_in_a_loop_has_no_factors(v2, control_flow):
    control_flow(v2)
    assert "w" not in factors_of(network(model=loop)).of


def test_what_is_computed_in_one_branch_of_a_condition_has_no_factors(control_flow):
    control_flow(False)
    found = factors_of(network(model=conditional)).of
    assert "w" not in found
    assert "w2" in found  # behind the condition


def test_a_gradient_that_is_not_there_in_every_step_has_no_factors(control_flow):
    """It is computed in a branch of a condition."""
    control_flow(False)
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        w = parameter("w", [6, 3])
        logits = x @ w
        loss = cross_entropy(logits, y)
        (by_logits,) = tf1.gradients(loss, [logits])
        made = []

        def product():
            made.append(tf.matmul(x, by_logits, transpose_a=True))
            return tf.identity(made[0])

        tf1.cond(tf1.placeholder(tf.bool, []), product, lambda: tf.zeros([6, 3], x.dtype))
        outside = tf.matmul(x, by_logits, transpose_a=True)
        train_op = w.assign_sub(outside).op
    op_graph = Network(graph, train_op, loss, feed).context(gradients=[(outside, w)]).op_graph

    def factors(gradient):
        raw = RawGradient("w", TensorRef(gradient.op.name))
        return gradient_factors(op_graph, GradientFrontier((Cut(raw, ()),))).of

    assert set(factors(outside)) == {"w"}
    assert factors(made[0]) == {}


# Plans -------------------------------------------------------------------------------------------


def test_a_plan_says_what_has_no_factors():
    plan = caramel.ARModel(network(model=wide).context(), 2, pattern="shuffle").plan
    groups = {group.members[0]: group for group in plan.decision.groups}

    def changed(name: str, **changes: object) -> Plan:
        group = dataclasses.replace(groups[name], **changes)
        others = [each for each in plan.decision.groups if each.members[0] not in group.members]
        return plan.deciding(groups=(group, *others))

    with pytest.raises(PlanError, match="sends factors, but 'b1' has none"):
        changed("b1", pattern=FACTORS)
    with pytest.raises(PlanError, match="so it cannot be deferred"):
        changed("w1", pattern=FACTORS, deferred=True)
    with pytest.raises(PlanError, match="joins factors of several gradients"):
        changed("w1", pattern=FACTORS, members=("w1", "w2"))


def test_a_plan_with_factors_is_kept_as_json():
    plan = by_factors(caramel.ARModel(network(model=wide).context(), 2, pattern="shuffle").plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_need_not_say_from_which_factors_gradients_are_computed():
    job = network(model=wide)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle")
    values = json.loads(model.plan.to_json())
    for gradient in values["job"]["gradients"]:
        del gradient["factors"]
    loaded = Plan.from_json(json.dumps(values))
    assert loaded != model.plan
    assert caramel.ARModel(job.context(), 2, plan=loaded).plan == model.plan


def test_parts_of_a_factored_gradient_go_themselves():
    job = network(model=wide)
    plan = by_factors(caramel.ARModel(job.context(), 2, pattern="shuffle").plan)
    parts = [Part("w1", 0, 2048), Part("w1", 2048, 4200)]
    split = with_parts(plan, parts)
    patterns = {name: group.pattern for group in split.decision.groups for name in group.members}
    assert [patterns[part.name] for part in parts] == ["shuffle", "shuffle"]
    assert patterns["w2"] == FACTORS


def test_factors_cross_and_nothing_else_does():
    job = network(model=wide, batch=40, number=40, dtype=tf.float32)
    model = factored(job, 2)
    # w1: 40 examples times 6 inputs and 700 outputs; w2: 700 and 3. Biases: 703 numbers, summed.
    share_bytes = 4 + 1
    assert set(model.traffic.bytes.values()) == {
        40 * 706 * 4 + 40 * 703 * 4 + 703 * 4 + share_bytes
    }


# Processors that differ --------------------------------------------------------------------------


@pytest.fixture(name="unlike", scope="module")
def fixture_unlike():
    """The addresses of two workers: one multiplies with oneDNN, the other with Eigen."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ExitStack() as stack:
        for task, onednn in enumerate("01"):
            command = (*WORKER, "--cluster", ",".join(addresses), "--task", str(task))
            stack.enter_context(started(*command, TF_ENABLE_ONEDNN_OPTS=onednn))
        yield addresses


@pytest.fixture(name="unlike_plans", scope="module")
def fixture_unlike_plans(unlike):
    """A job and its context, and the plain plan and that with factors of these workers."""
    job = network("momentum", model=deep, dtype=tf.float32, number=1000)
    context = job.context()
    plain = caramel.ARModel(context, unlike, pattern="shuffle").plan
    return job, context, plain, by_factors(plain)


@pytest.mark.processes
def test_workers_that_compute_other_bits_go_on_without_factors(unlike, unlike_plans, caplog):
    job, context, _, plan = unlike_plans
    with caramel.ARModel(context, unlike, plan=plan).session() as session:
        session.step(job.feed)
        assert "worker 1 computes other bits than worker 0" in caplog.text
        for _ in range(3):
            session.step(job.feed)
        assert session.metrics().plan == UNFACTORED
        assert_equal(session.variables(worker=1), session.variables(worker=0))


@pytest.mark.processes
def test_a_deferred_plan_is_left_with_all_that_is_pending(unlike, unlike_plans, caplog):
    """And a fetch that no deferred plan serves does not bring factors back."""
    job, context, _, plan = unlike_plans
    groups = [dataclasses.replace(g, deferred=g.pattern != FACTORS) for g in plan.decision.groups]
    plan = plan.deciding(groups=tuple(groups))
    with caramel.ARModel(context, unlike, plan=plan).session() as session:
        for _ in range(3):
            session.step(job.feed)
        session.step(job.feed, fetches="b:0")
        session.step(job.feed)
        assert caplog.text.count("computes other bits") == 1
        assert_equal(session.variables(worker=1), session.variables(worker=0))


@pytest.mark.processes
def test_trials_go_on_without_factors(unlike, unlike_plans, caplog):
    job, context, plain, plan = unlike_plans
    model = caramel.ARModel(context, unlike, plan=plan)
    model.add_variant(plain, "plain")
    groups = [dataclasses.replace(group, deferred=True) for group in plain.decision.groups]
    model.add_variant(plain.deciding(groups=tuple(groups)), "deferred")
    with model.session(trials=TrialSettings(rounds=2, steps=1, skipped=2)) as session:
        for _ in range(2 * (1 + 2) * 2 + 4):
            session.step(job.feed)
        trials = session.metrics().trials
        assert caplog.text.count("computes other bits") == 1
        assert trials.is_over
        assert {each.name for each in trials.plans} == {"plain", "deferred"}
        assert_equal(session.variables(worker=1), session.variables(worker=0))


@pytest.fixture(name="compared")
def fixture_compared(monkeypatch):
    """The numbers of the steps in which bits were compared."""
    compared: list[int] = []
    original = FactorComparison.is_due

    def spy(self, step, feeds):
        is_due = original(self, step, feeds)
        if is_due:
            compared.append(step)
        return is_due

    monkeypatch.setattr(FactorComparison, "is_due", spy)
    return compared


def test_bits_are_compared_with_every_new_shape_and_ever_less_often(compared):
    job = network("momentum", model=wide)
    with factored(job, 2).session() as session:
        for step in range(1, 20):
            number = 39 if step in (7, 11) else 40
            session.step({name: value[:number] for name, value in job.feed.items()})
    assert compared == [1, 2, 4, 7, 8, 16]


def test_a_traced_step_shows_that_bits_were_compared():
    job = network("momentum", model=wide)
    with factored(job, 2).session() as session:
        steps = session.trace(4, job.feed)
    compared = [any(is_checksum(span.name) for span in step.spans) for step in steps]
    assert compared == [True, True, False, True]


def test_bits_are_compared_again_as_long_as_all_are_zero(compared):
    """Behind a last layer of zeros that does not learn, all gradients are zero."""

    def headless(x):
        zeros = tf1.get_variable("w2", [20, 3], x.dtype, tf.zeros_initializer(), use_resource=True)
        return tf.tanh(x @ parameter("w", [6, 20], x.dtype)) @ zeros

    job = network(lambda step: tf1.train.GradientDescentOptimizer(0.0), model=headless)
    with factored(job, 2).session() as session:
        for _ in range(70):
            session.step(job.feed)
    assert compared == list(range(1, 65))
