"""Classifiers with loops, conditionals, functions and tables."""

from __future__ import annotations

import functools

import pytest

from tests.support.networks import (
    CLASSES,
    FEATURES,
    WIDTH,
    Network,
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


def plain_network(model) -> Network:
    """The same with nothing extra, built once for each version of control flow."""
    return _built_once(model, tf1.control_flow_v2_enabled())


@functools.cache
def _built_once(model, _: bool) -> Network:
    job = network(model)
    job.graph.finalize()
    return job


def output(hidden):
    return hidden @ parameter("out", [hidden.shape[1], CLASSES])


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
ONE_CASE_EACH = [
    (model, model in ONLY_V2 or number % 2 == 1) for number, model in enumerate(MODELS)
]
