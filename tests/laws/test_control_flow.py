"""Loops, conditionals, functions and side effects: trained as on one device, and kept at home.

What TensorFlow makes of a replica's loops and conditionals must run on the replica's task, and
nothing but aggregation may cross between tasks.
"""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.names import is_added, is_in_replica
from tests.support.graphs import sent_traffic, traced_step
from tests.support.networks import (
    CLASSES,
    FEATURES,
    WIDTH,
    Network,
    assert_equals_one_device,
    cross_entropy,
    inputs,
    optimized,
    parameter,
    perceptron,
    tf,
    tf1,
)

NUMBER = 24  # divides over 2 and 3 workers


def network(model, *, extra=lambda loss: (), make_optimizer=None) -> Network:
    """A classifier around `model`; what `extra` makes of its loss runs before the updates."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(NUMBER)
        loss = cross_entropy(model(x), y)
        with tf.control_dependencies(list(extra(loss))):
            train_op, raw = optimized(
                loss, make_optimizer or (lambda step: tf1.train.MomentumOptimizer(0.1, 0.9))
            )
    return Network(graph, train_op, loss, feed, raw)


def output(hidden):
    return hidden @ parameter("out", [hidden.shape[1], CLASSES])


# Models -----------------------------------------------------------------------------------------


def loop(x):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [WIDTH, WIDTH])
    b = parameter("b", [WIDTH])
    _, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ v + b)), [0, x @ w])
    return output(h)


def loop_of_dynamic_length(x):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [WIDTH, WIDTH])
    length = tf.cast(tf.reduce_max(tf.abs(x)) * 2, tf.int32)  # another on each worker
    ends = tf.minimum(length, 3) * 0 + 3
    _, h = tf.while_loop(lambda i, h: i < ends, lambda i, h: (i + 1, tf.tanh(h @ v)), [0, x @ w])
    return output(h)


def nested_loops(x):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [WIDTH, WIDTH])

    def outer(i, h):
        _, inner = tf.while_loop(lambda j, g: j < 2, lambda j, g: (j + 1, tf.tanh(g @ v)), [0, h])
        return i + 1, inner

    _, h = tf.while_loop(lambda i, h: i < 2, outer, [0, x @ w])
    return output(h)


def recurrent(x):
    """As `dynamic_rnn` does it: a loop over time with arrays of inputs and outputs."""
    w, v = parameter("w", [1, WIDTH]), parameter("v", [WIDTH, WIDTH])
    steps = tf.transpose(x)[:, :, tf.newaxis]
    given = tf.TensorArray(tf.float64, FEATURES).unstack(steps)
    results = tf.TensorArray(tf.float64, FEATURES)

    def body(t, state, results):
        state = tf.tanh(given.read(t) @ w + state @ v)
        return t + 1, state, results.write(t, state)

    start = tf.zeros([tf.shape(x)[0], WIDTH], tf.float64)
    _, _, results = tf.while_loop(lambda t, *_: t < FEATURES, body, [0, start, results])
    return output(tf.reduce_mean(results.stack(), 0))


def conditional_on_a_parameter(x):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [FEATURES, WIDTH])
    return output(
        tf.cond(tf.reduce_sum(w) < 1.0, lambda: tf.tanh(x @ w), lambda: tf.tanh(x @ v) * 2.0)
    )


def conditional_in_a_loop(x):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [WIDTH, WIDTH])

    def body(i, h):
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.tanh(h @ v), lambda: tf.sin(h))

    return output(tf.while_loop(lambda i, h: i < 4, body, [0, x @ w])[1])


def switched(x):
    w = parameter("w", [FEATURES, WIDTH])
    step = tf1.train.get_or_create_global_step()
    branches = [lambda: tf.tanh(x @ w), lambda: tf.sin(x @ w), lambda: tf.nn.relu(x @ w)]
    return output(tf.switch_case(tf.cast(step % 3, tf.int32), branches))


def function(x):
    w = parameter("w", [FEATURES, WIDTH])

    @tf.function
    def inner(x):
        return tf.tanh(x @ w)

    @tf.function
    def outer(x):
        if tf.reduce_sum(w) > 100:
            return inner(x) * 2
        return inner(x)

    return output(outer(x))


def mapped(x):
    w = parameter("w", [WIDTH, FEATURES])
    return output(tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(w, row)), x)[:, :WIDTH])


def on_a_device_of_its_own(x, device="/cpu:0"):
    w, v = parameter("w", [FEATURES, WIDTH]), parameter("v", [WIDTH, WIDTH])

    def body(i, h):
        with tf.device(device):
            return i + 1, tf.tanh(h @ v)

    return output(tf.while_loop(lambda i, h: i < 3, body, [0, x @ w])[1])


def on_a_task_of_its_own(x):
    return on_a_device_of_its_own(x, "/job:worker/task:0/device:CPU:0")


def with_a_table(x):
    keys, values = tf.range(4, dtype=tf.int64), tf.constant([0.5, 1.0, 1.5, 2.0], tf.float64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 1.0)
    factor = table.lookup(tf.cast(tf.abs(x[:, 0]) * 2, tf.int64))
    return perceptron(x * factor[:, tf.newaxis])


def colocated(x):
    w = parameter("w", [FEATURES, WIDTH])
    with tf1.colocate_with(w):
        h = tf.tanh(x @ w)
    with tf1.colocate_with(h.op):
        return output(tf.identity(h))


MODELS = (
    loop,
    loop_of_dynamic_length,
    nested_loops,
    recurrent,
    conditional_on_a_parameter,
    conditional_in_a_loop,
    switched,
    function,
    mapped,
    on_a_device_of_its_own,
    with_a_table,
    colocated,
)
ONLY_V2 = (function,)
CASES = [
    pytest.param(model, v2, id=f"{model.__name__}-{'v2' if v2 else 'v1'}")
    for model in MODELS
    for v2 in (False, True)
    if v2 or model not in ONLY_V2
]


@pytest.mark.parametrize(("model", "v2"), CASES)
def test_trains_as_on_one_device(model, v2, control_flow):
    control_flow(v2)
    assert_equals_one_device(network(model), workers=3 if v2 else 2)


@pytest.mark.parametrize(
    ("model", "v2"),
    [*CASES, (on_a_task_of_its_own, False), (on_a_task_of_its_own, True)],
)
def test_stays_on_the_replicas_task(model, v2, control_flow):
    control_flow(v2)
    job = network(model)
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
