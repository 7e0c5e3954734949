"""Sparse and ragged values are fed and fetched as with `tf.compat.v1.Session.run`, by rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.capture.structures import IndexedSlicesValue
from caramel.cli.trace import trace_job
from caramel.cli.user_job import UserJob
from caramel.core.errors import FeedError
from caramel.profiling.ops import profile_steps
from tests.support import networks
from tests.support.networks import parameter, start_from

tf1 = tf.compat.v1

DENSE = np.array(
    [[0, 1, 2], [0, 0, 0], [3, 0, 0], [0, 0, 0], [0, 4, 0], [5, 6, 7], [0, 0, 8]], np.float64
)
SPARSE = tf1.SparseTensorValue(
    np.argwhere(DENSE), DENSE[np.nonzero(DENSE)], np.array(DENSE.shape, np.int64)
)
LABELS = np.linspace(-1, 1, 7)


def sparse_job(shape=(None, 3)):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.sparse_placeholder(tf.float64, shape, name="x")
        y = tf1.placeholder(tf.float64, [None], name="y")
        w = parameter("w", [3, 1])
        predicted = tf.sparse.sparse_dense_matmul(x, w)[:, 0]
        loss = tf.reduce_mean(tf.square(predicted - y))
        train_op = tf1.train.AdamOptimizer(0.1).minimize(loss)
        doubled = tf.SparseTensor(x.indices, 2 * x.values, x.dense_shape)
    return networks.Network(graph, train_op, loss), x, doubled


def losses_on_one_device(job, feeds, initial):
    with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
        start_from(initial, single)
        return [single.run([job.loss, job.train_op], feeds)[0] for _ in range(3)]


@pytest.mark.parametrize(
    ("workers", "shape"), [(1, None), (2, (None, 3)), (3, (7, 3)), (3, None), (2, (7, 3))]
)
def test_a_sparse_batch_is_split_by_rows(workers, shape):
    job, x, doubled = sparse_job(shape)
    feeds = {x: SPARSE, "y:0": LABELS}
    with caramel.ARModel(job.context(), workers).session() as session:
        initial = session.variables()
        losses = [session.step(feeds) for _ in range(3)]
        fetched = session.step(feeds, {"it": doubled})["it"]
    expected = losses_on_one_device(job, feeds, initial)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert isinstance(fetched, tf1.SparseTensorValue)
    np.testing.assert_array_equal(fetched.indices, SPARSE.indices)
    np.testing.assert_array_equal(fetched.values, 2 * SPARSE.values)
    np.testing.assert_array_equal(fetched.dense_shape, SPARSE.dense_shape)


@pytest.mark.parametrize(
    "value",
    [
        tuple(SPARSE),
        [*SPARSE],
        tf1.SparseTensorValue(*(part.tolist() for part in SPARSE)),
        tf1.SparseTensorValue(SPARSE.indices[::-1], SPARSE.values[::-1], SPARSE.dense_shape),
    ],
)
def test_the_parts_may_be_given_in_any_form(value):
    job, x, _ = sparse_job()
    with caramel.ARModel(job.context(), 2).session() as session:
        expected = session.run(job.loss, {x: SPARSE, "y:0": LABELS})
        assert session.step({x: value, "y:0": LABELS}) == pytest.approx(expected, rel=1e-12)


def test_run_takes_and_gives_sparse_values_whole():
    job, x, doubled = sparse_job()
    with caramel.ARModel(job.context(), 2).session() as session:
        fetched = session.run([doubled, (job.loss,)], {x: SPARSE, "y:0": LABELS})[0]
    assert isinstance(fetched, tf1.SparseTensorValue)
    np.testing.assert_array_equal(fetched.values, 2 * SPARSE.values)


def test_a_batch_without_entries_has_rows_all_the_same():
    job, x, doubled = sparse_job()
    empty = tf1.SparseTensorValue(np.zeros((0, 2), np.int64), np.zeros(0), np.array([7, 3]))
    with caramel.ARModel(job.context(), 3).session() as session:
        loss, fetched = session.step({x: empty, "y:0": LABELS}, [job.loss, doubled])
    assert loss == pytest.approx(np.mean(LABELS**2))
    assert list(fetched.dense_shape) == [7, 3]


def test_what_is_replicated_goes_whole_to_all():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        table = tf1.sparse_placeholder(tf.float64, [3, 3], name="table")
        x = tf1.placeholder(tf.float64, [None, 3], name="x")
        hidden = tf.transpose(tf.sparse.sparse_dense_matmul(table, tf.transpose(x)))
        loss = tf.reduce_mean(tf.square(hidden @ parameter("w", [3, 1])))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    job = networks.Network(graph, train_op, loss)
    whole = tf1.SparseTensorValue([[0, 1], [2, 2]], [1.0, 2.0], [3, 3])
    feeds = {table: whole, "x:0": DENSE}
    context = job.context(replicated_feeds=[table])
    with caramel.ARModel(context, 2).session() as session:
        initial = session.variables()
        losses = [session.step(feeds) for _ in range(3)]
    np.testing.assert_allclose(losses, losses_on_one_device(job, feeds, initial), rtol=1e-12)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (DENSE, "'x/indices:0' belongs to with a ndarray; feed a tf.compat.v1.SparseTensorValue"),
        (SPARSE[:2], "with a tuple; feed a tf.compat.v1.SparseTensorValue"),
        (SPARSE._replace(values=SPARSE.values[1:]), r"values have shape \(7,\), for 8 rows"),
        (SPARSE._replace(dense_shape=[7, 2]), r"indices lie outside of its dense_shape \[7, 2\]"),
        (SPARSE._replace(dense_shape=[7]), r"dense_shape has shape \(1,\); they must be"),
        (SPARSE._replace(dense_shape=[8, 3]), "different numbers of examples .*8, 'y:0': 7"),
        (SPARSE._replace(values=["a"] * 8), "'x/values:0': it takes float64, got strings"),
    ],
)
def test_what_is_no_such_value_is_one_clear_error(value, message):
    job, x, _ = sparse_job()
    with (
        caramel.ARModel(job.context(), 2).session() as session,
        pytest.raises(FeedError, match=message),
    ):
        session.step({x: value, "y:0": LABELS})


# Ragged ------------------------------------------------------------------------------------------

RAGGED = tf1.ragged.constant_value([[[1.0], [], [2.0, 3.0]], [], [[4.0]], [[], []], [[5.0, 6.0]]])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_ragged_batch_is_split_by_rows(workers):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.ragged.placeholder(tf.float64, 2, [], name="x")
        w = parameter("w", [])
        sums = tf.reduce_sum(tf.reduce_sum(x, axis=2), axis=1)
        loss = tf.reduce_mean(tf.square(sums * w - 1))
        train_op = tf1.train.AdamOptimizer(0.1).minimize(loss)
        doubled = x * 2
    job = networks.Network(graph, train_op, loss)
    with caramel.ARModel(job.context(), workers).session() as session:
        initial = session.variables()
        losses = [session.step({x: RAGGED}) for _ in range(3)]
        stepped = session.step({x: RAGGED}, doubled)
        ran = session.run(doubled, {x: RAGGED})
    np.testing.assert_allclose(losses, losses_on_one_device(job, {x: RAGGED}, initial), rtol=1e-12)
    doubled_rows = [[[2 * n for n in row] for row in rows] for rows in RAGGED.to_list()]
    assert stepped.to_list() == ran.to_list() == doubled_rows


# Slices ------------------------------------------------------------------------------------------


def test_a_sparse_gradient_is_fetched_as_slices():
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        table = parameter("table", [5, 2])
        loss = tf.reduce_mean(tf.square(tf.gather(table, ids)))
        gradient = tf1.gradients(loss, table)[0]
        train_op = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, table)])
    job = networks.Network(graph, train_op, loss)
    with caramel.ARModel(job.context(), 2).session() as session:
        table_before = session.variables()["table"]
        fetched = session.step({"ids:0": [1, 1, 3, 4]}, gradient)
    dense = np.zeros((5, 2))
    for own in fetched:  # each worker's own rows
        assert isinstance(own, IndexedSlicesValue)
        np.add.at(dense, own.indices, own.values / 2)
    expected = np.zeros((5, 2))
    np.add.at(expected, [1, 1, 3, 4], table_before[[1, 1, 3, 4]] / 4)
    np.testing.assert_allclose(dense, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_jobs_with_composites_are_profiled_and_traced(kind):
    if kind == "sparse":
        job, x, _ = sparse_job()
        feed = {x: SPARSE, "y:0": LABELS}
    else:
        with tf.Graph().as_default() as graph:
            x = tf1.ragged.placeholder(tf.float64, 1, [], name="x")
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(x, axis=1) * parameter("w", []) - 1))
            train_op = tf1.train.AdamOptimizer(0.1).minimize(loss)
        job, feed = networks.Network(graph, train_op, loss), {x: RAGGED.values}
    assert profile_steps(job.context(), steps=1, feed=feed, use_cache=False).seconds
    assert trace_job(UserJob(job.context(), feed), caramel.Cluster.embedded(2), steps=1).timelines


# Means over entries -------------------------------------------------------------------------------


def entries_job(reduce):
    with tf.Graph().as_default() as graph:
        x = tf1.sparse_placeholder(tf.float64, [None, 3], name="x")
        loss = reduce(tf.square(x.values * parameter("w", []) - 1))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return networks.Network(graph, train_op, loss), x


def test_a_mean_over_unequal_numbers_of_entries_is_refused():
    job, x = entries_job(tf.reduce_mean)
    with caramel.ARModel(job.context(), 2).session() as session:
        with pytest.raises(FeedError, match=r"'Mean' averages over .*'x/values:0'.*3, 5"):
            session.step({x: SPARSE})
        equal = tf1.SparseTensorValue([[0, 0], [1, 1], [2, 0], [3, 2]], np.arange(4.0), [4, 3])
        expected = session.run(job.loss, {x: equal})
        assert session.step({x: equal}) == pytest.approx(expected, rel=1e-12)
    with caramel.ARModel(job.context(), 1).session() as session:
        expected = session.run(job.loss, {x: SPARSE})
        assert session.step({x: SPARSE}) == pytest.approx(expected, rel=1e-12)


def test_a_mean_over_ragged_entries_is_refused_and_one_over_rows_is_not():
    def made(reduce):
        with tf.Graph().as_default() as graph:
            x = tf1.ragged.placeholder(tf.float64, 1, [], name="x")
            loss = reduce(tf.square(x * parameter("w", []) - 1.0))
            train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return networks.Network(graph, train_op, loss), x

    value = tf1.ragged.constant_value([[1.0, 2.0, 3.0], [4.0], [5.0]])
    job, x = made(tf.reduce_mean)
    with (
        caramel.ARModel(job.context(), 2).session() as session,
        pytest.raises(FeedError, match="averages over the entries"),
    ):
        session.step({x: value})
    job, x = made(lambda errors: tf.reduce_mean(tf.reduce_mean(errors, axis=1)))
    with caramel.ARModel(job.context(), 2).session() as session:
        expected = session.run(job.loss, {x: value})
        assert session.step({x: value}) == pytest.approx(expected, rel=1e-12)
