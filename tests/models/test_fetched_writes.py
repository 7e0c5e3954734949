"""What a fetch writes is proved as the train op is: aggregated, local, equal, or refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caramel
from caramel.core.errors import AmbiguousGradientError, DriftError, FeedError, LossScaleError
from caramel.models.steps import Steps
from tests.support.networks import (
    Network,
    cross_entropy,
    inputs,
    parameter,
    perceptron,
    replicas_of,
    run_on_one_device,
    slow_facts,
    tf,
    tf1,
)
from tests.support.step_jobs import assert_as_alone, gan

BOTH = [("d", ("g_train",)), ("g", ("d_train",)), ("d", ()), ("d", ("g_train",)), ("g", ())]


@pytest.mark.parametrize(("workers", "kind"), [(1, "adam"), (2, "momentum"), (3, "adam")])
def test_two_train_ops_fetched_together_train_as_on_one_device(workers, kind):
    job = gan(kind)
    assert_as_alone(job, caramel.ARModel(job.context(), workers, check=True), BOTH)


def test_a_joint_step_is_planned_by_itself():
    job = gan()
    model = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2), check=True)
    joint = model._steps.joint("d", ["g_train"])
    assert joint.decision.found is not None
    assert {g.parameter for g in joint.plan.job.gradients} == {"d1", "bias", "d2", "g1", "g2"}
    assert_as_alone(job, model, BOTH * 3, trials=caramel.TrialSettings(1, 1, 0))


def test_threads_that_need_the_same_joint_step_get_one(monkeypatch):
    steps = caramel.ARModel(gan().context(), 2, planner="plain")._steps
    made, under_way, is_second = Steps._made, threading.Event(), threading.Event()

    def slow(*arguments):
        if under_way.is_set():
            is_second.set()
        under_way.set()
        is_second.wait(0.5)  # for the other thread, which must not come here
        return made(*arguments)

    monkeypatch.setattr(Steps, "_made", slow)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(steps.joint, ["d", "d"], [["g_train"], ["g_train"]])
    assert one is other
    assert not is_second.is_set()


@pytest.mark.parametrize(
    ("fetched", "planned"),
    [("clip", False), ("clip", True), ("average", True), ("counted", False)],
)
def test_what_all_workers_write_alike_may_be_fetched(fetched, planned):
    job = gan("momentum")
    analyzers = slow_facts(2) if planned else None
    model = caramel.ARModel(job.context(), 2, analyzers=analyzers, check=True)
    assert_as_alone(job, model, [("g", (fetched,)), ("g", ()), ("g", (fetched,)), ("d", ())])


@pytest.mark.parametrize("workers", [1, 3])
def test_a_counter_that_the_step_reads_is_counted_up_behind_that(workers):
    """A rate that falls with the counter, and nothing that orders its reads and the count."""
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(23)
        counter = tf1.train.get_or_create_global_step()
        loss = cross_entropy(perceptron(x), y)
        rate = tf1.train.exponential_decay(tf.constant(0.3, tf.float64), counter, 1, 0.5)
        train_op = tf1.train.GradientDescentOptimizer(rate).minimize(loss)
        count = tf1.assign_add(counter, 1)
        with tf.control_dependencies([train_op]):
            after = tf1.assign_add(counter, 1).op
    job = Network(graph, after, loss, feed, {"w1": None})
    model = caramel.ARModel(
        Network(graph, train_op, loss, feed).context(), workers, analyzers=slow_facts(workers)
    )
    with model.session(trials=None) as session:
        initial = session.variables()
        for _ in range(5):
            session.step(feed, [loss, count])
        values = session.variables()
    expected = run_on_one_device(job, initial, steps=5)
    for name, value in expected.values.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-12, atol=1e-15, err_msg=name)


def test_a_count_needs_no_joint_step():
    job = gan()
    model = caramel.ARModel(job.context(), 2)
    assert model._steps.joint("d", ["counted"]) is None


def test_an_assignment_of_a_value_of_one_worker_is_refused_with_its_path():
    job = gan()
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        before = session.variables()
        for _ in range(2):
            with pytest.raises(
                DriftError,
                match=r"cannot fetch 'keep' in a step: replicas would drift apart: 'x:0' differs "
                r"between workers \(a fed batch\) and reaches variable 'kept' .* along x .* -> "
                r"kept; .*Context\(steps=.*session.run",
            ):
                session.step(job.feed, "keep", step="d")
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, before[name])
        session.run("keep", job.feed)  # by one worker on all that is fed, then sent to all
        kept = [session.variables(worker=worker)["kept"] for worker in range(2)]
    np.testing.assert_allclose(kept, np.mean(job.feed["x:0"]), rtol=1e-12)


def other_train_op() -> tuple[Network, str]:
    """A job whose second train op is not declared."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(23)
        loss = cross_entropy(perceptron(x), y)
        first = tf1.trainable_variables()
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss, var_list=first)
        v = parameter("v", [6, 1])
        with tf.control_dependencies([train_op]):
            other = tf.reduce_mean(tf.square(x @ v - 1))
            tf1.train.AdamOptimizer(0.1).minimize(other, var_list=[v], name="other")
    return Network(graph, train_op, loss, feed, {"v": None, "w1": None}), "other"


