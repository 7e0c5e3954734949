"""Variables train wherever they are registered, and whatever their initial value depends on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import FeedError, GraphError, ProfileError
from caramel.profiling.ops import profile_steps

tf1 = tf.compat.v1

BATCH = {"x:0": np.arange(7, dtype=np.float64)}


def graph_with(make):
    """A job whose loss reads what `make` makes."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None], name="x")
        w = tf1.get_variable("w", initializer=tf.constant(0.5, tf.float64), use_resource=True)
        factor = tf.identity(make(), name="factor")
        loss = tf.reduce_mean(tf.square(w * x - factor), name="loss")
        tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, name="train")
        tf.group(
            *(op for op in graph.get_operations() if op.name.endswith("/Assign")), name="start"
        )
    return graph


def on_one_device(graph, starts=("start",), initial=None, steps=3):
    with tf1.Session(graph=graph) as session:
        for start in starts:
            session.run(start, initial)
        losses = []
        for _ in range(steps):
            loss, _ = session.run(["loss:0", "train"], BATCH)
            losses.append(loss)
        return losses, session.run("w/Read/ReadVariableOp:0")


def distributed(graph, workers=2, initial=None, steps=3, **options):
    context = caramel.Context(graph, train_op="train", loss="loss:0", **options)
    with caramel.ARModel(context, workers, check=True).session(initial_feeds=initial) as session:
        losses = [session.step(BATCH) for _ in range(steps)]
        values = [session.variables(worker) for worker in range(workers)]
    for own in values[1:]:
        for name, value in own.items():
            np.testing.assert_array_equal(value, values[0][name], err_msg=name)
    return losses, values[0]


def assert_trains(graph, workers=2, starts=("start",), initial=None):
    expected, w = on_one_device(graph, starts, initial)
    losses, values = distributed(graph, workers, initial)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(values["w"], w, rtol=1e-12)
    return values


def variable(name, initial, **options):
    options.setdefault("trainable", False)
    return tf1.Variable(initial, name=name, dtype=tf.float64, use_resource=True, **options)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("collections", [["mine"], [], ["mine", tf1.GraphKeys.MODEL_VARIABLES]])
def test_variables_of_any_collection_are_initialised(workers, collections):
    graph = graph_with(lambda: variable("c", 3.0, collections=collections))
    assert assert_trains(graph, workers)["c"] == 3.0


def test_variables_of_the_users_own_collections_are_in_no_checkpoint(tmp_path):
    graph = graph_with(lambda: variable("c", 3.0, collections=["mine"]))
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with caramel.ARModel(context, 2).session() as session:
        path = session.save(tmp_path / "m")
    assert set(tf.train.load_checkpoint(path).get_variable_to_shape_map()) == {"w", "w/Momentum"}


@pytest.mark.parametrize("collections", [["mine"], []])
def test_a_variable_of_no_usual_collection_is_trained(collections):
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None], name="x")
        w = variable("w", 0.5, collections=collections)
        loss = tf.reduce_mean(tf.square(w - x), name="loss")
        tf1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[w], name="train")
        tf.group(w.initializer, name="start")
    assert_trains(graph, 3)


@pytest.mark.parametrize("trainable", ["name", 1, 0.5])
def test_a_variable_that_is_trainable_by_another_true_value_is_trained(trainable):
    graph = graph_with(lambda: variable("c", 3.0, trainable=trainable))
    values = assert_trains(graph)
    assert values["c"] != 3.0


def test_it_is_saved_and_restored(tmp_path):
    graph = graph_with(lambda: variable("c", 3.0, trainable="name"))
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with caramel.ARModel(context, 2).session() as session:
        path = session.save(tmp_path / "m")
        session.step(BATCH)
        session.restore(path)
        assert session.variables()["c"] == 3.0
    assert tf.train.load_variable(path, "c") == 3.0


# Initial values ----------------------------------------------------------------------------------


def fed(shape=()):
    return tf1.placeholder(tf.float64, shape, name="start_value")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_initial_value_is_fed(workers):
    graph = graph_with(lambda: tf.reduce_sum(variable("c", fed([2]))))
    values = assert_trains(graph, workers, initial={"start_value:0": [1.0, 2.0]})
    np.testing.assert_array_equal(values["c"], [1.0, 2.0])


