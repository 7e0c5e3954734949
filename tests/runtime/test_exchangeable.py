"""What cannot be fed or fetched is refused before anything runs, and nothing of a step is lost."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import caramel
from caramel.core.errors import CaramelError, FeedError, GraphError
from tests.support.deferring import EVERY, deferred
from tests.support.networks import (
    Network,
    cross_entropy,
    inputs,
    perceptron,
    relative_error,
    tf,
    tf1,
)

PLAIN = {"planner": "plain", "pattern": "shuffle"}


@contextmanager
def control_flow_v1():
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


@pytest.fixture(scope="module", name="job")
def fixture_job():
    """A job beside which there are handles of all kinds."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(24)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        dataset = tf.data.Dataset.range(3)
        iterator = tf1.data.make_initializable_iterator(dataset)
        initializer = tf.lookup.KeyValueTensorInitializer(["a"], [1])
        tf.identity(iterator._iterator_resource, "iterator")
        tf.identity(tf.lookup.StaticHashTable(initializer, -1).resource_handle, "table")
        tf.identity(tf.data.experimental.to_variant(dataset), "dataset")
        tf.identity(tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[6]), "list")
        tf.raw_ops.TensorArrayV3(size=2, dtype=tf.float32, name="array")
        tf.identity(tf.raw_ops.OptionalFromValue(components=[loss]), "optional")
        tf.identity(tf.queue.FIFOQueue(1, tf.float32).queue_ref, "queue")
        tf1.placeholder(tf.variant, [], "variant")
        tf1.placeholder(tf.int32, [], "number")
        tf1.placeholder(tf.string, [None], "text")
        graph.prevent_feeding(tf.ones([2], name="fixed"))
        with control_flow_v1():
            tf1.cond(y[0] > 0, lambda: tf.identity(x, "taken"), lambda: tf.identity(-x, "other"))
            tf1.while_loop(lambda n: n < 9, lambda n: tf.identity(n + 1, "next"), [tf.size(y)])
    return Network(graph, train_op, loss, feed)


@pytest.fixture(scope="module", name="plain")
def fixture_plain(job):
    return caramel.ARModel(job.context(), 2, **PLAIN)


@pytest.fixture(name="session")
def fixture_session(plain):
    with plain.session() as session:
        yield session


@pytest.mark.parametrize(
    ("tensor", "instead"),
    [
        ("iterator:0", r"resource.*fetch what 'iterator.get_next\(\)' returns"),
        ("table:0", r"resource.*'table.lookup'"),
        ("dataset:0", r"variant.*'get_next\(\)' of an iterator over the dataset"),
        ("list:0", r"variant.*'array.stack\(\)'"),
        ("array:0", r"resource.*'array.stack\(\)'"),
        ("optional:0", r"variant.*'optional.get_value\(\)'"),
        ("queue:0", r"resource.*'queue.dequeue\(\)'"),
    ],
)
def test_the_handle_of_what_stays_on_a_worker_is_refused_with_what_to_fetch(
    tensor, instead, job, session
):
    for fetch in (lambda: session.step(job.feed, [job.loss, tensor]), lambda: session.run(tensor)):
        with pytest.raises(FeedError, match=instead):
            fetch()
    assert session.metrics().steps == 0


def test_an_object_that_stands_for_something_on_a_worker_is_refused_with_what_to_fetch(
    job, session
):
    with job.graph.as_default():
        dataset = tf.data.Dataset.range(3)
        initializer = tf.lookup.KeyValueTensorInitializer(["a"], [1])
        given = {
            r"array\.stack\(\)": tf.TensorArray(tf.float32, 2),
            "an iterator over the dataset": dataset,
            r"'iterator\.get_next\(\)'": tf1.data.make_initializable_iterator(dataset),
            r"table\.lookup": tf.lookup.StaticHashTable(initializer, -1),
            r"optional\.get_value\(\)": tf.experimental.Optional.from_value(1.0),
            r"queue\.dequeue\(\)": tf.queue.FIFOQueue(1, tf.float32),
        }
    for instead, thing in given.items():
        message = f"stays on its worker; fetch .*{instead}"
        with pytest.raises(FeedError, match=message):
            session.step(job.feed, [job.loss, thing])
        with pytest.raises(FeedError, match=message):
            session.run(thing)


@pytest.mark.parametrize("name", ["cond/taken", "cond/other", "while/next", "cond/taken:0"])
def test_what_is_inside_a_loop_or_a_branch_is_refused(name, job, session):
    """A step with such a fetch would never end, or fail when everything was done."""
    for call in (lambda: session.step(job.feed, [name]), lambda: session.run(name, job.feed)):
        with pytest.raises(FeedError, match="fetch what the loop or the branch returns"):
            call()
    with pytest.raises(FeedError, match="cannot be fed: it is inside a loop or a branch"):
        session.step({**job.feed, name: 1})