@pytest.mark.parametrize("workers", [2, 3])
def test_a_train_op_that_is_no_step_is_aggregated(workers):
    job, other = other_train_op()
    model = caramel.ARModel(job.context(), workers, check=True)
    with model.session(trials=None) as session:
        initial = session.variables()
        for _ in range(5):
            session.step(job.feed, [job.loss, other])
        values, replicas = session.variables(), replicas_of(session)
    with job.graph.as_default():
        both = tf.group(job.train_op, job.graph.get_operation_by_name(other))
    expected = run_on_one_device(
        Network(job.graph, both, job.loss, job.feed, job.raw), initial, steps=5
    )
    for name, value in expected.values.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-14, err_msg=name)
        for replica in replicas[1:]:
            np.testing.assert_array_equal(replica[name], replicas[0][name])


def test_a_second_train_op_of_the_same_parameters_is_refused():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(20)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        other = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.sqrt(loss), name="other")
    job = Network(graph, train_op, loss, feed)
    with (
        caramel.ARModel(job.context(), 2).session(trials=None) as session,
        pytest.raises((AmbiguousGradientError, DriftError), match="cannot fetch 'other' in a step"),
    ):
        session.step(feed, other)


@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
def test_a_fetched_train_op_counts_as_what_it_minimises_does(reduce):
    """One loss is a mean over the examples, the other one is not named and may be their sum."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(23)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        w, v = parameter("w", [6, 5]), parameter("v", [5, 1])
        other = reduce(tf.square(tf.tanh(x @ w) @ v - 1))
        optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
        both = tf.group(train_op, optimizer.minimize(other, var_list=[w, v], name="other"))
    model = caramel.ARModel(Network(graph, train_op, loss, feed).context(), 3, check=True)
    with model.session(trials=None) as session:
        initial = session.variables()
        for _ in range(4):
            session.step(feed, ["other", other])
        values = session.variables()
    expected = run_on_one_device(Network(graph, both, loss, feed), initial, steps=4)
    for name, value in expected.values.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-14, err_msg=name)


def test_a_fetched_train_op_of_something_that_cannot_be_told_is_refused():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(23)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        w = parameter("w", [6, 1])
        root = tf.sqrt(tf.reduce_mean(tf.square(x @ w - 1)))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        optimizer.minimize(root, var_list=[w], name="other")
    job = Network(graph, train_op, loss, feed)
    with (
        caramel.ARModel(job.context(), 2).session(trials=None) as session,
        pytest.raises(LossScaleError, match="gradient of 'w' is no loss of the Context.*steps="),
    ):
        session.step(feed, "other")


def test_metrics_that_are_fetched_count_all_examples():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(23)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
        value, update = tf1.metrics.mean(x)
    job = Network(graph, train_op, loss, feed)
    model = caramel.ARModel(job.context(), 3, check=True)
    assert model._steps.joint(0, [update.op.name]) is None
    with model.session(trials=None) as session:
        for _ in range(2):
            session.step(feed, update)
        np.testing.assert_allclose(session.run(value), np.mean(feed["x:0"]), rtol=1e-6)


# What is no variable -----------------------------------------------------------------------------


def test_a_table_that_would_differ_is_refused():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(20)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float64, 0.0)
        key = tf.constant([1], tf.int64)
        put = table.insert(key, tf.reshape(loss, [1]))
        same = table.insert(key, tf.constant([2.0], tf.float64))
    job = Network(graph, train_op, loss, feed)
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        session.step(feed, same)
        with pytest.raises(DriftError, match="are put into table '.*', of which each worker has"):
            session.step(feed, put)


def test_a_pipeline_that_no_step_reads_is_refused():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(20)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(5))
        number = iterator.get_next()
    job = Network(graph, train_op, loss, feed)
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        session.run(iterator.initializer)
        assert session.run(number) == 0
        with pytest.raises(FeedError, match="reads the input pipeline '.*', which no step reads"):
            session.step(feed, number)