def test_what_computes_an_initial_value_is_fed_instead():
    graph = graph_with(lambda: variable("c", 2 * tf.identity(fed(), name="of_it")))
    assert assert_trains(graph, initial={"of_it:0": 2.0})["c"] == 4.0


def test_an_initial_value_that_is_not_fed_is_one_clear_error():
    graph = graph_with(lambda: variable("c", 2 * fed()))
    with pytest.raises(
        FeedError, match=r"'c' depends on placeholder 'start_value'.*initial_feeds=\{'start_value"
    ):
        distributed(graph)
    with pytest.raises(FeedError, match="cannot feed 'start_value:0'.*float64"):
        distributed(graph, initial={"start_value:0": "text"})
    with pytest.raises(FeedError, match="no initial value of a variable depends on 'x'"):
        distributed(graph, initial={"start_value:0": 1.0, **BATCH})
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with pytest.raises(ProfileError, match="'c' depends on placeholder 'start_value'"):
        profile_steps(context, steps=1, feed=BATCH, use_cache=False)


def test_initial_values_are_read_from_variables_that_have_theirs():
    """Each of a chain of them, in any order of definition."""
    graph = graph_with(
        lambda: tf.add_n(
            [
                a := variable("a", 2.0, collections=["mine"]),
                b := variable("b", lambda: 3 * a),
                variable("c", 2 * b.read_value() + a),
            ]
        )
    )
    starts = ("a/Assign", "b/Assign", "c/Assign", "start")
    values = assert_trains(graph, 2, starts)
    assert [values[name] for name in "abc"] == [2.0, 6.0, 14.0]


def test_the_same_random_initial_value_is_that_of_both_variables():
    graph = graph_with(
        lambda: (
            variable("a", tf.random.normal([], dtype=tf.float64))
            - variable("b", tf1.get_default_graph().get_tensor_by_name("random_normal:0"))
        )
    )
    _, values = distributed(graph)
    assert values["a"] == values["b"]


def test_a_lookup_table_is_filled_from_what_is_fed():
    def looked_up():
        keys = tf1.placeholder(tf.int64, [None], name="keys")
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, tf.cast(keys, tf.float64) * 2), 0.0
        )
        return table.lookup(tf.constant(3, tf.int64))

    graph = graph_with(looked_up)
    with graph.as_default(), tf1.Session() as session:
        session.run("start")
        session.run(tf1.tables_initializer(), {"keys:0": [1, 3]})
        expected = session.run("loss:0", BATCH)
    for workers in (1, 3):
        losses, _ = distributed(graph, workers, initial={"keys:0": [1, 3]})
        np.testing.assert_allclose(losses[0], expected, rtol=1e-12)
    with pytest.raises(FeedError, match="lookup table op .* depends on placeholder 'keys'"):
        distributed(graph)


def test_a_variable_that_nothing_initialises_is_one_clear_error():
    def bare():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[], shared_name="bare", name="bare")
        tf.raw_ops.AssignVariableOp(
            resource=handle,
            value=1 + tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64),
        )
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64, name="read_it")

    with pytest.raises(
        GraphError, match="'bare', which 'read_it' uses, has no op that gives it an"
    ):
        distributed(graph_with(bare))


def test_variables_of_an_imported_graph_are_found_without_their_collections():
    made = graph_with(lambda: variable("c", 3.0))
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(made.as_graph_def(), name="")
    expected, w = on_one_device(made)
    losses, values = distributed(graph)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(values["w"], w, rtol=1e-12)


def test_a_custom_getter_may_wrap_what_is_trained():
    def half(getter, *args, **options):
        return tf.cast(getter(*args, **{**options, "dtype": tf.float64}), tf.float64) * 0.5

    def make():
        with tf1.variable_scope("scope", custom_getter=half):
            return tf1.get_variable(
                "c", initializer=tf.constant(3.0, tf.float64), use_resource=True
            )

    assert assert_trains(graph_with(make))["scope/c"] != 3.0
