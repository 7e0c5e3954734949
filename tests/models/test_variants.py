"""A session changes between plans from step to step, and nothing shows it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caramel
from caramel.core.errors import PlanError, TrafficError
from caramel.core.names import TensorRef, kept_flat, read_back, tensor_in_replica
from caramel.models.assembly import Assembly
from caramel.models.plan_choice import OWN
from tests.support.control_flow import ONE_CASE_EACH, plain_network
from tests.support.deferring import EVERY, JOBS, deferred, failing
from tests.support.embeddings import METHODS, embedding
from tests.support.networks import (
    Network,
    cross_entropy,
    in_turns,
    inputs,
    network,
    partly,
    perceptron,
    relative_error,
    replicas_of,
    run_on_one_device,
    tf,
    tf1,
    wide,
)
from tests.support.pending_updates import assert_equal, assert_errors_lose_no_updates
from tests.support.pipelines import job as pipeline_job
from tests.support.pipelines import numbers, until_the_end
from tests.support.variants import ALL, GROUPED, SOME, STEPS, in_turn, plain_training, with_variants


def assert_same_bits(job, workers, *, every, own=None, feeds=None):
    """Training that changes its plan every few steps does what the plain plan does."""
    losses, values = plain_training(job, workers, feeds=feeds)
    model = with_variants(job.context(), workers, own=own)
    with model.session() as session:
        initial = session.variables()
        for step in range(STEPS):
            session.use(in_turn(model, step, every))
            assert session.step(feeds[step] if feeds else job.feed) == losses[step], step
        for own in replicas_of(session):
            assert_equal(own, values)
        assert_equal(session.variables(), values)
    return initial, values


# Exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "own", "optimizer"),
    partly(
        pytest.mark.onednn,
        in_turns([1, 2, 3] * 2, [None, ALL], [*["momentum"] * 2, *["adam"] * 2]),
        every=2,
    ),
)
def test_changing_the_plan_gives_the_bits_of_the_plain_plan(optimizer, own, every):
    job = network(optimizer, model=wide, dtype=tf.float32)
    assert_same_bits(job, 3 if every == 2 else 2, every=every, own=own)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "piecewise"])
def test_changing_the_plan_trains_as_one_device(optimizer):
    job = network(optimizer)
    initial, values = assert_same_bits(job, 3, every=2)
    expected = run_on_one_device(job, initial, steps=STEPS)
    assert relative_error(values, expected.values) < 1e-12


@pytest.mark.parametrize("name", JOBS)
def test_whatever_follows_the_update_gives_the_same_bits(name):
    assert_same_bits(JOBS[name](), 2, every=2, own=ALL if name == "averaged" else None)


def test_batches_of_all_sizes_count_as_they_do():
    job = network("momentum")
    sizes = [40, 39, 38, 7]
    feeds = [
        {name: value[: sizes[step % 4]] for name, value in job.feed.items()}
        for step in range(STEPS)
    ]
    assert_same_bits(job, 3, every=3, feeds=feeds)


@pytest.mark.parametrize(("model", "v2"), ONE_CASE_EACH)
def test_loops_conditionals_functions_and_tables_are_those_of_each_plan(model, v2, control_flow):
    control_flow(v2)
    job = plain_network(model)
    losses, values = plain_training(job, 2, steps=4)
    plain = caramel.ARModel(job.context(), 2, pattern="shuffle", check=True)
    plain.add_variant(deferred(plain, "last"), "other")
    with plain.session() as session:
        for step in range(4):
            session.use(in_turn(plain, step, 1))
            assert session.step(job.feed) == losses[step]
        assert_equal(session.variables(), values)


@pytest.mark.parametrize("sparse", METHODS)
def test_rows_of_sparse_gradients_are_those_of_each_plan(sparse):
    job = embedding("adam")
    model = caramel.ARModel(job.context(), 3, pattern="shuffle", sparse=sparse, check=True)
    model.add_variant(deferred(model, "every"), ALL)
    model.add_variant(deferred(model, "some"), SOME)
    with model.session() as session:
        initial = session.variables()
        for step in range(STEPS):
            session.use(in_turn(model, step, 2))
            session.step(job.feed)
        expected = run_on_one_device(job, initial, steps=STEPS)
        assert relative_error(session.variables(), expected.values) < 1e-12


# Shared state ------------------------------------------------------------------------------------


def test_an_input_pipeline_goes_on_where_the_plan_before_left_it(tmp_path):
    job = pipeline_job(lambda: numbers(24).batch(2), averages=True)
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    fetches = {"ids": job.ids, "loss": job.loss}
    model = with_variants(context, 2)
    with model.session() as session, caramel.ARModel(context, 2).session() as plain:
        session.restore(plain.save(tmp_path / "initial"))
        for _ in range(2):  # epochs
            turns = iter(range(100))

            def step(turns=turns):
                session.use(in_turn(model, next(turns), 2))
                return session.step(fetches=fetches)

            for each in (plain, session):
                each.run(job.iterator.initializer)
            expected = until_the_end(lambda: plain.step(fetches=fetches))
            found = until_the_end(step)
            assert [np.ravel(r["ids"]).tolist() for r in found] == [
                np.ravel(r["ids"]).tolist() for r in expected
            ]
            assert [r["loss"] for r in found] == [r["loss"] for r in expected]
            assert len(found) == 6
            assert_equal(session.variables(), plain.variables())
            for worker in range(2):  # the moving averages, which differ
                assert_equal(session.variables(worker=worker), plain.variables(worker=worker))


def test_whatever_looks_at_variables_sees_all_updates(tmp_path):
    job = network("momentum")
    context = job.context()
    model = with_variants(context, 2)
    with model.session() as session, caramel.ARModel(context, 2).session() as plain:
        session.restore(plain.save(tmp_path / "initial"))
        looks = [
            lambda s: s.variables(),
            lambda s: s.variables(worker=1),
            lambda s: {"loss": s.run(job.loss, job.feed)},
            lambda s: {},
        ]
        for step in range(3 * len(looks)):
            session.use(in_turn(model, step, 2))
            assert session.step(job.feed) == plain.step(job.feed)
            assert_equal(looks[step % 4](session), looks[step % 4](plain))


def test_checkpoints_hold_the_users_variables_whatever_the_plan(tmp_path):
    job = network("adam")
    context = job.context()
    model = with_variants(context, 2)
    with model.session() as session, caramel.ARModel(context, 2).session() as plain:
        session.restore(plain.save(tmp_path / "initial"))
        for number, name in enumerate(model.variants):
            session.use(name)
            for _ in range(2):
                assert session.step(job.feed) == plain.step(job.feed)
            path = session.save(tmp_path / f"saved-{number}")
            names = [name for name, _ in tf.train.list_variables(path)]
            assert sorted(names) == sorted(v.full_name for v in model.plan.job.variables if v.saved)
            session.step(job.feed)
            session.restore(path)  # while something is pending
        assert session.step(job.feed) == plain.step(job.feed)
        assert_equal(session.variables(), plain.variables())


def test_evaluation_uses_the_mean_of_local_variables_whatever_the_plan():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(12)
        mean = tf1.get_variable("mean", [], tf.float64, tf1.zeros_initializer(), trainable=False)
        loss = cross_entropy(perceptron(x), y)
        train_op = tf.group(
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss),
            mean.assign_sub(0.5 * (mean - tf.reduce_mean(x))),
        )
        tf.identity(mean, name="seen_mean")
    model = with_variants(Network(graph, train_op, loss, feed).context(), 3)
    with model.session() as session:
        for step in range(8):
            session.use(in_turn(model, step, 1))
            session.step(feed)
            own = [float(session.variables(worker=worker)["mean"]) for worker in range(3)]
            assert len(set(own)) == 3
            assert session.run("seen_mean:0") == pytest.approx(np.mean(own), rel=1e-12)


def test_fetches_are_those_of_the_step_under_every_plan(tmp_path):
    job = network("momentum")
    context = job.context()
    model = with_variants(context, 2)
    fetches = [job.loss, *job.raw.values()]
    with model.session() as session, caramel.ARModel(context, 2).session() as plain:
        session.restore(plain.save(tmp_path / "initial"))
        for step in range(8):
            session.use(in_turn(model, step, 1))
            np.testing.assert_equal(session.step(job.feed, fetches), plain.step(job.feed, fetches))


def test_random_ops_of_each_plan_draw_something_else():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        w = tf1.get_variable("w", [3], use_resource=True)
        noise = tf.identity(tf.random.uniform([]), name="noise")
        loss = noise * tf.reduce_sum(w) * tf.reduce_mean(tf1.placeholder(tf.float32, [None], "x"))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    model = caramel.ARModel(context, 2)
    model.add_variant(model.plan, "again")
    drawn, noises = [], [tensor_in_replica(worker, TensorRef("noise")) for worker in range(2)]
    with model.session() as session:
        for name in (OWN, "again"):
            session.use(name)
            drawn += session._running.controllers.active.executor._runner.run(
                noises, [], {}, "drawing"
            )
    assert len({float(value) for value in drawn}) == 4


# Errors ------------------------------------------------------------------------------------------


def test_an_error_in_a_step_does_not_lose_the_updates_of_another_plans_step(tmp_path):
    job = failing()
    context = job.context()
    plain, model = caramel.ARModel(context, 2), with_variants(context, 2)
    bad = {"x:0": np.full_like(job.feed["x:0"], np.nan)}
    use = lambda session, step: session.use(in_turn(model, step, 2))  # noqa: E731
    assert_errors_lose_no_updates(job, bad, plain, model, tmp_path, told="bad input", use=use)


def test_an_error_in_a_deferred_update_is_raised_by_the_change_of_the_plan():
    job = failing()
    model = with_variants(job.context(), 2)
    with model.session(step_timeout_s=60) as session:
        session.use(ALL)
        session.step(job.feed)
        session.step({**job.feed, "poison:0": np.nan})
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad gradient"):
            session.use(OWN)
        assert session.metrics().plan == ALL
        session.use(OWN)
        session.step(job.feed)
        assert np.isfinite(session.variables()["w1"]).all()


def test_a_plan_that_nobody_added_cannot_be_used():
    job = network()
    model = with_variants(job.context(), 2)
    with model.session() as session:
        with pytest.raises(PlanError, match="no plan called 'best'; there are 'own', 'all defer"):
            session.use("best")
        with pytest.raises(PlanError, match="no plan called 'best'"):
            session.try_plans(plans=[OWN, "best"])
        session.step(job.feed)


def test_a_plan_of_another_job_or_a_taken_name_is_refused_and_leaves_the_graph():
    model = caramel.ARModel(network().context(), 2)
    other = caramel.ARModel(network(model=wide).context(), 2)
    nodes = len(model.graph.get_operations())
    with pytest.raises(PlanError, match="the plan does not fit the job"):
        model.add_variant(other.plan, "other")
    with pytest.raises(PlanError, match="'own' is empty or taken"):
        model.add_variant(model.plan, OWN)
    with pytest.raises(PlanError, match="'' is empty or taken"):
        model.add_variant(model.plan, "")
    assert len(model.graph.get_operations()) == nodes
    assert list(model.variants) == [OWN]


def test_every_plan_is_audited_before_it_gets_into_the_graph(monkeypatch):
    model = caramel.ARModel(network().context(), 2)
    nodes = len(model.graph.get_operations())

    def found_wanting(*args):
        raise TrafficError("7 bytes cross")

    monkeypatch.setattr(caramel.models.assembly, "audit", found_wanting)
    with pytest.raises(TrafficError, match="7 bytes cross"):
        model.add_variant(deferred(model, "every"), "other")
    assert len(model.graph.get_operations()) == nodes
    assert list(model.variants) == [OWN]


# Graph and session -------------------------------------------------------------------------------


@pytest.mark.onednn
def test_a_plan_that_is_added_while_a_session_runs_can_be_used():
    job = network("adam", dtype=tf.float32)
    losses, values = plain_training(job, 2, steps=8)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle")
    with model.session() as session:
        for step in range(8):
            if step == 3:
                model.add_variant(deferred(model, "every"), "later")
                session.use("later")
            assert session.step(job.feed) == losses[step]
        assert session.metrics().plan == "later"
        assert_equal(session.variables(), values)


def test_threads_that_need_the_same_plan_get_one_graph_of_it(monkeypatch):
    model = caramel.ARModel(network("momentum", model=wide).context(), 2, planner="plain")
    variants, add = model.variants, Assembly.add
    name = variants.like(deferred(model, EVERY), "deferred")
    under_way, is_second = threading.Event(), threading.Event()

    def slow(assembly, context, plan):
        if under_way.is_set():
            is_second.set()
        under_way.set()
        is_second.wait(0.5)  # for the other thread, which must not come here
        return add(assembly, context, plan)

    monkeypatch.setattr(Assembly, "add", slow)
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(variants.ensure, [name, name]))
    assert made[0] is made[1]
    assert not is_second.is_set()


def test_only_a_plans_own_state_is_apart():
    model = with_variants(network("momentum").context(), 2)
    shared = {}
    for op in model.graph.get_operations():
        if "shared_name" in op.node_def.attr:
            shared.setdefault(op.get_attr("shared_name").decode(), []).append(op.name)
    assert "caramel_variant_1/worker_0/w1" in shared["worker_0/w1"]
    assert len(shared["worker_0/w1/Momentum"]) >= 4
    for name, users in shared.items():
        if "caramel/" in name:
            assert users == [name]
    assert any(name.startswith("caramel_variant_3/caramel/two/worker_1/kept") for name in shared)


def test_the_traffic_of_every_plan_is_known():
    model = with_variants(network("momentum", model=wide).context(), 2)
    assert model.variants[OWN].traffic == model.traffic
    assert all(variant.traffic.bytes == model.traffic.bytes for variant in model.variants.values())
    assert [variant.number for variant in model.variants.values()] == [0, 1, 2, 3]


def test_one_plan_alone_makes_the_graph_it_made_before():
    context = network("momentum").context()
    graph = caramel.ARModel(context, 2).graph.as_graph_def()
    assert not [node.name for node in graph.node if node.name.startswith("caramel_variant")]


@pytest.mark.onednn
def test_what_an_abandoned_plan_keeps_is_freed():
    job = network("momentum", dtype=tf.float32)
    losses, values = plain_training(job, 2, steps=8)
    model = with_variants(job.context(), 2)
    with model.session() as session:
        session.use(GROUPED)
        for step in range(4):
            assert session.step(job.feed) == losses[step]
        runner = session._running.controllers.active.executor._runner
        kept = read_back(kept_flat("two", 1))
        session.variables()
        assert len(runner.run([], [kept], {}, "reading what is kept")) == 0
        session.use(OWN)
        with pytest.raises(tf.errors.OpError):
            runner.run([], [kept], {}, "reading what is kept")
        assert session.step(job.feed) == losses[4]
        session.use(GROUPED)
        for step in range(5, 8):
            assert session.step(job.feed) == losses[step]
        assert_equal(session.variables(), values)


def test_traced_steps_have_the_names_of_the_plans_own_graph():
    job = network("momentum", model=wide)
    model = with_variants(job.context(), 2)
    with model.session() as session:
        session.use(SOME)
        timeline = session.trace(2, job.feed)[-1]
    names = {span.name for span in timeline.spans}
    assert not [name for name in names if "variant" in name]
    assert any(name.startswith("caramel/") for name in names)
    assert {span.worker for span in timeline.spans} == {0, 1}
