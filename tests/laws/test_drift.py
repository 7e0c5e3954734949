"""Replicas cannot drift apart: what differs between workers reaches parameters by aggregation only.

What may differ (moving averages) is local.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import caramel
from caramel.core.errors import DriftError, FeedError, UnsupportedOpError
from tests.support.networks import (
    CLASSES,
    FEATURES,
    STEPS,
    Network,
    assert_equals_one_device,
    control_flow_version,
    cross_entropy,
    frontier_of,
    inputs,
    network,
    parameter,
    perceptron,
    run_on_one_device,
    state_of,
    tf,
    tf1,
)
from tests.support.updates import descent, job_with, normalized, with_update_ops

# Drift is refused --------------------------------------------------------------------------------


def rate_from_the_loss(x, loss, gradients, variables):
    return descent(gradients, variables, tf.multiply(loss, 0.1, name="rate"))


def rate_from_the_batch(x, loss, gradients, variables):
    return descent(gradients, variables, tf.reduce_mean(x, name="rate"))


def rate_from_the_size_of_the_batch(x, loss, gradients, variables):
    size = tf.cast(tf.shape(x)[0], tf.float64)
    return descent(gradients, variables, tf.divide(tf.constant(0.1, tf.float64), size, name="rate"))


def noise_on_the_gradients(x, loss, gradients, variables):
    noisy = [g + tf.random.normal(g.shape, dtype=g.dtype, name="rate") for g in gradients]
    return descent(noisy, variables)


def dropped_gradients(x, loss, gradients, variables):
    noisy = [g * tf.cast(tf.random.uniform([], name="rate") > 0.5, tf.float64) for g in gradients]
    return descent(noisy, variables)


def draw_as_parameter(x, loss, gradients, variables):
    drawn = tf.random.normal(variables[0].shape, dtype=tf.float64, name="rate")
    with tf.control_dependencies([descent(gradients, variables)]):
        return variables[0].assign(drawn).op


def draw_into_a_slot(x, loss, gradients, variables):
    """By way of a variable that the update of the next step reads."""
    scale = tf1.get_variable("scale", [], tf.float64, trainable=False, use_resource=True)
    drawn = scale.assign(tf.random.uniform([], dtype=tf.float64, name="rate"))
    updated = descent([scale * g for g in gradients], variables)
    return tf.group(updated, drawn)


def update_if_the_loss_is_high(x, loss, gradients, variables):
    return tf.cond(
        tf.greater(loss, 0.5, name="rate"), lambda: descent(gradients, variables), tf.no_op
    )


DRIFTING = (
    rate_from_the_loss,
    rate_from_the_batch,
    rate_from_the_size_of_the_batch,
    noise_on_the_gradients,
    dropped_gradients,
    draw_as_parameter,
    draw_into_a_slot,
)


@pytest.mark.parametrize("make_train_op", DRIFTING)
def test_a_value_of_one_worker_in_an_update_is_refused_with_its_path(make_train_op):
    job = job_with(make_train_op)
    with pytest.raises(
        DriftError,
        match=r"replicas would drift apart: '.*' differs between workers \(.*\) and reaches "
        r"parameter '.*' without being aggregated, along .*rate.* -> .*; .*aggregate it before",
    ):
        state_of(job.context())


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_update_that_only_some_workers_make_is_refused(version):
    with control_flow_version(version):
        job = job_with(update_if_the_loss_is_high)
    with pytest.raises(DriftError, match=r"reaches parameter .* along .*rate \(Greater\)"):
        state_of(job.context())


def test_the_path_is_complete():
    job = job_with(rate_from_the_batch)
    with pytest.raises(DriftError, match=r"along x \(Placeholder\) -> rate \(Mean\) -> .*Resource"):
        state_of(job.context())


# What is fed -------------------------------------------------------------------------------------


def fed_rate(shape):
    def make_train_op(x, loss, gradients, variables):
        rate = tf1.placeholder(tf.float64, shape, name="rate")
        return descent(gradients, variables, tf.reduce_mean(rate))

    return make_train_op


def test_a_fed_scalar_is_equal_on_all_workers():
    job = job_with(fed_rate([]))
    assert_equals_one_device(replace(job, feed={**job.feed, "rate:0": 0.2}), 3)


def test_a_fed_vector_that_reaches_an_update_is_refused_and_the_way_out_named():
    job = job_with(fed_rate([2]))
    with pytest.raises(DriftError, match=r"'rate:0' .*pass replicated_feeds=\['rate'\]"):
        state_of(job.context())


def test_replicated_feeds_go_whole_to_every_worker():
    job = job_with(fed_rate([4]))
    job = replace(job, feed={**job.feed, "rate:0": [0.1, 0.2, 0.3, 0.4]})
    assert_equals_one_device(job, 3, replicated_feeds=["rate"])


def test_a_placeholder_of_unknown_rank_in_an_update_must_be_fed_a_scalar():
    job = job_with(fed_rate(None))
    assert state_of(job.context()).scalar_only == {"rate"}
    assert_equals_one_device(replace(job, feed={**job.feed, "rate:0": 0.2}), 2)
    with (
        caramel.ARModel(job.context(), workers=2).session() as session,
        pytest.raises(FeedError, match=r"'rate:0' has no declared shape .* must be a scalar"),
    ):
        session.step({**job.feed, "rate:0": [0.1, 0.2]})


def test_a_placeholder_of_unknown_rank_elsewhere_may_be_a_batch():
    def weighted(x):
        weights = tf1.placeholder_with_default(tf.ones([1], tf.float64), None, name="weights")
        return perceptron(x) * tf.reshape(weights, [-1, 1])

    job = job_with(lambda x, loss, g, v: descent(g, v), model=weighted)
    assert state_of(job.context()).scalar_only == frozenset()
    weights = np.linspace(0.5, 1.5, 40)
    assert_equals_one_device(replace(job, feed={**job.feed, "weights:0": weights}), 3)


# Local state -------------------------------------------------------------------------------------


def test_moving_averages_are_local_and_their_mean_is_what_is_read():
    job = job_with(with_update_ops, model=normalized)
    state = state_of(job.context())
    assert state.local == ("moving_mean", "moving_variance")
    assert state.parameters == ("w1", "b1", "w2", "b2")
    model = caramel.ARModel(job.context(), workers=2, check=True)
    with model.session() as session:
        initial = session.variables()
        for _ in range(STEPS):
            session.step(job.feed)
        values, own = session.variables(), [session.variables(worker=w) for w in range(2)]
    assert np.any(own[0]["moving_mean"] != own[1]["moving_mean"])
    for name in state.local:
        np.testing.assert_allclose(values[name], (own[0][name] + own[1][name]) / 2, rtol=1e-14)
    expected = run_on_one_device(job, initial)
    for name in ("w1", "b1", "w2", "b2", "moving_mean"):  # the mean of means is that of the batch
        np.testing.assert_allclose(values[name], expected.values[name], rtol=1e-11, atol=1e-15)
        if name != "moving_mean":
            np.testing.assert_array_equal(own[0][name], own[1][name])


def test_a_moving_average_that_an_update_reads_is_no_local_state():
    def make_train_op(x, loss, gradients, variables):
        average = tf1.get_variable("average", [], tf.float64, trainable=False, use_resource=True)
        updated = average.assign(0.9 * average + 0.1 * loss)
        return descent([g / updated for g in gradients], variables)

    with pytest.raises(DriftError, match="reaches parameter"):
        state_of(job_with(make_train_op).context())


def test_slots_and_step_counters_are_shared():
    state = state_of(network("adam").context())
    assert state.local == ()
    assert {"global_step", "beta1_power", "w1/Adam", "w1/Adam_1"} <= set(state.shared)


def test_metrics_of_the_loss_are_local():
    def make_train_op(x, loss, gradients, variables):
        _, update = tf1.metrics.mean(loss)
        return tf.group(descent(gradients, variables), update)

    state = state_of(job_with(make_train_op).context())
    assert [name.rpartition("/")[2] for name in state.local] == ["total"]  # all count alike


# Initial values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("model", [perceptron, normalized])
def test_initial_values_are_made_once_and_sent_to_all(model, seed):
    job = job_with(with_update_ops, seed=seed, model=model)
    with caramel.ARModel(job.context(), workers=3, check=True).session() as session:
        values = [session.variables(worker=worker) for worker in range(3)]
    assert np.any(values[0]["w1"] != 0)
    for name, value in values[0].items():
        for other in values[1:]:
            np.testing.assert_array_equal(value, other[name])


def test_an_initial_value_may_depend_on_another_variable():
    def copied(x):
        w = parameter("w", [6, 3])
        copy = tf1.get_variable("copy", initializer=w.initial_value, use_resource=True)
        return x @ (w + copy)

    job = job_with(lambda x, loss, g, v: descent(g, v), seed=None, model=copied)
    with caramel.ARModel(job.context(), workers=2, check=True).session() as session:
        values = [session.variables(worker=worker) for worker in range(2)]
    for own in values:
        np.testing.assert_array_equal(own["copy"], values[0]["w"])


# Values that no edge tells of ---------------------------------------------------------------------


def staged(x, y):
    """The batch goes through a staging area."""
    from tensorflow.python.ops.data_flow_ops import StagingArea

    area = StagingArea([x.dtype, y.dtype], shapes=[[None, FEATURES], [None]])
    with tf.control_dependencies([area.put([x, y])]):
        x, y = area.get()
    loss = cross_entropy(perceptron(x), y)
    return tf1.train.GradientDescentOptimizer(0.3).minimize(loss), loss


def accumulated(x, y):
    """Gradients go through accumulators."""
    loss = cross_entropy(perceptron(x), y)
    variables = tf1.trainable_variables()
    updates = []
    for variable, gradient in zip(variables, tf1.gradients(loss, variables), strict=True):
        accumulator = tf1.ConditionalAccumulator(variable.dtype.base_dtype, variable.shape)
        with tf.control_dependencies([accumulator.apply_grad(gradient, local_step=10**6)]):
            updates.append(variable.assign_sub(0.3 * accumulator.take_grad(1)))
    return tf.group(*updates), loss


def through_a_table(x, y):
    """The learning rate is kept in a table, into which the loss is put."""
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float64, 0.0)
    key = tf.constant([1], tf.int64)
    loss = cross_entropy(perceptron(x), y)
    with tf.control_dependencies([table.insert(key, tf.reshape(loss, [1]))]):
        rate = 0.1 + 0.1 * tf.reshape(table.lookup(key), [])
    return tf1.train.GradientDescentOptimizer(rate).minimize(loss), loss


def through_state(make):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        train_op, loss = make(x, y)
    return Network(graph, train_op, loss, feed)


def test_a_staged_batch_differs_between_workers():
    job = through_state(staged)
    assert_equals_one_device(replace(job, raw=dict.fromkeys(["w1", "b1"])), 2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (accumulated, UnsupportedOpError, "collects gradients of several processes"),
        (through_a_table, DriftError, "replicas would drift apart"),
    ],
)
def test_what_a_worker_put_aside_itself_is_refused_in_an_update(make, error, message):
    with pytest.raises(error, match=message):
        caramel.ARModel(through_state(make).context(), 2)


def test_a_table_that_is_only_read_is_the_same_everywhere():
    def read(x, y):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([0, 1, 2], tf.int64), tf.constant([0.1, 0.2, 0.3], tf.float64)
            ),
            0.0,
        )
        weights = table.lookup(tf.cast(y, tf.int64))
        loss = tf.reduce_mean(
            weights * tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=perceptron(x))
        )
        rate = tf.reshape(table.lookup(tf.constant([1], tf.int64)), [])
        return tf1.train.GradientDescentOptimizer(rate).minimize(loss), loss

    caramel.ARModel(through_state(read).context(), 2)


@pytest.mark.parametrize("collection", ["global", "local"])
def test_whatever_an_optimizer_updates_is_a_parameter(collection):
    """Also if the user did not declare it trainable."""
    keys = tf1.GraphKeys
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        options = {"use_resource": True, "trainable": False}
        if collection == "local":
            options["collections"] = [keys.LOCAL_VARIABLES]
        frozen = tf1.get_variable("frozen", [FEATURES, CLASSES], tf.float64, **options)
        bias = parameter("bias", [CLASSES])
        loss = cross_entropy(x @ frozen + bias, y)
        optimizer = tf1.train.GradientDescentOptimizer(0.3)
        train_op = optimizer.minimize(loss, var_list=[frozen, bias])
    job = Network(graph, train_op, loss, feed)
    context = job.context()
    cuts = frontier_of(context).cuts
    assert {cut.gradient.parameter for cut in cuts} == {"frozen", "bias"}
    if collection == "global":
        assert_equals_one_device(replace(job, raw=dict.fromkeys(["frozen", "bias"])), 2)


# Losses that are no mean over examples ------------------------------------------------------------


def warnings_of(job, caplog):
    caplog.clear()
    caramel.ARModel(job.context(), 2)
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_usual_losses_are_not_told_of(caplog):
    job = network("momentum", "clip_by_global_norm", decayed_loss=True)
    assert warnings_of(job, caplog) == []
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        logits = perceptron(x)
        mean = tf1.get_variable(
            "mean", [], tf.float64, tf1.zeros_initializer(), trainable=False, use_resource=True
        )
        update = mean.assign_sub(0.1 * (mean - tf.reduce_mean(logits)))
        with tf.control_dependencies([update]):
            loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
        loss = tf.cast(loss, tf.float64)
        train_op = tf1.train.GradientDescentOptimizer(0.3).minimize(loss)
    assert warnings_of(Network(graph, train_op, loss, feed), caplog) == []
