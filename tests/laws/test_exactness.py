"""N workers on the parts of a batch give what one device gives on the whole batch.

The oracle is plain TensorFlow: one `tf.compat.v1.Session` on the untouched single-device graph,
from the same initial values.
"""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.patterns import PATTERNS
from tests.support.networks import (
    OPTIMIZERS,
    PROCESSES,
    Network,
    assert_equals_one_device,
    assert_replicas_equal,
    built_network,
    control_flow_version,
    cross_entropy,
    in_turns,
    inputs,
    l2,
    network,
    perceptron,
    relative_error,
    run_distributed,
    run_on_one_device,
    start_from,
    tf,
    tf1,
    tied,
    wide,
)

WORKERS = (1, 2, 3, 5, 8)
EVERY_SETTING = [(workers, pattern) for workers in WORKERS for pattern in PATTERNS]


@pytest.mark.parametrize(
    ("optimizer", "workers", "pattern"), in_turns(OPTIMIZERS, [2, 3, 5, 2, 3], PATTERNS)
)
def test_every_optimizer_trains_as_on_one_device(optimizer, workers, pattern):
    assert_equals_one_device(network(optimizer), workers, pattern)


@pytest.mark.parametrize(("workers", "pattern"), EVERY_SETTING)
def test_every_number_of_workers_and_pattern_trains_as_one_device(workers, pattern):
    optimizer, model = ("momentum", wide) if workers % 2 else ("adam", perceptron)
    job = network(optimizer, "clip_by_global_norm", model=model)
    assert_equals_one_device(job, workers, pattern)


@pytest.mark.parametrize(("process", "pattern"), in_turns(PROCESSES, PATTERNS))
def test_clipping_and_decay_see_the_aggregated_gradient(process, pattern):
    workers = {"shuffle": 3, "ring": 5, "halving_doubling": 4, "exchange": 2}[pattern]
    assert_equals_one_device(network("adam", process, decayed_loss=True), workers, pattern)


@pytest.mark.parametrize(
    ("process", "optimizer"), in_turns(PROCESSES, ["rmsprop_centered", "nesterov"])
)
def test_clipping_and_decay_combine_with_optimizers(optimizer, process):
    assert_equals_one_device(network(optimizer, process), 2)


@pytest.mark.parametrize(("workers", "pattern"), [(2, "ring"), (3, "shuffle")])
def test_weight_decay_in_the_loss_counts_once(workers, pattern):
    assert_equals_one_device(network("momentum", decayed_loss=True), workers, pattern)


@pytest.mark.parametrize(
    ("workers", "pattern", "process"),
    [(2, "halving_doubling", "unchanged"), (3, "shuffle", "clip_by_global_norm")],
)
def test_a_variable_that_is_read_several_times_has_one_gradient(workers, pattern, process):
    assert_equals_one_device(network("adam", process, model=tied), workers, pattern)


# Uneven batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "number", "pattern"),
    [
        (2, 3, "ring"),
        (3, 40, "shuffle"),
        (5, 7, "halving_doubling"),
        (5, 41, "ring"),
        (8, 9, "shuffle"),
    ],
)
def test_parts_of_a_batch_may_be_of_different_size(workers, number, pattern):
    job = network("adam", "clip_by_norm", number=number, decayed_loss=True)
    assert_equals_one_device(job, workers, pattern)


def test_the_size_of_the_batch_may_change_from_step_to_step():
    job = built_network("momentum")
    feeds = [
        dict(zip(job.feed, (v[:n] for v in job.feed.values()), strict=True)) for n in (8, 7, 4, 9)
    ]
    with caramel.ARModel(job.context(), workers=4, check=True).session() as session:
        initial = session.variables()
        losses = [session.step(feed) for feed in feeds]
        values = session.variables()
    with job.graph.as_default(), tf1.Session() as session:
        variables = start_from(initial, session)
        expected = [session.run([job.loss, job.train_op], feed)[0] for feed in feeds]
        np.testing.assert_allclose(losses, expected, rtol=1e-12)
        for name, value in session.run(variables).items():
            np.testing.assert_allclose(values[name], value, rtol=1e-11)


# Sums --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "workers", "pattern"),
    in_turns(["unchanged", "clip_by_global_norm", "decay"], [2, 3], ["ring", "shuffle"]),
)
def test_a_loss_that_is_a_sum_gives_the_sum_of_the_gradients(process, workers, pattern):
    job = network("adam", process, reduce=tf.reduce_sum, number=38)
    assert_equals_one_device(job, workers, pattern, loss_reduction="sum")


@pytest.mark.parametrize("workers", [2, 3])
def test_a_sum_with_weight_decay_in_the_loss_counts_the_decay_once(workers):
    job = network("momentum", reduce=tf.reduce_sum, decayed_loss=True)
    run = run_distributed(job, workers, loss_reduction="sum")
    expected = run_on_one_device(job, run.initial)
    assert relative_error(run.values, expected.values) < 1e-12


def test_a_sum_with_weight_decay_amid_the_gradient_counts_the_decay_once():
    slowly = tf1.train.GradientDescentOptimizer(0.002)
    job = built_network(lambda step: slowly, reduce=tf.reduce_sum, decayed_loss=True, model=tied)
    assert_equals_one_device(job, 3, loss_reduction="sum")


# Updates written by hand -------------------------------------------------------------------------


