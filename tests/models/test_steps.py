"""Several steps over the same variables train as on one device, each by a plan of its own."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import caramel
from caramel.cli.user_job import load_job
from caramel.core.errors import DriftError, FeedError, GraphError, PlanError
from tests.support.networks import network, slow_facts, start_from, tf, tf1
from tests.support.step_jobs import all_deferred, alone, assert_as_alone, gan, gathering, trained

IN_TURN = [("d", ()), ("g", ())] * 4
UNEVEN_TURNS = [("d", ()), ("d", ()), ("g", ()), ("d", ()), ("g", ()), ("g", ())]


@pytest.mark.parametrize(("workers", "kind"), [(1, "momentum"), (2, "adam"), (3, "momentum")])
def test_steps_in_turn_train_as_on_one_device(workers, kind):
    job = gan(kind)
    assert_as_alone(job, caramel.ARModel(job.context(), workers, check=True), IN_TURN)


@pytest.mark.parametrize("workers", [2, 3])
def test_what_is_pending_of_one_step_is_done_before_another(workers):
    job = gan()
    plain = caramel.ARModel(job.context(), workers)
    plans = {name: all_deferred(step) for name, step in plain.steps.items()}
    model = caramel.ARModel(job.context(), workers, plan=plans, check=True)
    assert all(step.plan.consequences.deferral.moved for step in model.steps.values())
    assert_as_alone(job, model, UNEVEN_TURNS)


def test_a_search_plans_each_step_by_itself():
    job = gan()
    model = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2), check=True)
    assert {name: step.decision.found is not None for name, step in model.steps.items()} == {
        "d": True,
        "g": True,
    }
    assert_as_alone(job, model, UNEVEN_TURNS, trials=caramel.TrialSettings(1, 1, 0))


def test_each_step_has_a_plan_of_its_own():
    job = gan()
    model = caramel.ARModel(job.context(), 2)
    assert model.plan is model.steps["d"].plan
    parameters = {
        name: {gradient.parameter for gradient in step.plan.job.gradients}
        for name, step in model.steps.items()
    }
    assert parameters == {"d": {"d1", "bias", "d2"}, "g": {"g1", "g2"}}
    with model.session(trials=None) as session:
        session.step(job.feed, step="g")
        session.step(job.feed, step="d")
        session.step(job.feed, step="g")
        assert [session.metrics(step=name).steps for name in ("d", "g")] == [1, 2]
        assert len(session.trace(1, job.feed, step="g")) == 1
        session.use("own", step="g")


# How steps are given ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda d, g: {"train_op": {"d": d[0], "g": g[0]}, "loss": {"d": d[1], "g": g[1]}}, "dg"),
        (lambda d, g: {"train_op": [d[0], g[0]], "loss": [d[1], g[1]]}, (0, 1)),
        (lambda d, g: {"steps": [d, g]}, (0, 1)),
        (lambda d, g: {"train_op": {"d": d[0], "g": g[0]}, "loss": d[1]}, "dg"),
    ],
)
def test_steps_are_given_as_mappings_or_lists(make, names):
    job = gan()
    context = caramel.Context(job.graph, **make(*job.steps.values()))
    assert tuple(context.steps) == tuple(names)
    assert [each.job.train_op for each in context.steps.values()] == ["d_train", "g_train"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing says what to train: give train_op and loss, or steps"),
        ({"train_op": "d_train"}, "loss must be a tensor.* not NoneType None"),
        ({"train_op": "d_train", "steps": {}}, "either steps, or train_op and loss"),
        ({"steps": {}}, "steps must be a mapping such as"),
        ({"steps": {"d": "d_train"}}, r"step 'd' must be a pair \(train op, loss\)"),
        ({"steps": {1: ("d_train", "x")}}, "a step is named by a string, not 1"),
        ({"train_op": {"d": "d_train"}, "loss": {"g": "x"}}, "has the steps 'd', but loss 'g'"),
        ({"train_op": "d_train", "loss": ["a", "b"]}, "several losses, but one train_op"),
    ],
)
def test_steps_that_are_given_wrongly_are_refused(given, message):
    with pytest.raises(GraphError, match=message):
        caramel.Context(gan().graph, **given)


def test_one_of_several_steps_has_to_be_named():
    job = gan()
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        for call in (session.step, session.trace, session.metrics, session.try_plans):
            with pytest.raises(FeedError, match="has the steps 'd', 'g': say which .* step='d'"):
                call()
        with pytest.raises(FeedError, match="no step 'x'; its steps are 'd', 'g'"):
            session.step(job.feed, step="x")


def test_the_only_step_needs_no_name():
    job = network("momentum")
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        session.step(job.feed, step=0)
        with pytest.raises(FeedError, match="one step, which has no name: leave out step='d'"):
            session.step(job.feed, step="d")


def test_one_plan_for_several_steps_is_refused():
    job = gan()
    plan = caramel.ARModel(job.context(), 2).plan
    with pytest.raises(PlanError, match="plan must be a mapping by step.*'d', 'g'"):
        caramel.ARModel(job.context(), 2, plan=plan)
    with pytest.raises(PlanError, match="plan: there is no step 'x'"):
        caramel.ARModel(job.context(), 2, plan={"x": plan})


def test_a_step_that_updates_nothing_is_refused():
    job = gan()
    with job.graph.as_default():
        nothing = tf.no_op("nothing")
    steps = {**job.steps, "n": (nothing, job.steps["d"][1])}
    with pytest.raises(GraphError, match="train_op 'nothing' updates nothing"):
        caramel.Context(job.graph, steps=steps)


def test_a_command_works_on_one_step(monkeypatch):
    job = gan()
    module = type("module", (), {"make": job.context, "one": lambda: job.context().steps["g"]})
    monkeypatch.setitem(sys.modules, "a_job_of_steps", module)
    with pytest.raises(GraphError, match=r"several steps, 'd', 'g'; .* context.steps\['d'\]"):
        load_job("a_job_of_steps:make")
    assert load_job("a_job_of_steps:one").context.job.train_op == "g_train"


# What steps do to each other ----------------------------------------------------------------------


def test_what_one_step_makes_differ_must_not_reach_the_parameters_of_another():
    job = gan()
    with job.graph.as_default():
        seen = tf1.get_variable("seen", [], tf.float64, trainable=False, use_resource=True)
        x = job.graph.get_tensor_by_name("x:0")
        with tf.control_dependencies([job.steps["d"][0]]):
            looks = tf.group(seen.assign(tf.reduce_mean(x)))
        loss = job.steps["g"][1]
        variables = [v for v in tf1.trainable_variables() if v.op.name in ("g1", "g2")]
        rate = tf.identity(seen * 0.1, name="rate")
        train = tf1.train.GradientDescentOptimizer(rate).minimize(loss, var_list=variables)
    steps = {"d": (looks, job.steps["d"][1]), "g": (train, loss)}
    with pytest.raises(DriftError, match="step 'g': replicas would drift apart.*rate"):
        caramel.ARModel(caramel.Context(job.graph, steps=steps), 2)


def test_steps_read_one_pipeline_in_turn():
    """Each step takes the next batch, as on one device."""
    rows = np.random.RandomState(0).randn(48, 3)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        iterator = tf1.data.make_initializable_iterator(
            tf.data.Dataset.from_tensor_slices(rows).batch(4)
        )
        x = iterator.get_next()
        a, b = (tf1.get_variable(n, [3], tf.float64, use_resource=True) for n in "ab")
        losses = [tf.reduce_mean(tf.square(tf.reduce_sum(x * v, 1) - 1)) for v in (a, b)]
        trains = [
            tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=[v])
            for loss, v in zip(losses, (a, b), strict=True)
        ]
        init = iterator.initializer
    context = caramel.Context(graph, train_op=trains, loss=losses)
    with caramel.ARModel(context, 2, check=True).session(trials=None) as session:
        initial = session.variables()
        session.run(init)
        for number in range(6):
            session.step(step=number % 2)
        values = session.variables()
    with graph.as_default(), tf1.Session(graph=graph) as plain:
        start_from(initial, plain)
        # Two workers take two batches of four at once: the same as one batch of eight.
        for number in range(6):
            both = np.concatenate([rows[8 * number : 8 * number + 4], rows[8 * number + 4 :][:4]])
            plain.run(trains[number % 2], {x: both})
        for name, variable in (("a", a), ("b", b)):
            np.testing.assert_allclose(values[name], plain.run(variable), rtol=1e-12)


def test_the_steps_of_a_job_share_checkpoints(tmp_path):
    job = gan()
    model = caramel.ARModel(job.context(), 2)
    with model.session(trials=None) as session:
        initial = session.variables()
        session.step(job.part(0), step="d")
        session.step(job.part(1), step="g")
        path = session.save(tmp_path / "model")
        session.step(job.part(2), step="d")
        session.restore(path)
        values = session.variables()
    expected, _ = alone(job, initial, [("d", ()), ("g", ())])
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-12, atol=1e-15)


def test_plans_of_steps_change_nothing_but_when():
    job = gan()
    plain = caramel.ARModel(job.context(), 2, pattern="shuffle", planner="plain")
    plans = {name: all_deferred(step) for name, step in plain.steps.items()}
    other = caramel.ARModel(job.context(), 2, plan=plans)
    (_, values, _, _), (_, others, _, _) = (
        trained(job, model, UNEVEN_TURNS) for model in (plain, other)
    )
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


@pytest.mark.parametrize(("workers", "deferring"), [(2, False), (3, True)])
def test_gradients_that_one_step_gathers_and_another_applies(workers, deferring):
    job = gathering()
    model = caramel.ARModel(job.context(), workers, check=True)
    assert len(model.steps["gather"].plan.job.gradients) == 2
    if deferring:
        plans = {"gather": all_deferred(model.steps["gather"])}
        model = caramel.ARModel(job.context(), workers, plan=plans, check=True)
    turns = [("gather", ()), ("gather", ()), ("apply", ()), ("clear", ())] * 2
    assert_as_alone(job, model, turns)
