"""A session trains, evaluates, and hands out variables by the user's names."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel import per_worker
from caramel.core.errors import FeedError, PlanError, SessionError, UnknownNameError
from caramel.core.util import progress
from tests.support import networks
from tests.support.displays import Recorded
from tests.support.networks import Network, examples, inputs, parameter, start_from

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def job():
    """A classifier with a moving average, dropout rate, accuracy and a learning rate to feed."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        x, y, feed = inputs(12)
        rate = tf1.placeholder_with_default(tf.constant(0.1, tf.float64), [], name="rate")
        weights = tf1.placeholder_with_default(
            tf.ones([networks.CLASSES], tf.float64), [networks.CLASSES], name="weights"
        )
        w = parameter("w", [networks.FEATURES, networks.CLASSES])
        mean = tf1.get_variable("mean", [], tf.float64, tf1.zeros_initializer(), trainable=False)
        logits = tf.identity((x @ w) * weights, name="logits")
        loss = networks.cross_entropy(logits, y)
        hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y, name="hits")
        tf.reduce_mean(tf.cast(hits, tf.float64), name="accuracy")
        tf.reduce_sum(y, name="labels")
        tf1.add_to_collection(
            tf1.GraphKeys.UPDATE_OPS, mean.assign_sub(0.5 * (mean - tf.reduce_mean(x)))
        )
        tf.identity(mean, name="seen_mean")
        step = tf1.train.get_or_create_global_step()
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train_op = tf1.train.GradientDescentOptimizer(rate).minimize(loss, step)
        tf1.assign(tf1.get_variable("speed", [], use_resource=True), 7.0, name="set_speed")
        tf1.global_variables_initializer()
    return Network(graph, train_op, loss, feed)


@pytest.fixture(scope="module")
def model(job):
    return caramel.ARModel(job.context(replicated_feeds=["weights"]), workers=3, check=True)


@pytest.fixture
def session(model):
    with model.session() as session:
        yield session


def test_a_step_returns_the_loss_of_the_whole_batch(job, session):
    expected = networks.run_on_one_device(job, session.variables(), steps=2)
    assert [session.step(job.feed) for _ in range(2)] == pytest.approx(expected.losses, rel=1e-12)


def test_feeds_and_fetches_are_tensors_operations_or_names(job, session):
    x = job.graph.get_tensor_by_name("x:0")
    y = job.graph.get_operation_by_name("y")
    loss, accuracy = session.step(
        {x: job.feed["x:0"], y: job.feed["y:0"]}, fetches=[job.loss, "accuracy:0"]
    )
    assert loss > 0
    assert 0 <= accuracy <= 1


def test_fetches_keep_their_structure(job, session):
    result = session.step(job.feed, fetches={"both": ("accuracy:0", [job.loss]), "op": "set_speed"})
    assert set(result) == {"both", "op"}
    assert isinstance(result["both"], tuple)
    assert result["op"] is None


def test_results_with_one_entry_for_each_example_come_back_in_the_order_of_the_batch(job, session):
    before = session.variables()["w"]
    logits, hits = session.step(job.feed, fetches=["logits:0", "hits:0"])
    np.testing.assert_allclose(logits, job.feed["x:0"] @ before, rtol=1e-12)
    assert hits.shape == (12,)


def test_the_values_of_each_worker_come_back_apart(job, session, model):
    x, y = examples(11)
    initial, gradient = session.variables(), str(model.plan.job.gradients[0].values)
    bounds = [(0, 4), (4, 8), (8, 11)]
    with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
        start_from(initial, single)
        expected = [
            single.run([job.loss, "logits:0", gradient], {"x:0": x[a:b], "y:0": y[a:b]})
            for a, b in bounds
        ]
    fetches = {"whole": job.loss, "own": per_worker([job.loss, "logits:0", gradient, "w:0"])}
    result = session.step({"x": x, "y": y}, fetches)
    losses, *others, weights = result["own"]
    assert isinstance(losses, tuple)
    np.testing.assert_allclose(losses, [own[0] for own in expected], rtol=1e-12)
    assert result["whole"] == pytest.approx(np.average(losses, weights=[4, 4, 3]), rel=1e-12)
    for number, own in enumerate(expected):
        for value, wanted in zip(others, own[1:], strict=True):
            np.testing.assert_allclose(value[number], wanted, rtol=1e-12)
    assert [value.shape for value in weights] == [initial["w"].shape] * 3


