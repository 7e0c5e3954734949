"""Reads and writes of a variable in one step that nothing orders happen as on one device.

Plain TensorFlow runs the same job with that order drawn in.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

import caramel
from caramel.analyzers.ordered_state import tell_order
from caramel.core.facts import StateOrder, UnorderedPair
from tests.support.deferring import EVERY, deferred
from tests.support.networks import (
    OPTIMIZERS,
    PROCESSES,
    control_flow_version,
    in_turns,
    network,
    relative_error,
    replicas_of,
    run_on_one_device,
    start_from,
    tf,
    tf1,
)
from tests.support.unordered import (
    TRAIN_OPS,
    average_after_the_updates,
    biased,
    counter,
    descent,
    finished_job,
    job,
    one,
    read_first,
    two_writes,
)

STEPS = 4
DEFERRED = "deferred"


def model_of(own, workers):
    context = own.context()
    if workers != DEFERRED:
        return caramel.ARModel(context, workers, pattern="shuffle", check=True)
    plan = deferred(caramel.ARModel(context, 2, pattern="shuffle"), EVERY)
    return caramel.ARModel(context, 2, plan=plan, check=True)


@pytest.fixture(autouse=True)
def fixture_graph_optimizer():
    """One device runs graphs as users have them run, and not as they are written: what reads a
    variable and what writes it, of which neither waits for the other, may have another order."""
    option = "disable_meta_optimizer"
    tf.config.optimizer.set_experimental_options({option: False})
    yield
    tf.config.optimizer.set_experimental_options({option: True})


def assert_as_drawn(make, workers, **options):
    own, drawn = finished_job(make, **options), finished_job(make, drawn=True, **options)
    model = model_of(own, workers)
    assert model.plan.consequences.orders
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(own.feed) for _ in range(STEPS)]
        values, replicas = session.variables(), replicas_of(session)
    expected = run_on_one_device(drawn, initial, steps=STEPS)
    assert relative_error(values, expected.values) < 1e-12
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)
    for replica in replicas:
        for name, value in replica.items():
            np.testing.assert_array_equal(value, replicas[0][name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "workers", "version"),
    in_turns([n for n in TRAIN_OPS for _ in range(2)], [1, 2, 3, DEFERRED, 2], ["v1", "v2"]),
)
def test_each_worker_reads_what_one_device_reads(name, workers, version):
    with control_flow_version(version):
        assert_as_drawn(TRAIN_OPS[name], workers)


@pytest.mark.parametrize("workers", [1, 2, DEFERRED])
def test_a_loss_reads_a_parameter_before_its_update_though_no_gradient_does(workers):
    assert_as_drawn(minimized, workers, of_loss=biased)


def minimized(loss, order):
    return tf1.train.GradientDescentOptimizer(0.3).minimize(loss)


def test_what_a_step_draws_in_is_not_drawn_into_other_programs():
    own = job(two_writes)
    add = own.graph.get_operation_by_name("AssignAddVariableOp")
    for workers in (1, 2):
        with caramel.ARModel(own.context(), workers).session() as session:
            session.run(add)
            session.run(add)
            assert session.variables()["counter"] == 2.0
            session.step(own.feed)
            assert session.variables()["counter"] == 3.0


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_fetch_writes_comes_behind_what_the_step_reads(workers):
    own = job(fetched_count)
    with caramel.ARModel(own.context(), workers).session(trials=None) as session:
        initial = session.variables()
        for _ in range(STEPS):
            session.step(own.feed, [own.loss, "counted"])
        values = session.variables()
    with own.graph.as_default(), tf1.Session() as session:
        variables = start_from(initial, session)
        for _ in range(STEPS):
            session.run(own.train_op, own.feed)
            session.run("counted")
        assert relative_error(values, session.run(variables)) < 1e-12


def fetched_count(loss, order):
    count = counter()
    train_op = descent(loss, 0.3 / (1.0 + count.read_value()))
    tf.group(count.assign_add(one(), read_value=False), name="counted")
    return train_op


def reported_count(loss, order):
    count = counter()
    train_op = descent(loss, 0.3 / (1.0 + count.read_value()))
    counted = count.assign_add(one(), read_value=False)
    tf.multiply(count.read_value(), 10.0, name="reported")
    return tf.group(train_op, counted)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_computed_from_a_counter_is_fetched_as_it_was(workers):
    own = job(reported_count)
    with caramel.ARModel(own.context(), workers).session(trials=None) as session:
        for step in range(8):
            assert session.step(own.feed, "reported:0") == pytest.approx(10.0 * step, 1e-12)


def test_other_fetches_are_done_by_the_step_itself():
    own = job(lambda loss, order: tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss))
    with own.graph.as_default():
        size = tf.add_n([tf.reduce_sum(v) for v in tf1.trainable_variables()])
    model = caramel.ARModel(own.context(), 2)
    with model.session() as session:
        session.step(own.feed, [own.loss, size, "w1:0"])
        assert session.metrics().steps == 1
    assert not model._steps._joint


# What is told ------------------------------------------------------------------------------------


def test_the_order_is_told_with_the_variable_and_both_ops(caplog):
    with caplog.at_level(logging.INFO, "caramel"):
        caramel.ARModel(job(read_first).context(), 2)
    assert (
        "no edge orders 'Read/ReadVariableOp' (ReadVariableOp) and 'AssignAddVariableOp' "
        "(AssignAddVariableOp), which touch variable 'counter': the first runs before the second"
    ) in caplog.text


def clipped_in_function(loss, order):
    """Parameters are updated, and clipped in a function behind the loss."""
    update = descent(loss, 0.1)
    variables = tf1.trainable_variables()

    def clipped():
        return [v.assign(tf.clip_by_value(v, -1.0, 1.0)) for v in variables]

    with tf1.control_dependencies([loss]):
        clips = tf.cond(one() < 2.0, clipped, lambda: [tf.identity(v) for v in variables])
    return tf.group(update, clips)


def test_a_lost_overlap_is_told(caplog):
    with control_flow_version("v2"):
        own = job(clipped_in_function)
    caramel.ARModel(own.context(), 2)
    assert "'w1': the first" not in caplog.text
    assert "costs an overlap: gradients of 'w1' cannot be deferred" in caplog.text
    assert "'cond' (If), which touch variable 'w1'" in caplog.text


def test_what_cannot_be_ordered_is_told(caplog):
    graph = job(read_first).context().op_graph
    pair = UnorderedPair("counter", "counter", "group_deps", (), "the graph would have a cycle")
    tell_order(graph, StateOrder((pair,)))
    assert "which touch variable 'counter', and none can be added: the graph would" in caplog.text


# Ordinary jobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "process", "decayed"), in_turns(OPTIMIZERS, PROCESSES, [False, True])
)
def test_ordinary_jobs_get_no_edges(optimizer, process, decayed):
    own = network(optimizer, process, decayed_loss=decayed)
    assert caramel.ARModel(own.context(), 1).plan.consequences.orders == ()


def test_average_of_weights_in_order_gets_no_edges():
    own = job(average_after_the_updates, drawn=True)
    assert caramel.ARModel(own.context(), 1).plan.consequences.orders == ()
