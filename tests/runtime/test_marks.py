"""Steps mark how far they have come, and nothing else is different for that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import caramel
from caramel.core.devices import task_of
from caramel.core.graph_reader import read_graph
from caramel.core.names import is_mark, marks_read, server_place
from caramel.core.plan import Plan
from caramel.models.plan_choice import OWN
from caramel.modifiers.defer import moved_ops, step_ops
from caramel.planning.search.split import split_gradients
from caramel.runtime.execution.calls import DEFAULT
from caramel.runtime.stalls.diagnosis import Marks
from caramel.runtime.steps.marks import Done
from tests.support.deferring import EVERY, SOME, deferred, failing
from tests.support.networks import (
    Network,
    cross_entropy,
    inputs,
    network,
    parameter,
    partly,
    replicas_of,
    tf,
    tf1,
    wide,
)
from tests.support.pending_updates import assert_equal
from tests.support.variants import ALL, GROUPED, grouped, with_variants


def embedding(empty_too=True):
    """A job with a sparse gradient, and if asked for with a parameter that has no elements."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        rows = tf.gather(parameter("rows", [7, 3]), tf.cast(tf.abs(x[:, 0]), tf.int32))
        loss = cross_entropy(x @ parameter("w", [6, 3]) + rows, y)
        if empty_too:
            loss += tf.reduce_sum(parameter("empty", [0]) * tf.reduce_mean(x))
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
    return Network(graph, train_op, loss, feed)


PARTS = "parts"


def some_deferred(plan):
    """The plan with every second group deferred."""
    groups = [
        dataclasses.replace(g, deferred=i % 2 == 1) for i, g in enumerate(plan.decision.groups)
    ]
    return plan.deciding(groups=tuple(groups))


JOBS = {
    "dense": lambda: network("adam", "clip_by_global_norm", dtype=tf.float32),
    "split": lambda: network("momentum", model=wide, dtype=tf.float32),
    "sparse": embedding,
    "all sparse": lambda: embedding(empty_too=False),
}
CHANGES = {
    "plain": lambda model: model.plan,
    EVERY: lambda model: deferred(model, EVERY),
    SOME: lambda model: deferred(model, SOME),
    GROUPED: grouped,
    PARTS: lambda model: some_deferred(split_gradients(model.plan, 1700)),
}


def models(job, change, workers=2):
    """The same plan with marks and without."""
    context = job.context()
    plan = CHANGES[change](caramel.ARModel(context, workers, pattern="shuffle"))
    return [
        caramel.ARModel(context, workers, plan=plan, marks=marks, check=True)
        for marks in (True, False)
    ]


# Nothing else is different ----------------------------------------------------------------------


def train(model, job, steps=6):
    with model.session(trials=None) as session:
        losses = [session.step(job.feed) for _ in range(steps)]
        return losses, session.variables(), replicas_of(session)


@pytest.mark.parametrize(
    ("name", "change"),
    partly(
        pytest.mark.onednn,
        [
            *(("dense", change) for change in CHANGES if change != PARTS),
            *(("split", change) for change in CHANGES),
            ("sparse", "plain"),
            ("all sparse", EVERY),
        ],
        every=4,
    ),
)
def test_marks_change_no_bit_and_send_nothing(name, change):
    job = JOBS[name]()
    marked, unmarked = models(job, change)
    assert marked.traffic == unmarked.traffic
    losses, values, replicas = train(marked, job)
    expected_losses, expected, expected_replicas = train(unmarked, job)
    assert losses == expected_losses
    assert_equal(values, expected)
    for replica, other in zip(replicas, expected_replicas, strict=True):
        assert_equal(replica, other)


def test_marks_are_ops_of_their_worker_only():
    model, unmarked = models(JOBS["dense"](), SOME, workers=3)
    graph = read_graph(model.graph.as_graph_def(), {})
    marks = [op for op in graph if is_mark(op.name)]
    without = [op.name for op in unmarked.graph.get_operations()]
    assert not any(is_mark(name) for name in without)
    assert len(graph.ops) == len(without) + len(marks)
    # For each group a number and two marks; a worker's own: two variables with their reads and
    # resets, two numbers, and what waits for all marks of a step and of its moved part.
    assert len(marks) == 3 * (3 * len(model.plan.decision.groups) + 2 * 3 + 2 + 2)
    for op in marks:
        for source in op.sources:
            assert task_of(graph[source].device) == task_of(op.device)
    for op in graph:
        if not is_mark(op.name):
            assert not any(is_mark(source) for source in op.sources)


def test_marks_are_no_variables_of_the_user(tmp_path):
    job = JOBS["dense"]()
    model, _ = models(job, SOME)
    with model.session(trials=None) as session:
        session.step(job.feed)
        assert not any("mark" in name for name in session.variables())
        path = session.save(tmp_path / "model")
        assert not any("mark" in name for name, _ in tf.train.list_variables(path))


def test_one_worker_and_models_without_marks_have_none():
    job = JOBS["dense"]()
    for model in (
        caramel.ARModel(job.context(), 1),
        caramel.ARModel(job.context(), 2, marks=False),
    ):
        assert model.plan.marked_groups == ()
        assert not any(is_mark(op.name) for op in model.graph.get_operations())