def test_what_has_no_value_of_each_worker_is_refused(job, session):
    with pytest.raises(FeedError, match="'accuracy' is an operation.*such as 'accuracy:0'"):
        session.step(job.feed, per_worker("accuracy"))
    with pytest.raises(FeedError, match="'set_speed' is an operation, and has no value"):
        session.step(job.feed, per_worker("set_speed"))
    with pytest.raises(FeedError, match="'set_speed' is an operation, and has no value"):
        session.run(per_worker("set_speed"), job.feed)


def test_integer_scalars_come_back_as_a_list_for_each_worker(job, session):
    parts = session.step(job.feed, fetches="labels:0")
    assert [int(part) for part in parts] == [int(p.sum()) for p in np.split(job.feed["y:0"], 3)]


def test_uneven_parts_still_give_the_result_of_the_whole_batch(job, session):
    x, y = examples(11)
    initial = session.variables()
    with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
        start_from(initial, single)
        expected_loss, _ = single.run([job.loss, job.train_op], {"x:0": x, "y:0": y})
        expected = single.run(tf1.global_variables()[0])
    loss, accuracy = session.step({"x": x, "y": y}, fetches=[job.loss, "accuracy:0"])
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert accuracy * 11 == pytest.approx(round(accuracy * 11))
    np.testing.assert_allclose(session.variables()["w"], expected, rtol=1e-12)


