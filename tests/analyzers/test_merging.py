"""What workers gather from their own examples is one value wherever it is asked for.

Counters, totals and confusion matrices are added up, moving averages are averaged; compared with
one device that has seen the whole batches.
"""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from tests.support.networks import control_flow_version, state_of, tf, tf1

CLASSES = 3
RNG = np.random.default_rng(5)
BATCHES = [
    {
        "x:0": RNG.normal(size=(8, CLASSES)),
        "y:0": RNG.integers(0, CLASSES, 8),
    }
    for _ in range(3)
]
UNEVEN = {key: value[:7] for key, value in BATCHES[0].items()}


def count(x, y, guess):
    seen = tf1.get_variable("seen", [], tf.int64, tf1.zeros_initializer(), trainable=False)
    return seen, seen.assign_add(tf.shape(x, out_type=tf.int64)[0])


def histogram(x, y, guess):
    seen = tf1.get_variable("seen", [CLASSES], trainable=False, initializer=tf1.zeros_initializer())
    return seen, tf1.scatter_add(seen, y, tf.ones_like(y, tf.float32))


def assigned_total(x, y, guess):
    total = tf1.get_variable("seen", [], tf.float64, tf1.ones_initializer(), trainable=False)
    return total, total.assign(tf.reduce_sum(x) + tf.identity(total))


def counted_down(x, y, guess):
    left = tf1.get_variable("seen", [], tf.int32, tf1.constant_initializer(100), trainable=False)
    return left, left.assign(left - tf.shape(x)[0])


def counted_in_a_branch(x, y, guess):
    seen = tf1.get_variable("seen", [], tf.float64, tf1.zeros_initializer(), trainable=False)
    with control_flow_version("v2"):
        done = tf.cond(
            tf.reduce_sum(x) > -1e9,
            lambda: tf.identity(seen.assign_add(tf.reduce_sum(x))),
            lambda: tf.constant(0.0, tf.float64),
        )
    return seen, done


def mean_of_a_mean(x, y, guess):
    return tf1.metrics.mean(tf.reduce_mean(x))


def total_of_means(x, y, guess):
    total = tf1.get_variable("seen", [], tf.float64, tf1.zeros_initializer(), trainable=False)
    return total, total.assign_add(tf.reduce_mean(x))


def moving_average(x, y, guess):
    mean = tf1.get_variable("seen", [CLASSES], tf.float64, tf1.ones_initializer(), trainable=False)
    return mean, mean.assign_sub(0.1 * (mean - tf.reduce_mean(x, axis=0)))


EXACT_WHATEVER_THE_PARTS = {
    "count": count,
    "histogram": histogram,
    "assigned_total": assigned_total,
    "counted_down": counted_down,
    "counted_in_a_branch": counted_in_a_branch,
    "mean": lambda x, y, guess: tf1.metrics.mean(x),
    "weighted_mean": lambda x, y, guess: tf1.metrics.mean(x[:, 0], weights=tf.cast(y, tf.float32)),
    "accuracy": lambda x, y, guess: tf1.metrics.accuracy(y, guess),
    "mean_iou": lambda x, y, guess: tf1.metrics.mean_iou(y, guess, CLASSES),
    "per_class": lambda x, y, guess: tf1.metrics.mean_per_class_accuracy(y, guess, CLASSES),
    "precision": lambda x, y, guess: tf1.metrics.precision(y > 0, guess > 0),
    "recall": lambda x, y, guess: tf1.metrics.recall(y > 0, guess > 0),
    "auc": lambda x, y, guess: tf1.metrics.auc(y > 0, tf.sigmoid(x[:, 0])),
    "false_negatives": lambda x, y, guess: tf1.metrics.false_negatives(y > 0, guess > 0),
    "rmse": lambda x, y, guess: tf1.metrics.root_mean_squared_error(x, x**2),
    "mean_tensor": lambda x, y, guess: tf1.metrics.mean_tensor(tf.reduce_sum(x, axis=0)),
    "recall_at_k": lambda x, y, guess: tf1.metrics.recall_at_k(y, tf.cast(x, tf.float32), 2),
}
EXACT_FOR_EQUAL_PARTS = {
    "mean_of_a_mean": mean_of_a_mean,
    "total_of_means": total_of_means,
    "moving_average": moving_average,
}
ALL = EXACT_WHATEVER_THE_PARTS | EXACT_FOR_EQUAL_PARTS


