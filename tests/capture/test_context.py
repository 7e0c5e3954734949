"""The context: a single-device job captured by name, or one clear error."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import caramel
from caramel.core.errors import (
    AmbiguousGradientError,
    CaramelError,
    GraphError,
    NoParametersError,
    NothingUpdatedError,
    NotTensorFlowError,
    OneShotIteratorError,
    QueueRunnerError,
    ReferenceVariableError,
    UnknownNameError,
    UnsupportedOpError,
)
from caramel.core.names import TensorRef
from tests.support import networks
from tests.support.networks import Network, built_network, network, parameter, tf, tf1


@pytest.fixture
def job() -> Network:
    return built_network("adam")


def context(job: Network, **changes) -> caramel.Context:
    return caramel.Context(job.graph, **{"train_op": job.train_op, "loss": job.loss, **changes})


# What is taken ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["object", "operation", "name", "tensor name"])
def test_a_job_is_given_by_objects_or_names(job, by):
    train_op, loss = {
        "object": (job.train_op, job.loss),
        "operation": (job.train_op, job.loss.op),
        "name": (job.train_op.name, job.loss.op.name),
        "tensor name": (job.train_op.name, job.loss.name),
    }[by]
    captured = context(job, train_op=train_op, loss=loss).job
    assert captured.train_op == job.train_op.name
    assert captured.loss == TensorRef(job.loss.op.name, 0)


def test_a_tensor_may_be_the_train_op(job):
    with job.graph.as_default(), tf.control_dependencies([job.train_op]):
        after = tf.identity(job.loss, name="after")
    assert context(job, train_op=after).job.train_op == "after"
    assert context(job, train_op="after:0").job.train_op == "after"


def test_a_variable_that_is_assigned_may_be_the_train_op(job):
    with job.graph.as_default(), tf.control_dependencies([job.train_op]):
        step = tf1.train.get_global_step().assign_add(1, read_value=True)
    model = caramel.ARModel(context(job, train_op=step), workers=2, check=True)
    with model.session() as session:
        session.step(job.feed)
        assert session.variables()["global_step"] == 2


def test_variables_are_found_with_their_collections(job):
    with job.graph.as_default():
        tf1.get_variable(
            "hits", [], tf.float64, collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False
        )
    variables = {v.name: v for v in context(job).job.variables}
    assert [name for name, v in variables.items() if v.trainable] == ["w1", "b1", "w2", "b2"]
    assert [name for name, v in variables.items() if not v.saved] == ["hits"]
    assert {"global_step", "beta1_power", "w1/Adam", "w1/Adam_1"} <= set(variables)
    assert variables["w1"].spec.shape == (networks.FEATURES, networks.WIDTH)
    assert variables["w1"].spec.dtype == "float64"


def test_gradients_may_be_named_with_variables_tensors_or_names(job):
    pairs = [
        (job.raw["w1"], next(v for v in variables_of(job) if v.op.name == "w1")),
        (job.raw["b1"].name, "b1"),
        (None, "w2"),
    ]
    given = context(job, gradients=pairs).job.given_gradients
    assert [(g.parameter, str(g.values)) for g in given] == [
        ("w1", job.raw["w1"].name),
        ("b1", job.raw["b1"].name),
    ]


def variables_of(job: Network):
    with job.graph.as_default():
        return tf1.trainable_variables()


def test_a_gradient_given_twice(job):
    pair = (job.raw["w1"], "w1")
    with pytest.raises(AmbiguousGradientError, match="'w1' is given twice"):
        context(job, gradients=[pair, pair])


def test_sparse_gradients_are_values_and_rows():
    with tf.Graph().as_default() as graph:
        rows = parameter("rows", [7, 2])
        ids = tf1.placeholder(tf.int32, [None])
        loss = tf.reduce_mean(tf.gather(rows, ids) ** 2)
        (gradient,) = tf.gradients(loss, [rows])
        train = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, rows)])
    captured = caramel.Context(graph, train_op=train, loss=loss, gradients=[(gradient, rows)])
    (given,) = captured.job.given_gradients
    assert str(given.values) == gradient.values.name
    assert str(given.indices) == gradient.indices.name


def test_what_is_asked_of_a_context_may_be_objects_or_names(job):
    captured = context(job)
    assert captured.tensor("x", "feed") == captured.tensor("x:0", "feed") == TensorRef("x")
    assert captured.tensor(job.loss, "fetch") == TensorRef(job.loss.op.name)
    assert captured.operation(job.train_op, "op") == job.train_op.name
    with pytest.raises(UnknownNameError, match="feed: there is no 'xx' .* captured"):
        captured.tensor("xx", "feed")
    with pytest.raises(UnknownNameError, match="'x' has 1 outputs, no 'x:1'"):
        captured.tensor("x:1", "feed")


# The user's graph is left alone -----------------------------------------------------------------


def test_the_graph_is_byte_identical_after_capture_build_and_training(job):
    before = job.graph.as_graph_def(add_shapes=True).SerializeToString(deterministic=True)
    version, collections = job.graph.version, sorted(map(str, job.graph.get_all_collection_keys()))
    with caramel.ARModel(job.context(), workers=2, check=True).session() as session:
        session.step(job.feed)
        session.run(job.loss, job.feed)
        session.variables()
    after = job.graph.as_graph_def(add_shapes=True).SerializeToString(deterministic=True)
    assert after == before
    assert job.graph.version == version
    assert sorted(map(str, job.graph.get_all_collection_keys())) == collections
    with tf1.Session(graph=job.graph) as session:  # and it still trains by itself
        with job.graph.as_default():
            session.run(tf1.global_variables_initializer())
        session.run(job.train_op, job.feed)


def test_what_is_added_later_is_not_part_of_the_job(job):
    captured = context(job)
    size = len(captured.op_graph)
    with job.graph.as_default():
        late = tf.identity(job.loss, name="late")
    assert len(captured.op_graph) == size
    model = caramel.ARModel(captured, workers=2)
    with (
        model.session() as session,
        pytest.raises(UnknownNameError, match="'late:0'.*after the Co"),
    ):
        session.step(job.feed, fetches=late)


def test_two_contexts_of_one_graph_do_not_disturb_each_other(job):
    contexts = [context(job), context(job)]
    with caramel.ARModel(contexts[0], workers=2).session() as first:
        initial = first.variables()
        with caramel.ARModel(contexts[1], workers=2).session() as second:
            second.step(job.feed)
        for name, value in first.variables().items():
            np.testing.assert_array_equal(value, initial[name])


# One clear error each ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"train_op": "trian"}, UnknownNameError, "train_op: there is no 'trian' in the graph"),
        ({"train_op": "Adan"}, UnknownNameError, "no 'Adan' in the graph .did you mean 'Adam'"),
        ({"train_op": "x"}, NothingUpdatedError, "'x' updates none of the trainable variables"),
        ({"train_op": None}, NotTensorFlowError, "train_op must be a tensor.* not NoneType None"),
        ({"train_op": 3}, NotTensorFlowError, "not int 3"),
        ({"train_op": ""}, UnknownNameError, "train_op: the empty string is no name"),
        ({"loss": np.ones(3)}, NotTensorFlowError, "loss must be a tensor.* not ndarray"),
        ({"loss": "x:3"}, UnknownNameError, "'x' has 1 outputs, no 'x:3'"),
        ({"loss": "x"}, GraphError, r"loss 'x:0' must be a floating-point scalar.*\(None, 6\)"),
        ({"loss": "y"}, GraphError, "loss 'y:0' must be a floating-point scalar, but is int32"),
        ({"loss_reduction": "max"}, GraphError, "must be 'mean' or 'sum', or None, not 'max'"),
        ({"replicated_feeds": ["z"]}, UnknownNameError, "replicated_feeds: there is no 'z'"),
        ({"gradients": [("x", "w11")]}, UnknownNameError, "'w11' is not a variable .*did you mean"),
        ({"gradients": ["x"]}, NotTensorFlowError, "must be pairs .gradient, variable., not str"),
        ({"gradients": [("x", "w1", 1)]}, NotTensorFlowError, "must be pairs"),
        ({"gradients": [("g", "w1")]}, UnknownNameError, "gradients: there is no 'g'"),
        ({"gradients": [(3, "w1")]}, NotTensorFlowError, "gradients must be a tensor"),
        ({"gradients": [("x", "w1")]}, GraphError, r"'x:0' .*\(None, 6\)\) cannot be the gradient"),
        (
            {"gradients": [("y", "b1")]},
            GraphError,
            "'y:0' .int32 .* cannot be the gradient of 'b1'",
        ),
    ],
)
def test_mistakes_in_arguments(job, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        context(job, **changes)
    assert isinstance(caught.value, CaramelError)


@pytest.mark.parametrize("graph", [None, "graph", 5, tf1.GraphDef()])
def test_something_that_is_no_graph(graph):
    with pytest.raises(NotTensorFlowError, match=r"must be a tf.Graph, not .*build the job inside"):
        caramel.Context(graph, train_op="a", loss="b")


def test_tensors_of_another_graph(job):
    other = network()
    with pytest.raises(UnknownNameError, match="loss: '.*' belongs to another graph"):
        context(job, loss=other.loss)
    with pytest.raises(UnknownNameError, match="train_op: '.*' belongs to another graph"):
        context(job, train_op=other.train_op)


def test_variables_of_another_graph(job):
    other = variables_of(network(model=lambda x: x @ parameter("other", [networks.FEATURES, 3])))
    with pytest.raises(UnknownNameError, match="'other' is not a variable of the graph"):
        context(job, gradients=[(job.raw["w1"], other[0])])


def test_an_eager_tensor(job):
    with tf.init_scope():
        eager = tf.constant(1.0)
    with pytest.raises(
        NotTensorFlowError, match="loss must be a tensor, an operation or a name of"
    ):
        context(job, loss=eager)


def test_a_graph_without_parameters():
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("w", [2], tf.float64, trainable=False)
        loss = tf.reduce_sum(w)
        train_op = w.assign_sub(w)
    with pytest.raises(NoParametersError, match="has no trainable variables"):
        caramel.Context(graph, train_op=train_op, loss=loss)


def test_a_train_op_that_updates_nothing_but_slots(job):
    with job.graph.as_default():
        counting = tf1.train.get_global_step().assign_add(1)
    with pytest.raises(NothingUpdatedError, match="pass the operation that Optimizer.minimize"):
        context(job, train_op=counting)


@pytest.mark.parametrize("through", ["tf1.Variable", "tf1.get_variable"])
def test_reference_variables(through):
    with tf.Graph().as_default() as graph:
        if through == "tf1.Variable":
            w = tf1.Variable(np.ones(3), use_resource=False, name="w")
        else:
            w = tf1.get_variable("w", [3], tf.float64, use_resource=False)
        loss = tf.reduce_sum(w**2)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(
        ReferenceVariableError, match="'w' is a reference variable; create resource"
    ):
        caramel.Context(graph, train_op=train_op, loss=loss)


def test_one_shot_iterators():
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensors(np.ones(3))
        x = tf1.data.make_one_shot_iterator(data).get_next()
        loss = tf.reduce_sum(parameter("w", [3]) * x)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(
        OneShotIteratorError, match="'OneShotIterator' is .*make_initializable_iter"
    ):
        caramel.Context(graph, train_op=train_op, loss=loss)


@pytest.mark.filterwarnings("ignore")
def test_queue_runners():
    with tf.Graph().as_default() as graph:
        x = tf1.train.batch([tf.ones([3], tf.float64)], batch_size=2)
        loss = tf.reduce_sum(parameter("w", [3]) * x)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(QueueRunnerError, match="queue runners.*tf.data or feed it"):
        caramel.Context(graph, train_op=train_op, loss=loss)


@pytest.mark.parametrize("has_queue_runners", [False, True])
def test_an_optimizer_for_many_processes_is_refused_with_what_to_use(has_queue_runners):
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", [], use_resource=True)
        loss = tf.square(w - 1.0)
        inner = tf1.train.GradientDescentOptimizer(0.1)
        optimizer = tf1.train.SyncReplicasOptimizer(inner, 2)
        train_op = optimizer.minimize(loss, global_step=step)
        if has_queue_runners:
            tf1.train.add_queue_runner(optimizer.get_chief_queue_runner())
    with pytest.raises(UnsupportedOpError, match="with the inner optimizer"):
        caramel.Context(graph, train_op=train_op, loss=loss)


def test_something_else_than_a_context_in_a_model(job):
    with pytest.raises(CaramelError, match=r"takes a caramel.Context, not Graph; make one with"):
        caramel.ARModel(job.graph, workers=2)


# Import -----------------------------------------------------------------------------------------


def test_importing_has_no_effects_and_imports_no_tensorflow(tmp_path):
    program = (
        "import os, sys, threading\n"
        "before = dict(os.environ)\n"
        "import caramel\n"
        "assert 'tensorflow' not in sys.modules, 'tensorflow'\n"
        "assert dict(os.environ) == before\n"
        "assert threading.active_count() == 1\n"
        "dir(caramel), caramel.__version__, caramel.CaramelError\n"
        "assert 'tensorflow' not in sys.modules, 'tensorflow'\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())