def test_loops_of_a_graph_that_was_imported_are_known_too(job):
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(tf1.train.export_meta_graph(graph=job.graph))
    context = caramel.Context(graph, train_op="Momentum", loss=job.loss.name)
    with (
        caramel.ARModel(context, 2, **PLAIN).session() as session,
        pytest.raises(FeedError, match="'while/next:0' cannot be fetched: it is inside a loop"),
    ):
        session.step(job.feed, "while/next:0")


def test_what_initial_values_are_computed_from_is_no_part_of_a_step(job, session):
    with pytest.raises(FeedError, match="'w1/Initializer/.*' is no part of a training step"):
        session.step(job.feed, "w1/Initializer/random_uniform:0")
    assert session.run("w1/Initializer/random_uniform:0").shape == (6, 5)


def test_a_refused_fetch_drops_nothing_that_is_deferred(job, plain):
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, EVERY))
    with plain.session() as expected, model.session() as session:
        values = expected.variables()
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, values[name])
        for _ in range(4):
            assert session.step(job.feed) == expected.step(job.feed)
            with pytest.raises(FeedError):
                session.step(job.feed, [job.loss, "dataset:0"])
        assert relative_error(session.variables(), expected.variables()) == 0


class NoArray:
    """Something that cannot say its values."""

    def __array__(self, *_, **__):
        raise RuntimeError("there are none")


def wrong_feeds(graph):
    """Feeds of all wrong kinds, by what is wrong."""
    x = np.zeros((24, 6))
    variable = graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)[0]
    with tf.Graph().as_default():
        other = tf1.placeholder(tf.float64, [None, 6], "x")
    return {
        "'w1:0' is a variable": {variable.handle.name: 1.0},
        "'variant:0' cannot be fed": {"variant:0": 1},
        "'iterator:0' cannot be fed": {"iterator:0": 1},
        "'fixed:0' may not be fed": {"fixed:0": [1.0, 2.0]},
        "with the tensor 'x:0' of a graph": {"x:0": graph.get_tensor_by_name("x:0")},
        "cannot feed 'x:0'.*symbolic": {"x:0": [graph.get_tensor_by_name("x:0")]},
        "with the tensor 'w1:0' of a graph": {"x:0": variable},
        "belongs to another graph": {other: x},
        "got None": {"x:0": None},
        "inhomogeneous": {"x:0": [[1.0, 2.0], [1.0]]},
        "got values of type dict": {"x:0": {"a": 1}},
        "got values of type generator": {"x:0": (row for row in x)},
        "got there are none": {"x:0": NoArray()},
        "got strings": {"x:0": "zero"},
        "complex128 values": {"x:0": x * 1j},
        "int64 values from 2147483648": {"number:0": 2**31},
        "uint64 values from": {"number:0": np.uint64(2**63)},
        "values of type int": {"number:0": 10**30},
        "float64 values": {"number:0": np.nan},
        "got a NoneType": {"text:0": [None] * 24},
        "got a list": {"text:0": [["a"], ["b", "c"]]},
        "got a int": {"text:0": [1] * 24},
        "two values for 'x:0'": {"x:0": x, graph.get_tensor_by_name("x:0"): x},
        "has 0 outputs": {graph.get_operation_by_name("Momentum"): 1},
        "must be a tensor": {3: x},
        "there is no": {"nothing:0": x},
        "maps tensors or names": [("x:0", x)],
        "shape": {"x:0": np.zeros((24, 7))},
    }


def test_wrong_feeds_are_refused_before_anything_runs(job, session):
    before = session.variables()
    for message, feed in wrong_feeds(job.graph).items():
        feeds = feed if isinstance(feed, list) else {**job.feed, **feed}
        for call in (session.step, lambda given: session.run(job.loss, given)):
            with pytest.raises((FeedError, GraphError), match=message):
                call(feeds)
    assert session.metrics().steps == 0
    assert relative_error(session.variables(), before) == 0


def test_values_of_other_libraries_are_taken_for_arrays(job, session):
    expected = session.run(job.loss, job.feed)
    given = {name: tf.constant(value) for name, value in job.feed.items()}
    assert session.run(job.loss, given) == expected
    assert session.step(given) == pytest.approx(expected)


@pytest.mark.parametrize("nothing", [[], (), {}, [[], {}]])
def test_who_fetches_nothing_gets_nothing(nothing, job, session):
    assert session.run(nothing) == nothing
    assert session.step(job.feed, nothing) == nothing
    assert session.metrics().steps == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.variables("0"),
        lambda session: session.try_plans("own"),
        lambda session: session.try_plans(plans="own"),
        lambda session: session.try_plans(plans=5),
        lambda session: session.save(None),
        lambda session: session.restore(3),
        lambda session: session.save("m", global_step=float("nan")),
        lambda session: session.run({1: "x:0", "b": "y:0"}),
        lambda session: session.run(None),
        lambda session: session.use(None),
    ],
)
def test_other_wrong_arguments_are_errors_of_caramel(call, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaramelError):
        call(session)