class Job:
    """A job with something that gathers, in its step or to be fetched beside it."""

    def __init__(self, make, *, in_step: bool) -> None:
        with tf.Graph().as_default() as self.graph:
            x = tf1.placeholder(tf.float64, [None, CLASSES], name="x")
            y = tf1.placeholder(tf.int64, [None], name="y")
            w = tf1.get_variable("w", [CLASSES, CLASSES], tf.float64, tf1.zeros_initializer())
            self.loss = tf1.losses.sparse_softmax_cross_entropy(y, x @ w)
            self.train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(self.loss)
            self.value, self.update = make(x, y, tf.argmax(x, axis=1))
            self.update = getattr(self.update, "op", self.update)
            if in_step:
                self.train_op = tf.group(self.train_op, self.update)
            self.fetches = [self.loss] if in_step else [self.loss, self.update]
            self.init = [tf1.global_variables_initializer(), tf1.local_variables_initializer()]

    def on_one_device(self, batches):
        with tf1.Session(graph=self.graph) as session:
            session.run(self.init)
            for batch in batches:
                session.run([self.train_op, *self.fetches], batch)
            return session.run(self.value)

    def model(self, workers: int) -> caramel.ARModel:
        context = caramel.Context(self.graph, train_op=self.train_op, loss=self.loss)
        return caramel.ARModel(context, workers=workers, check=True)


# What is exact whatever the parts is tested below as it is gathered beside the step.
GATHERED = [
    *((name, True) for name in ALL),
    *((name, False) for name in ALL if name not in EXACT_WHATEVER_THE_PARTS),
]


@pytest.mark.parametrize(("name", "in_step"), GATHERED)
def test_what_all_workers_have_gathered_is_read(name, in_step):
    job = Job(ALL[name], in_step=in_step)
    with job.model(2).session() as session:
        for batch in BATCHES:
            session.step(batch, job.fetches)
        values = session.run(job.value), session.run(job.value)
    expected = job.on_one_device(BATCHES)
    for value in values:
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("make", EXACT_WHATEVER_THE_PARTS.values(), ids=EXACT_WHATEVER_THE_PARTS)
def test_workers_with_unequal_parts_count_what_they_have(make):
    job = Job(make, in_step=False)
    with job.model(3).session() as session:
        for batch in (UNEVEN, *BATCHES):
            session.step(batch, job.fetches)
        value = session.run(job.value)
    np.testing.assert_allclose(value, job.on_one_device([UNEVEN, *BATCHES]), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "workers"), [(count, 3), (assigned_total, 3), (counted_down, 3), (moving_average, 2)]
)
def test_a_checkpoint_has_what_all_have_gathered_and_training_goes_on_from_it(
    make, workers, tmp_path
):
    job = Job(make, in_step=True)
    with job.model(2).session() as session:
        session.step(BATCHES[0])
        path = session.save(tmp_path / "first")
        session.step(BATCHES[1])  # is forgotten
    np.testing.assert_allclose(tf.train.load_variable(path, "seen"), job.on_one_device(BATCHES[:1]))
    with job.model(workers).session() as session:
        session.restore(path)
        for batch in BATCHES[1:]:
            session.step(batch)
        values = session.variables()["seen"], session.run(job.value)
    for value in values:
        np.testing.assert_allclose(value, job.on_one_device(BATCHES), rtol=1e-12)


def test_a_fixed_batch_counts_alike_on_all_workers():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [4, CLASSES], name="x")
        w = tf1.get_variable("w", [CLASSES], tf.float64, tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w - x))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        mean, update = tf1.metrics.mean(x)
    x = BATCHES[0]["x:0"]
    model = caramel.ARModel(caramel.Context(graph, train_op=train_op, loss=loss), workers=2)
    with model.session() as session:
        for _ in range(2):
            session.step({"x:0": x}, [loss, update])
        assert session.run(mean) == pytest.approx(x.mean(), rel=1e-6)


def test_what_run_gathers_and_resets_counts_once():
    job = Job(EXACT_WHATEVER_THE_PARTS["mean"], in_step=False)
    with tf1.Session(graph=job.graph) as plain, job.model(2).session() as session:
        plain.run(job.init)
        for batch in BATCHES:
            plain.run(job.fetches, batch)
            session.step(batch, job.fetches)
            plain.run(job.update, UNEVEN)
            session.run(job.update, UNEVEN)
            np.testing.assert_allclose(session.run(job.value), plain.run(job.value), rtol=1e-6)
        plain.run(job.init)
        session.run(job.init[1])
        plain.run(job.update, UNEVEN)
        session.step(UNEVEN, job.fetches)
        np.testing.assert_allclose(session.run(job.value), plain.run(job.value), rtol=1e-6)


