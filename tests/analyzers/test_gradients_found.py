"""Raw gradients are found where what lies between differentiation and the updates is not linear.

Each job is compared with plain TensorFlow on the whole batch.
"""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

import caramel
from caramel.core.errors import AmbiguousGradientError
from tests.support.networks import (
    OPTIMIZERS,
    PROCESSES,
    Network,
    assert_equals_one_device,
    control_flow_version,
    cross_entropy,
    frontier_of,
    in_turns,
    inputs,
    parameter,
    perceptron,
    tf,
    tf1,
)

EXAMPLES = 14


def batch():
    """Examples of six features, three classes, and words of a table of eight."""
    x, y, feed = inputs(EXAMPLES)
    ids = tf1.placeholder(tf.int32, [None, 2], name="ids")
    random = np.random.RandomState(5)
    return x, y, ids, {**feed, "ids:0": random.randint(0, 6, (EXAMPLES, 2))}


def job(make, update) -> Network:
    """A job of a loss, made of a batch, and of an update, made of gradients and variables."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, ids, feed = batch()
        loss = make(x, y, ids)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        train_op = update(gradients, variables)
    raw = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
    return Network(graph, train_op, loss, feed, raw)


# Losses ------------------------------------------------------------------------------------------


def scalar_bias(x, y, ids):
    return tf.reduce_mean(tf.square(parameter("b", []) - x))


def scalar_bias_and_scale(x, y, ids):
    h = tf.tanh(parameter("scale", []) * x[:, :3] + parameter("b", []))
    return tf.reduce_mean(tf.abs(h - tf.one_hot(y, 3, dtype=x.dtype)) ** 1.5)


def bias_in_several_places(x, y, ids):
    b = parameter("b", [3])
    first = tf.square(x[:, :3] + b)
    return tf.reduce_mean(tf.square(tf.nn.softmax(first) * x[:, 3:] + b))


def bias_in_a_routing(x, y, ids):
    b, h = parameter("b", [3]), x @ parameter("w", [6, 3])
    for _ in range(3):
        h = (
            tf.nn.softmax(h)
            * tf.square(h + b)
            / (1 + tf.reduce_sum(tf.square(h), 1, keepdims=True))
        )
    return cross_entropy(h, y)


def bias_in_a_scan(x, y, ids):
    b = parameter("b", [3])
    halves = tf.transpose(tf.reshape(x, [-1, 2, 3]), [1, 0, 2])
    h = tf.scan(lambda before, half: tf.square(before * 0.1 + half) + b, halves)
    return cross_entropy(tf.square(h[-1] + b), y)


def temperature(x, y, ids):
    return cross_entropy(x @ parameter("w", [6, 3]) / parameter("temperature", []), y)


def softplus_temperature(x, y, ids):
    scale = tf.nn.softplus(parameter("temperature", [])) + tf.exp(parameter("t2", []))
    return cross_entropy(x @ parameter("w", [6, 3]) / scale, y)


def weight_norm(x, y, ids):
    w, g = parameter("w", [6, 3]), parameter("g", [])
    return cross_entropy(x @ w * g / tf.norm(w), y)


def weight_norm_of_columns(x, y, ids):
    w, g = parameter("w", [6, 3]), parameter("g", [3])
    return cross_entropy(x @ (tf.nn.l2_normalize(w, 0) * g), y)


def spectral_norm(x, y, ids):
    w = parameter("w", [6, 3])
    u = tf.constant(np.linspace(1, 2, 6).reshape(1, 6))
    v = tf.nn.l2_normalize(u @ w)
    sigma = (u @ w) @ tf.transpose(v)
    return cross_entropy(x @ (w / sigma), y)


def complex_weights(x, y, ids):
    w = tf.complex(parameter("re", [6, 3]), parameter("im", [6, 3]))
    return cross_entropy(tf.abs(tf.cast(x, w.dtype) @ w), y)


def complex_parameter(x, y, ids):
    w = tf1.get_variable(
        "w", [6, 3], tf.complex128, tf.constant_initializer(0.3 + 0.2j), use_resource=True
    )
    return cross_entropy(tf.math.real(tf.cast(x, w.dtype) @ w * (1 + 2j)), y)


def embedded(x, y, ids):
    words = tf.nn.embedding_lookup(parameter("table", [8, 3]), ids)
    return cross_entropy(tf.reduce_mean(tf.square(words), 1) @ parameter("w", [3, 3]), y)


def embedded_scalars(x, y, ids):
    words = tf.nn.embedding_lookup(parameter("table", [8, 1]), ids)
    return cross_entropy(tf.reduce_sum(words, 1) * x[:, :3], y)


def embedded_twice(x, y, ids):
    table = parameter("table", [8, 3])
    first, second = (tf.nn.embedding_lookup(table, ids[:, side]) for side in (0, 1))
    return cross_entropy(tf.square(first) + second * x[:, :3], y)


def tied_embedding(x, y, ids):
    table = parameter("table", [8, 3])
    words = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)
    return cross_entropy(tf.matmul(tf.square(words), table, transpose_b=True), y)


def two_tables(x, y, ids):
    one, two = (
        tf.reduce_sum(tf.nn.embedding_lookup(parameter(name, [8, 3]), ids), 1)
        for name in ("table", "other")
    )
    return cross_entropy(tf.square(one) * two + parameter("b", [3]), y)


def checkpointed(x, y, ids):
    w, b = parameter("w", [6, 3]), parameter("b", [])

    @tf.recompute_grad
    def layer(h):
        return tf.square(h @ w + b)

    return cross_entropy(layer(x), y)


def own_gradient(x, y, ids):
    @tf.custom_gradient
    def clipped(h):
        return tf.square(h), lambda dy: tf.clip_by_value(h, -1, 1) * dy

    b = parameter("b", [])
    return cross_entropy(clipped(x @ parameter("w", [6, 3]) + b) + b, y)


def stopped(x, y, ids):
    w, b = parameter("w", [6, 3]), parameter("b", [])
    h = tf.square(x @ w + b)
    return cross_entropy(h + tf.stop_gradient(h / tf.reduce_sum(h, 1, keepdims=True)) * b, y)


def of_second_order(x, y, ids):
    """A gradient penalty."""
    w, b = parameter("w", [6, 3]), parameter("b", [])
    h = tf.tanh(x @ w) * b
    slope = tf1.gradients(tf.reduce_sum(h), x)[0]
    norm = tf.sqrt(tf.reduce_sum(tf.square(slope), 1))
    return cross_entropy(h, y) + tf.reduce_mean(tf.square(norm - 1))


def layer_norm(x, y, ids):
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    h = (x - mean) * tf.math.rsqrt(variance + 0.01)
    h = tf.square(h * parameter("gamma", [6]) + parameter("beta", [6]))
    return cross_entropy(h @ parameter("w", [6, 3]) * parameter("s", []), y)


LOSSES = (
    scalar_bias,
    scalar_bias_and_scale,
    bias_in_several_places,
    bias_in_a_routing,
    bias_in_a_scan,
    temperature,
    softplus_temperature,
    weight_norm,
    weight_norm_of_columns,
    spectral_norm,
    complex_weights,
    complex_parameter,
    embedded,
    embedded_scalars,
    embedded_twice,
    tied_embedding,
    two_tables,
    checkpointed,
    own_gradient,
    stopped,
    of_second_order,
    layer_norm,
)


# Updates -----------------------------------------------------------------------------------------


def zeros(variable, name):
    return tf1.get_variable(
        f"{variable.op.name}_{name}",
        variable.shape,
        variable.dtype,
        tf1.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )


def adam_by_hand(gradients, variables):
    updates = []
    for gradient, variable in zip(gradients, variables, strict=True):
        m, v = zeros(variable, "m"), zeros(variable, "v")
        new_m = m.assign(0.9 * m + 0.1 * tf.convert_to_tensor(gradient))
        new_v = v.assign(0.99 * v + 0.01 * tf.square(gradient))
        updates.append(variable.assign_sub(0.1 * new_m / (tf.sqrt(new_v) + 1e-3)))
    return tf.group(updates)


def adam_of_keras(gradients, variables):
    updates = []
    for gradient, variable in zip(gradients, variables, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        m, v = zeros(variable, "m"), zeros(variable, "v")
        first = m.assign_add((gradient - m) * 0.1)
        second = v.assign_add((tf.square(gradient) - v) * 0.01)
        with tf.control_dependencies([first, second]):
            step = m.read_value() * 0.1 / (tf.sqrt(v.read_value()) + 1e-3)
        updates.append(variable.assign_sub(step))
    return tf.group(updates)


def normalised(gradients, variables):
    updates = []
    for gradient, variable in zip(gradients, variables, strict=True):
        slot = zeros(variable, "slot")
        new = 0.9 * slot + gradient
        updates.append(slot.assign(new))
        updates.append(variable.assign(variable - 0.1 * new / (tf.abs(new) + 1e-3)))
    return tf.group(updates)


def clipped(gradients, variables):
    return normalised(tf.clip_by_global_norm(gradients, 0.1)[0], variables)


def clipped_each(gradients, variables):
    gradients = [tf.clip_by_norm(gradient, 0.05) for gradient in gradients]
    return normalised(gradients, variables)


def applied(name, process="unchanged"):
    def update(gradients, variables):
        optimizer = OPTIMIZERS[name](tf1.train.get_or_create_global_step())
        changed = PROCESSES[process](gradients, variables)
        return optimizer.apply_gradients(zip(changed, variables, strict=True))

    update.__name__ = f"{name}_{process}"
    return update


UPDATES = (
    adam_by_hand,
    adam_of_keras,
    normalised,
    clipped,
    clipped_each,
    applied("gradient_descent"),
    applied("momentum", "clip_by_global_norm"),
)


def pairs():
    """Each loss with two updates, others each time."""
    for number, make in enumerate(LOSSES):
        if make is complex_parameter:  # TensorFlow has no other update of complex numbers
            yield make, adam_by_hand
            continue
        yield make, UPDATES[2 * number % len(UPDATES)]
        yield make, UPDATES[(2 * number + 3) % len(UPDATES)]


@pytest.mark.parametrize(("make", "update"), [*pairs()], ids=lambda each: each.__name__)
def test_trains_as_on_one_device(make, update):
    assert_equals_one_device(job(make, update), 3, steps=3)


# Several losses ----------------------------------------------------------------------------------


def of_two_losses(update, *, clip=False) -> Network:
    """Two losses over one batch, each of which trains a parameter; one is passed."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w, b = parameter("w", [6, 3]), parameter("b", [3])
        h = x @ w + b
        one = cross_entropy(h, y)
        two = tf.reduce_mean(tf.abs(tf.square(h) - x[:, :3]))
        gradients = [*tf1.gradients(one, [w]), *tf1.gradients(two, [b])]
        processed = tf.clip_by_global_norm(gradients, 0.1)[0] if clip else gradients
        train_op = update(processed, [w, b])
    return Network(graph, train_op, one, feed, dict(zip(("w", "b"), gradients, strict=True)))