def by_hand(update) -> Network:
    """A job whose updates are written with `assign_sub` and the like."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        train_op = update(variables, gradients)
    raw = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
    return Network(graph, train_op, loss, feed, raw)


def slot(variable, name: str):
    zeros = tf1.zeros_initializer()
    return tf1.get_variable(
        f"{variable.op.name}_{name}",
        variable.shape,
        variable.dtype,
        zeros,
        trainable=False,
        use_resource=True,
    )


def plain_descent(variables, gradients):
    return tf.group([v.assign_sub(0.3 * g) for v, g in zip(variables, gradients, strict=True)])


def momentum(variables, gradients):
    updates = []
    for variable, gradient in zip(variables, gradients, strict=True):
        velocity = slot(variable, "velocity")
        updates.append(variable.assign_sub(0.1 * velocity.assign(0.9 * velocity + gradient)))
    return tf.group(updates)


def momentum_in_two_phases(variables, gradients):
    """First all slots, then all parameters, which read the slots."""
    velocities = [slot(variable, "velocity") for variable in variables]
    slots = [v.assign(0.9 * v + g) for v, g in zip(velocities, gradients, strict=True)]
    with tf.control_dependencies(slots):
        pairs = zip(variables, velocities, strict=True)
        return tf.group([p.assign_sub(0.1 * v.read_value()) for p, v in pairs])


def largest_entry(variables, gradients):
    """Normalised by the largest entry of all gradients, which is not linear."""
    largest = tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in gradients])
    pairs = zip(variables, gradients, strict=True)
    return tf.group([v.assign(v - 0.05 * g / (largest + 0.1)) for v, g in pairs])


def sign_descent(variables, gradients):
    pairs = zip(variables, gradients, strict=True)
    return tf.group([v.assign_add(-0.01 * tf.sign(g)) for v, g in pairs])


def moving_average(variables, gradients):
    """Descent, and an average of the parameters that waits for it."""
    step = tf1.train.get_or_create_global_step()
    averages = tf1.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([plain_descent(variables, gradients), step.assign_add(1)]):
        return averages.apply(variables)


@pytest.mark.parametrize(
    ("update", "setting"),
    in_turns(
        [
            plain_descent,
            momentum,
            momentum_in_two_phases,
            largest_entry,
            sign_descent,
            moving_average,
        ],
        [(2, "ring"), (3, "shuffle")],
    ),
)
def test_updates_written_by_hand_train_as_on_one_device(update, setting):
    workers, pattern = setting
    assert_equals_one_device(by_hand(update), workers, pattern)


def accumulating(every: int) -> Network:
    """Gradients of several steps are added up before they are applied."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        sums = [slot(variable, "sum") for variable in variables]
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(0.3)
        added = [s.assign_add(g) for s, g in zip(sums, gradients, strict=True)]

        def apply():
            means = [s / every for s in sums]
            applied = optimizer.apply_gradients(zip(means, variables, strict=True))
            with tf.control_dependencies([applied]):
                return tf.group([s.assign(tf.zeros_like(s)) for s in sums])

        with tf.control_dependencies([*added, step.assign_add(1)]):
            train_op = tf.cond(tf.equal(step % every, 0), apply, tf.no_op)
    raw = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
    return Network(graph, train_op, loss, feed, raw)


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_accumulated_gradients_train_as_on_one_device(control_flow):
    with control_flow_version(control_flow):
        job = accumulating(3)
    assert_equals_one_device(job, 3)


# Repeatable --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pattern", "workers"), in_turns(PATTERNS, [3, 4]))
def test_a_run_can_be_repeated_bit_for_bit(workers, pattern):
    runs = [run_distributed(network("adam", number=41), workers, pattern) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    for name, value in runs[0].values.items():
        np.testing.assert_array_equal(runs[0].initial[name], runs[1].initial[name])
        np.testing.assert_array_equal(value, runs[1].values[name])


@pytest.mark.onednn
@pytest.mark.parametrize("workers", [2, 3])
def test_shuffle_and_exchange_give_the_same_bits(workers):
    """Both add in the order of the workers, one of them on each worker by itself."""
    job = network("adam", dtype=tf.float32, number=41)
    shuffled, exchanged = (run_distributed(job, workers, p) for p in ("shuffle", "exchange"))
    assert_replicas_equal(exchanged)
    assert shuffled.losses == exchanged.losses
    for name, value in shuffled.values.items():
        np.testing.assert_array_equal(value, exchanged.values[name])


@pytest.mark.onednn
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_replicas_are_equal_in_every_precision(dtype):
    job = network("momentum", dtype=dtype, number=41)
    run = run_distributed(job, 3, "ring")
    assert_replicas_equal(run)
    expected = run_on_one_device(job, run.initial)
    for name, value in run.values.items():
        tolerance = 1e-5 if dtype == tf.float32 else 0.05
        np.testing.assert_allclose(
            value.astype(np.float64), expected.values[name].astype(np.float64), atol=tolerance
        )


def test_weight_decay_of_one_parameter_alone_is_no_gradient_of_the_batch():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        logits = perceptron(x)
        unused = tf1.get_variable("unused", [4], tf.float64, use_resource=True)
        loss = cross_entropy(logits, y) + l2([unused])
        train_op = tf1.train.GradientDescentOptimizer(0.3).minimize(loss)
    job = Network(graph, train_op, loss, feed, {"unused": None})
    assert_equals_one_device(job, 3)