def test_a_plan_keeps_whether_it_marks_but_a_model_decides():
    job = JOBS["dense"]()
    model, unmarked = models(job, SOME)
    assert Plan.from_json(model.plan.to_json()) == model.plan
    other = caramel.ARModel(job.context(), 2, plan=unmarked.plan)
    assert other.plan.job.marks
    assert other.plan == model.plan


# What is marked ---------------------------------------------------------------------------------


def counts(session, worker=0):
    """How often each group was ready and has arrived on a worker, by the plan in use."""
    runner = session._running.controllers.active.executor._runner
    kinds = ("ready", "arrived")
    return [v.tolist() for v in runner.run([marks_read(worker, k) for k in kinds], [], {}, "marks")]


def test_each_step_marks_each_group_once():
    job = JOBS["sparse"]()
    model, _ = models(job, "plain")
    assert [group.members[0] for group in model.plan.marked_groups] == ["rows", "w"]
    with model.session(trials=None) as session:
        marks = session._running.controllers.active.executor.marks
        assert counts(session) == [[0, 0], [0, 0]]
        for step in range(1, 4):
            session.step(job.feed)
            assert [counts(session, worker) for worker in range(2)] == [[[step] * 2] * 2] * 2
            assert marks.done == Done(step)
        names = frozenset(group.name for group in model.plan.marked_groups)
        assert marks.read(1, Done(3)) == Marks()
        assert marks.read(1, Done(2)) == Marks(names, names)


def test_deferred_groups_arrive_in_the_next_step():
    job = JOBS["dense"]()
    model, _ = models(job, SOME)
    assert [group.deferred for group in model.plan.decision.groups] == [False, True, False, True]
    with model.session(trials=None) as session:
        marks = session._running.controllers.active.executor.marks
        session.step(job.feed)
        assert counts(session) == [[1, 1, 1, 1], [1, 0, 1, 0]]
        session.step(job.feed)
        assert counts(session) == [[2, 2, 2, 2], [2, 1, 2, 1]]
        assert marks.done == Done(2, 1)
        session.variables()  # the rest of the last step is done
        assert counts(session) == [[2, 2, 2, 2], [2, 2, 2, 2]]
        assert marks.done == Done(2, 2)
        first, second, third, fourth = (group.name for group in model.plan.decision.groups)
        assert marks.read(0, Done(1, 2)) == Marks(
            frozenset([first, second, third, fourth]), frozenset([first, third])
        )


def test_parts_of_a_gradient_are_marked_as_their_groups_are():
    job = JOBS["split"]()
    model, _ = models(job, PARTS)
    assert len(model.plan.marked_groups) > len(model.plan.job.gradients)
    with model.session(trials=None) as session:
        for _ in range(2):
            session.step(job.feed)
        ready, arrived = counts(session)
        assert ready == [2] * len(model.plan.decision.groups)
        assert arrived == [1 if group.deferred else 2 for group in model.plan.decision.groups]


def test_marks_are_right_again_after_a_failed_step():
    job = failing()
    model, _ = models(job, SOME)
    bad = {**job.feed, "x:0": np.full_like(job.feed["x:0"], np.nan)}
    with model.session(trials=None) as session:
        session.step(job.feed)
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad input"):
            session.step(bad)
        for step in range(1, 3):
            session.step(job.feed)
            assert session._running.controllers.active.executor.marks.done == Done(step, step - 1)
            assert counts(session)[0] == [step] * 4


def test_each_plan_of_a_session_has_its_own_marks():
    job = network("momentum")
    model = with_variants(job.context(), 2)
    assert all(variant.plan.job.marks for variant in model.variants.values())
    with model.session() as session:
        for plan, steps in ((OWN, 3), (ALL, 2), (GROUPED, 1), (OWN, 1)):
            session.use(plan)
            for _ in range(steps):
                session.step(job.feed)
        assert counts(session) == [[4] * 4, [4] * 4]
        session.use(ALL)
        assert counts(session) == [[2] * 4, [2] * 4]


def test_marks_are_run_by_one_op_for_each_part_and_worker():
    model, unmarked = models(JOBS["dense"](), SOME)
    assert len(step_ops(model.plan)) == len(step_ops(unmarked.plan)) + 2
    assert len(moved_ops(model.plan)) == len(moved_ops(unmarked.plan)) + 2


def test_with_parameter_servers_workers_mark_what_they_receive_and_servers_what_they_add():
    job = network("momentum")
    model = caramel.PSModel(job.context(), 2, 2, ordering="tic", check=True)
    pulls = [pull.variable for pull in model.plan.decision.pulls]
    groups = [group.name for group in model.plan.marked_groups]
    with model.session(trials=None) as session:
        for _ in range(3):
            session.step(job.feed)
        marks = session._running.controllers.active.executor.marks
        for number in range(2):
            assert marks.read(number, Done(2)) == Marks(frozenset(groups), frozenset(pulls))
            assert marks.read(number, Done(3)) == Marks()
        added = [marks.read(server_place(server), Done(2)) for server in range(2)]
        assert all(each.is_server and not each.ready for each in added)
        assert sorted(name for each in added for name in each.arrived) == sorted(groups)
        assert marks.are_complete(DEFAULT)
        assert not any("mark" in name for name in session.variables())
    unmarked = caramel.PSModel(job.context(), 2, 2, marks=False)
    assert unmarked.plan.marked == {}
    inference = caramel.PSModel(job.context(), 2, 2, mode="inference", ordering="tic")
    assert list(inference.plan.marked) == [0, 1]