@pytest.mark.parametrize(
    ("update", "workers", "clip"),
    in_turns([adam_by_hand, adam_of_keras, applied("adam")] * 2, [2, 3], [False, True]),
)
def test_a_second_loss_that_is_not_passed_trains(update, workers, clip):
    assert_equals_one_device(of_two_losses(update, clip=clip), workers, steps=4)


@pytest.mark.parametrize("passed", [0, 1])
@pytest.mark.parametrize(("update", "workers"), [(adam_by_hand, 2), (applied("momentum"), 3)])
def test_each_gradient_counts_as_its_own_loss_does(update, passed, workers):
    """One loss is a mean, the other a sum; one of them is passed."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w, b = parameter("w", [6, 3]), parameter("b", [3])
        h = x @ w + b
        losses = cross_entropy(h, y), tf.reduce_sum(tf.abs(tf.square(h) - x[:, :3])) / 50
        raw = [*tf1.gradients(losses[0], [w]), *tf1.gradients(losses[1], [b])]
        train_op = update(raw, [w, b])
    found = Network(graph, train_op, losses[passed], feed, dict(zip("wb", raw, strict=True)))
    assert_equals_one_device(found, workers, steps=4)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_gradient_of_a_sum_may_be_divided_by_the_number_of_examples(workers):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w, b = parameter("w", [6, 3]), parameter("b", [])
        loss = cross_entropy(tf.square(x @ w + b), y, tf.reduce_sum)
        number = tf.cast(tf.shape(x)[0], x.dtype)
        raw = [gradient / number for gradient in tf1.gradients(loss, [w, b])]
        train_op = adam_by_hand(raw, [w, b])
    found = Network(graph, train_op, loss, feed, dict(zip("wb", raw, strict=True)))
    assert_equals_one_device(found, workers, steps=4)


def test_gradients_of_two_losses_may_be_added():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w = parameter("w", [6, 3])
        one, two = cross_entropy(x @ w, y), tf.reduce_mean(tf.abs(tf.square(x @ w) - 1))
        gradient = tf1.gradients(one, w)[0] + 0.3 * tf1.gradients(two, w)[0]
        train_op = adam_by_hand([gradient], [w])
    assert_equals_one_device(Network(graph, train_op, one, feed, {"w": gradient}), 3, steps=4)


# Sums over the examples that are no gradients ----------------------------------------------------


def examples_clipped(x, p, w):
    """The gradient of each example by itself, clipped, and their mean."""
    each = tf.einsum("bi,bj->bij", x, p)
    norm = tf.sqrt(tf.reduce_sum(tf.square(each), [1, 2], keepdims=True))
    return tf.reduce_mean(each * tf.minimum(tf.ones([], x.dtype), 0.3 / norm), 0)


def examples_clipped_and_divided(x, p, w):
    each = x[:, :, None] * p[:, None, :]
    total = tf.reduce_sum(each / tf.maximum(tf.norm(each, axis=[1, 2], keepdims=True) / 0.3, 1), 0)
    return total / tf.cast(tf.shape(x)[0], x.dtype)


def examples_weighed(x, p, w):
    """By how much each one is wrong."""
    each = x[:, :, None] * p[:, None, :]
    return tf.reduce_mean(each * tf.reduce_max(tf.abs(p), 1)[:, None, None], 0) + 0.1 * w


@pytest.mark.parametrize(
    ("of", "update", "workers"),
    in_turns(
        [examples_clipped, examples_clipped_and_divided, examples_weighed] * 2,
        [adam_by_hand, applied("momentum", "clip_by_global_norm")],
        [2, 2, 3, 3, 3, 2],
    ),
)
def test_what_is_done_to_each_example_is_done_before_aggregation(of, update, workers):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w = parameter("w", [6, 3])
        logits = x @ w
        gradient = of(x, tf.nn.softmax(logits) - tf.one_hot(y, 3, dtype=x.dtype), w)
        train_op = update([gradient], [w])
        loss = cross_entropy(logits, y)
    assert_equals_one_device(Network(graph, train_op, loss, feed, {"w": gradient}), workers)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gradients_of_examples_may_be_made_in_a_loop(version):
    with control_flow_version(version), tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w, b = parameter("w", [6, 3]), parameter("b", [3])

        def of_one(example):
            loss = cross_entropy(example[0][None] @ w + b, example[1][None])
            return tuple(tf.clip_by_global_norm(tf1.gradients(loss, [w, b]), 0.3)[0])

        each = tf.map_fn(of_one, (x, y), fn_output_signature=(x.dtype, x.dtype))
        gradients = [tf.reduce_mean(several, 0) for several in each]
        loss = cross_entropy(x @ w + b, y)
        with tf.control_dependencies([loss]):  # which reads the variables by itself
            train_op = adam_by_hand(gradients, [w, b])
    found = Network(graph, train_op, loss, feed, dict(zip("wb", gradients, strict=True)))
    assert_equals_one_device(found, 3, steps=4)


def test_gradients_that_lie_side_by_side_are_clipped_together():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        w, v = parameter("w", [6, 3]), parameter("v", [3])
        loss = cross_entropy(tf.square(x @ w) * v, y)
        raw = tf1.gradients(loss, [w, v])
        flat = tf.clip_by_norm(tf.concat([tf.reshape(raw[0], [-1]), raw[1]], 0), 0.1)
        train_op = adam_by_hand([tf.reshape(flat[:18], [6, 3]), flat[18:]], [w, v])
    found = Network(graph, train_op, loss, feed, dict(zip(("w", "v"), raw, strict=True)))
    assert_equals_one_device(found, 3, steps=4)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_second_loss_may_have_inputs_of_its_own(workers):
    """An actor and a critic."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        returns = tf1.placeholder(x.dtype, [None], name="returns")
        actor, critic, b = (
            parameter("actor", [6, 3]),
            parameter("critic", [6, 1]),
            parameter("b", []),
        )
        policy_loss = cross_entropy(x @ actor, y)
        value = tf.squeeze(tf.square(x @ critic) + b, 1)
        value_loss = tf.reduce_mean(tf.square(value - returns))
        raw = [*tf1.gradients(policy_loss, [actor]), *tf1.gradients(value_loss, [critic, b])]
        train_op = adam_by_hand(raw, [actor, critic, b])
    feed = {**feed, "returns:0": np.linspace(-1, 2, EXAMPLES)}
    names = ("actor", "critic", "b")
    found = Network(graph, train_op, policy_loss, feed, dict(zip(names, raw, strict=True)))
    assert_equals_one_device(found, workers, steps=4)