def test_scalars_and_replicated_feeds_reach_every_worker(job, session):
    before = session.variables()["w"]
    session.step({**job.feed, "rate:0": 0.0, "weights:0": [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(session.variables()["w"], before)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"x": np.zeros((12, 6))}, "nothing is fed for 'y:0'"),
        ({"x": np.zeros((12, 5)), "y": np.zeros(12, int)}, "cannot feed 'x:0'"),
        ({"x": np.zeros((2, 6)), "y": np.zeros(2, int)}, "2 examples cannot be split over 3"),
        ({"x": np.zeros((12, 6)), "y": np.zeros(9, int)}, "different numbers of examples"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused_and_leaves_the_variables(session, feed, message):
    before = session.variables()
    with pytest.raises(FeedError, match=message):
        session.step(feed)
    for name, value in session.variables().items():
        np.testing.assert_array_equal(value, before[name])


def test_feeds_and_fetches_in_the_order_of_tensorflow_are_refused_with_that_of_step(job, session):
    with pytest.raises(FeedError, match="it is a list .step takes first what is fed"):
        session.step([job.loss], job.feed)


def test_unknown_tensors_are_refused_with_a_suggestion(job, session):
    with pytest.raises(UnknownNameError, match="'accuracies:0'.*did you mean 'accuracy'"):
        session.step(job.feed, fetches="accuracies:0")
    with pytest.raises(UnknownNameError, match="feed_dict: there is no 'z:0'"):
        session.step({"z:0": 1})


def test_run_evaluates_on_the_mean_of_local_variables_and_leaves_them(job, session):
    session.step(job.feed)
    own = [float(session.variables(worker=worker)["mean"]) for worker in range(3)]
    assert len(set(own)) == 3
    assert session.run("seen_mean:0") == pytest.approx(np.mean(own), rel=1e-12)
    assert float(session.variables()["mean"]) == pytest.approx(np.mean(own), rel=1e-12)
    assert [float(session.variables(worker=w)["mean"]) for w in range(3)] == own


def test_run_takes_whole_batches_and_trains_nothing(job, session):
    before = session.variables()["w"]
    accuracy, logits = session.run(["accuracy:0", "logits:0"], {"x": job.feed["x:0"][:1], "y": [0]})
    assert accuracy in (0.0, 1.0)
    assert logits.shape == (1, networks.CLASSES)
    np.testing.assert_array_equal(session.variables()["w"], before)


def test_what_runs_for_the_first_time_is_told_and_so_is_the_end(job, model, monkeypatch):
    display = Recorded()
    with model.session() as session:
        monkeypatch.setattr(progress, "_display", display)
        for _ in range(2):
            session.run(job.loss, job.feed)
        (first,) = display.begun
        assert first.endswith(", for the first time")
    assert display.begun[-1] == "closing the session"


def test_what_run_assigns_reaches_every_worker(session):
    session.run("set_speed")
    assert [session.variables(worker=worker)["speed"] for worker in range(3)] == [7.0] * 3


def test_run_may_initialise_everything_again(job, session):
    session.step(job.feed)
    session.run("init")
    values = [session.variables(worker=worker) for worker in range(3)]
    assert [float(v["mean"]) for v in values] == [0.0] * 3
    assert [int(v["global_step"]) for v in values] == [0] * 3
    np.testing.assert_array_equal(values[1]["w"], values[0]["w"])
    session.step(job.feed)


def test_run_refuses_to_train(job, session):
    with pytest.raises(FeedError, match="use session.step"):
        session.run(job.train_op, job.feed)


def test_run_refuses_gradients_which_only_a_step_has(session, job, model):
    with pytest.raises(FeedError, match=r"fetch it with session\.step"):
        session.run(str(model.plan.job.gradients[0].values), job.feed)


def test_evaluating_batches_changes_nothing(job, session):
    session.step(job.feed)
    before = [session.variables(worker=worker) for worker in range(3)]
    assert len({float(values["mean"]) for values in before}) == 3
    loss, seen, weights = session.evaluate(job.feed, [job.loss, "seen_mean:0", "w:0"])
    assert loss == pytest.approx(session.run(job.loss, job.feed), rel=1e-12)
    assert seen == pytest.approx(np.mean([values["mean"] for values in before]), rel=1e-12)
    assert len(weights) == 3  # of each worker, since they have no entry for each example
    for worker, values in enumerate(before):
        for name, value in session.variables(worker=worker).items():
            np.testing.assert_array_equal(value, values[name])


@pytest.mark.parametrize(
    ("batches", "fetches", "message"),
    [
        ([], None, "was given no batch"),
        (3, None, r"takes what is fed, for one batch or for several .* not a int"),
        ({"rate": 0.5}, "rate:0", "nothing that is fed is a batch"),
        ({"x": np.zeros((3, 6))}, "set_speed", "session.evaluate: 'set_speed' is an operation"),
        ({"x": np.zeros((3, 6))}, "loss", "nothing is fed for 'y:0'"),
        ({"x": np.zeros((3, 6))}, per_worker("logits:0"), "has no values of each worker"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(job, session, batches, fetches, message):
    with pytest.raises(FeedError, match=message):
        session.evaluate(batches, job.loss if fetches == "loss" else fetches)


def test_evaluation_refuses_what_belongs_to_training(job, session, model):
    with pytest.raises(FeedError, match=r"fetch it with session\.step"):
        session.evaluate(job.feed, str(model.plan.job.gradients[0].values))


def test_variables_are_fetched_by_their_names(job, session):
    np.testing.assert_array_equal(session.run("w:0"), session.variables()["w"])
    with pytest.raises(FeedError, match="there is no worker 3"):
        session.variables(worker=3)


def test_the_gradient_that_a_step_returns_is_the_aggregated_one(job, session, model):
    before = session.variables()["w"]
    gradients = session.step(job.feed, fetches=str(model.plan.job.gradients[0].values))
    assert len(gradients) == 3
    for gradient in gradients:
        np.testing.assert_allclose(before - 0.1 * gradient, session.variables()["w"], rtol=1e-12)


def test_sessions_of_one_model_share_nothing(job, model):
    with model.session() as first, model.session() as second:
        first.step(job.feed)
        assert int(first.variables()["global_step"]) == 1
        assert int(second.variables()["global_step"]) == 0


def test_a_closed_session_says_so(model, job):
    session = model.session()
    session.close()
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.step(job.feed)


def test_an_error_in_the_graph_is_tensorflows_own(job, session):
    with pytest.raises(tf.errors.InvalidArgumentError):
        session.step({**job.feed, "y:0": np.full(12, 99)})
    assert session.step(job.feed) > 0


def test_wrong_options_are_refused(job):
    with pytest.raises(PlanError, match="unknown pattern 'star'; there are shuffle, ring"):
        caramel.ARModel(job.context(replicated_feeds=["weights"]), workers=2, pattern="star")
    with pytest.raises(PlanError, match="sparse must be"):
        caramel.ARModel(job.context(replicated_feeds=["weights"]), workers=2, sparse="rarely")
    with pytest.raises(PlanError, match=r"takes a caramel\.Context"):
        caramel.ARModel(job.graph, workers=2)


def test_verbose_prints_every_part_of_the_build_with_its_time(job, capsys):
    verbose = caramel.ARModel(job.context(replicated_feeds=["weights"]), workers=2, verbose=True)
    verbose.session().close()
    printed = capsys.readouterr().out
    for part in ("analyse", "plan", "replicate", "aggregate", "audit", "place", "initialise"):
        assert part in printed
