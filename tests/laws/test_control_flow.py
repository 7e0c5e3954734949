"""Loops, conditionals, functions and side effects: trained as on one device, and kept at home.

What TensorFlow makes of a replica's loops and conditionals must run on the replica's task, and
nothing but aggregation may cross between tasks.
"""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.names import is_added, is_in_replica
from tests.support.control_flow import (
    CASES,
    NUMBER,
    network,
    on_a_task_of_its_own,
    plain_network,
    with_a_table,
)
from tests.support.graphs import sent_traffic, traced_step
from tests.support.networks import (
    Network,
    assert_equals_one_device,
    cross_entropy,
    inputs,
    perceptron,
    tf,
    tf1,
)

# Models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "v2"), CASES)
def test_trains_as_on_one_device(model, v2, control_flow):
    control_flow(v2)
    assert_equals_one_device(plain_network(model), workers=3 if v2 else 2)


@pytest.mark.parametrize(
    ("model", "v2"),
    [*CASES, (on_a_task_of_its_own, False), (on_a_task_of_its_own, True)],
)
def test_stays_on_the_replicas_task(model, v2, control_flow):
    control_flow(v2)
    job = plain_network(model)
    distributed = caramel.ARModel(job.context(), workers=2, check=True)
    trace = traced_step(distributed, job.feed)
    assert not [op for op, _ in trace.sent if not is_added(op)]
    assert sent_traffic(distributed, trace) == distributed.traffic
    for worker in range(2):
        tasks = {t for name, t in trace.tasks.items() if is_in_replica(worker, name)}
        assert tasks == {f"/job:worker/task:{worker}"}


# Around the updates -----------------------------------------------------------------------------


def conditional_updates() -> Network:
    """Updates only where the aggregated gradients are finite, as with loss scaling."""
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(NUMBER)
        loss = cross_entropy(perceptron(x), y)
        step = tf1.train.get_or_create_global_step()
        pairs = tf1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g, _ in pairs])
        train_op = tf.cond(
            finite,
            lambda: tf.group(*[v.assign_sub(0.1 * g) for g, v in pairs], step.assign_add(1)),
            tf.no_op,
        )
    return Network(graph, train_op, loss, feed, {v.op.name: g for g, v in pairs})


@pytest.mark.parametrize("v2", [False, True])
def test_conditional_updates_see_aggregated_gradients(v2, control_flow):
    control_flow(v2)
    assert_equals_one_device(conditional_updates(), workers=2)


def test_assertions_and_prints_are_made_on_every_worker():
    def extra(loss):
        return [
            tf.debugging.assert_positive(loss),
            tf.debugging.assert_all_finite(loss, "loss"),
            tf.print("a step", output_stream="file:///dev/null"),
        ]

    assert_equals_one_device(network(perceptron, extra=extra), workers=2)


def test_a_failing_assertion_names_the_users_message():
    job = network(perceptron, extra=lambda loss: [tf.debugging.assert_negative(loss, "too big")])
    model = caramel.ARModel(job.context(), workers=2, check=True)
    with model.session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="too big"):
        session.step(job.feed)


def test_summaries_are_fetched_by_run_and_by_step():
    job = network(perceptron)
    with job.graph.as_default():
        tf1.summary.scalar("loss", job.loss)
        tf1.summary.histogram("weights", tf1.trainable_variables()[0])
        merged = tf1.summary.merge_all()
    with caramel.ARModel(job.context(), workers=2, check=True).session() as session:
        summary = tf1.Summary.FromString(session.run(merged, job.feed))
        loss = session.run(job.loss, job.feed)
        each = session.step(job.feed, fetches=merged)
    assert [value.tag for value in summary.value] == ["loss", "weights"]
    np.testing.assert_allclose(summary.value[0].simple_value, loss, rtol=1e-6)
    assert len(each) == 2  # one for each worker


def test_tables_are_filled_on_every_worker_and_again_on_request():
    job = network(with_a_table)
    with job.graph.as_default():
        fill = tf1.tables_initializer()
    with caramel.ARModel(job.context(), workers=3, check=True).session() as session:
        before = session.run(job.loss, job.feed)
        session.run(fill)
        np.testing.assert_allclose(session.step(job.feed), before, rtol=1e-12)