# Ambiguous ---------------------------------------------------------------------------------------


def changed(change) -> Network:
    """A job whose gradient of a bias is changed by a function that may read anything."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        b = parameter("b", [3])
        h = tf.square(x[:, :3] + b)
        loss = cross_entropy(h + b, y)
        gradient = tf.identity(tf1.gradients(loss, b)[0], "raw")
        train_op = b.assign_sub(change(gradient, loss, x, b)).op
    return Network(graph, train_op, loss, feed, {"b": gradient})


AMBIGUOUS = {
    "times the loss": lambda g, loss, x, b: g * loss,
    "times a number of the loss": lambda g, loss, x, b: g * (2 * loss),
    "over the loss": lambda g, loss, x, b: 0.1 * (g / loss),
    "times the largest entry": lambda g, loss, x, b: g * tf.reduce_max(x),
    "plus the largest entry": lambda g, loss, x, b: g + tf.reduce_max(x),
    "times its own covariance": lambda g, loss, x, b: tf.linalg.matvec(
        tf.matmul(x[:, :3], x[:, :3], transpose_a=True), g
    ),
    "where the loss is large": lambda g, loss, x, b: tf.where(loss > 1, g, 0.5 * g),
    "if the loss is large": lambda g, loss, x, b: tf.cond(loss > 1, lambda: g, lambda: 0.5 * g),
    "beside a clipped one": lambda g, loss, x, b: (
        g + tf.clip_by_norm(tf1.gradients(tf.reduce_mean(tf.abs(x[:, :3] * b)), b)[0], 0.1)
    ),
}


@pytest.mark.parametrize("change", AMBIGUOUS)
def test_the_error_names_the_parameter_its_candidates_and_the_line_to_write(change):
    found = changed(AMBIGUOUS[change])
    with pytest.raises(AmbiguousGradientError, match=r"of 'b'.*gradients=\[\('[^']+', 'b'\)\]"):
        frontier_of(found.context())


def test_the_line_to_write_trains():
    """Only the gradient that cannot be told is given."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(EXAMPLES)
        loss = cross_entropy(perceptron(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        changed = [gradients[0] * loss, *gradients[1:]]
        train_op = tf.group([v.assign_sub(g) for v, g in zip(variables, changed, strict=True)])
    raw = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
    found = Network(graph, train_op, loss, feed, raw)
    with pytest.raises(AmbiguousGradientError) as refused:
        frontier_of(found.context())
    line = re.search(r"Context\(\.\.\., gradients=(\[.*\])\)", str(refused.value))
    given = ast.literal_eval(line[1])
    assert given == [(changed[0].name, "w1")]
    with caramel.ARModel(found.context(gradients=given), 2).session() as session:
        losses = [session.step(feed) for _ in range(20)]
    assert losses[-1] < losses[0]