def test_slots_and_initial_values_gather_nothing():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None])
        drawn = tf1.get_variable("drawn", [4], trainable=False)
        loaded = tf1.get_variable("loaded", [4], trainable=False)
        given = tf1.placeholder(tf.float32, [4])
        loaded.assign(given)
        w = tf1.get_variable("w", [], tf.float64, tf1.zeros_initializer())
        gathered = tf1.get_variable("gathered", [], tf.float64, trainable=False)
        loss = tf.reduce_mean(tf.square(w - x))
        (gradient,) = tf1.gradients(loss, [w])
        step = tf1.train.get_or_create_global_step()
        train_op = tf1.train.AdamOptimizer(0.1).minimize(loss, step)
        slot = gathered.assign(0.9 * gathered + gradient)
        w.assign_sub(0.1 * slot)  # another optimizer, which nothing runs
        assert drawn is not None
    state = state_of(caramel.Context(graph, train_op=train_op, loss=loss))
    assert state.local == state.summed == ()


def counted_if_finite(v2):
    """A job that counts the steps whose aggregated gradients are finite, and sums their norms."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, CLASSES], name="x")
        w = tf1.get_variable("w", [CLASSES], tf.float64, tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w - x))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss, [w])
        zeros = {"initializer": tf1.zeros_initializer(), "trainable": False}
        applied = tf1.get_variable("applied", [], tf.int64, **zeros)
        norms = tf1.get_variable("norms", [], tf.float64, **zeros)
        norm = tf.norm(gradient)
        train_op = tf.cond(
            tf.math.is_finite(norm),
            lambda: tf.group(w.assign_sub(0.1 * gradient), applied.assign_add(1)),
            tf.no_op,
        )
        train_op = tf.group(train_op, norms.assign_add(norm))
    return graph, train_op, loss


@pytest.mark.parametrize("v2", [False, True])
def test_what_depends_on_aggregated_gradients_only_is_the_same_on_all_workers(v2, control_flow):
    control_flow(v2)
    graph, train_op, loss = counted_if_finite(v2)
    x = {"x:0": BATCHES[0]["x:0"]}
    with graph.as_default(), tf1.Session() as plain:
        plain.run(tf1.global_variables_initializer())
        for _ in range(3):
            plain.run([train_op, loss], x)
        norms = plain.run("norms/Read/ReadVariableOp:0")
    model = caramel.ARModel(caramel.Context(graph, train_op=train_op, loss=loss), workers=2)
    with model.session() as session:
        for _ in range(3):
            session.step(x)
        values = session.variables()
    assert int(values["applied"]) == 3
    assert values["norms"] == pytest.approx(norms, rel=1e-12)


def test_steps_know_of_each_other_what_depends_on_aggregated_gradients():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, CLASSES], name="x")
        steps = {}
        for name in ("d", "g"):
            w = tf1.get_variable(name, [CLASSES], tf.float64, tf1.zeros_initializer())
            loss = tf.reduce_mean(tf.square(w - x))
            (gradient,) = tf1.gradients(loss, [w])
            total = tf1.get_variable(
                f"{name}_norms", [], tf.float64, tf1.zeros_initializer(), trainable=False
            )
            update = tf.group(w.assign_sub(0.1 * gradient), total.assign_add(tf.norm(gradient)))
            steps[name] = (update, loss)
    x = {"x:0": BATCHES[0]["x:0"]}
    with caramel.ARModel(caramel.Context(graph, steps=steps), workers=2).session() as session:
        for name in ("d", "g", "g"):
            session.step(x, step=name)
        values = session.variables()
    norm = np.linalg.norm(2 / CLASSES * BATCHES[0]["x:0"].mean(axis=0))
    factor = 1 - 0.1 * 2 / CLASSES  # by which the gradient gets smaller in a step
    assert values["d_norms"] == pytest.approx(norm, rel=1e-12)
    assert values["g_norms"] == pytest.approx(norm * (1 + factor), rel=1e-12)


@pytest.mark.parametrize("v2", [False, True])
def test_a_count_that_depends_on_what_each_worker_has_is_told(v2, control_flow, caplog):
    control_flow(v2)
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, CLASSES], name="x")
        w = tf1.get_variable("w", [CLASSES], tf.float64, tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w - x))
        high = tf1.get_variable("high", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        counted = tf.cond(
            loss > 1, lambda: tf.group(high.assign_add(1)), lambda: tf.group(high.assign_add(0))
        )
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        context = caramel.Context(graph, train_op=tf.group(train_op, counted), loss=loss)
    with caplog.at_level("WARNING", "caramel"):
        caramel.ARModel(context, workers=2)
    assert "'high'" in caplog.text
    assert "no worker has" in caplog.text
