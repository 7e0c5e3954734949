"""Losses that are no means, by all ways in which gradients are aggregated and batches come."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import caramel
from caramel.core.decision import FACTORS, Decided
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from tests.support.losses import SUMS, WEIGHTED, Batch, batch_feed, loss_network
from tests.support.networks import (
    Network,
    examples,
    network,
    optimized,
    parameter,
    relative_error,
    run_on_one_device,
    slow_facts,
    start_from,
    tf,
    tf1,
)

ADAM = lambda step: tf1.train.AdamOptimizer(0.02)  # noqa: E731
COUNTED = ["by the sum of a mask", "by the sum of a mask and a bit", "boolean_mask"]


def half_empty(number: int) -> dict[str, np.ndarray]:
    """Examples of which the first worker's all count nothing."""
    feed = batch_feed(number)
    feed["mask:0"] = (np.arange(number) >= (number + 1) // 2).astype(np.float64)
    return feed


def assert_trains(job: Network, model: caramel.ARModel, steps: int = 3) -> None:
    with model.session(trials=None) as session:
        initial = session.variables()
        got = [session.step(job.feed) for _ in range(steps)]
        values = session.variables()
    expected = run_on_one_device(job, initial, steps=steps)
    np.testing.assert_allclose(got, expected.losses, rtol=1e-12)
    assert relative_error(values, expected.values) < 1e-12


def with_groups(plan: Plan, **changes) -> Plan:
    groups = tuple(
        dataclasses.replace(group, **changes)
        if "pattern" not in changes or plan.gradient(group.members[0]).factors
        else group
        for group in plan.decision.groups
    )
    return plan.deciding(groups=groups)


@pytest.mark.parametrize("changes", [{"deferred": True}, {"pattern": FACTORS}])
@pytest.mark.parametrize("loss", [*COUNTED, "sum and decay"])
def test_deferred_gradients_and_factors_count_alike(loss, changes):
    made = (WEIGHTED | SUMS)[loss]
    job = loss_network(made, ADAM, feed=half_empty(11))
    plan = with_groups(caramel.ARModel(job.context(), workers=2).plan, **changes)
    assert_trains(job, caramel.ARModel(job.context(), workers=2, plan=plan, check=True))


@pytest.mark.parametrize("planner", ["search", "paper"])
def test_planned_gradients_count_alike(planner):
    job = loss_network(WEIGHTED["by the sum of a mask"], ADAM, number=11)
    options = {"planner": planner, "analyzers": slow_facts(3), "check": True}
    assert_trains(job, caramel.ARModel(job.context(), workers=3, **options))


def table_network(reduce, feed: dict[str, np.ndarray]) -> Network:
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        words = tf1.placeholder(tf.int32, [None, 4], name="words")
        mask = tf1.placeholder(tf.float64, [None], name="mask")
        rows = tf.nn.embedding_lookup(parameter("table", [20, 6]), words)
        each = tf.reduce_sum(tf.square(tf.reduce_mean(rows, 1) @ parameter("w", [6, 3]) - 1), 1)
        loss = reduce(each, mask)
        train_op, raw = optimized(loss, ADAM)
    return Network(graph, train_op, loss, feed, raw)


REDUCTIONS = {
    "sum": lambda each, mask: tf.reduce_sum(each),
    "by a mask": lambda each, mask: tf.reduce_sum(each * mask) / tf.reduce_sum(mask),
    "boolean_mask": lambda each, mask: tf.reduce_mean(tf.boolean_mask(each, mask > 0)),
}


@pytest.mark.parametrize("sparse", ["gather", "dense"])
@pytest.mark.parametrize("reduce", REDUCTIONS.values(), ids=REDUCTIONS)
def test_sparse_gradients_count_alike(reduce, sparse):
    words = np.random.RandomState(0).randint(0, 20, [11, 4])
    job = table_network(reduce, {"words:0": words, "mask:0": half_empty(11)["mask:0"]})
    assert_trains(job, caramel.ARModel(job.context(), workers=2, sparse=sparse, check=True))


@pytest.mark.parametrize("number", [11, 12])
@pytest.mark.parametrize("least", [1.0, 0.0])
def test_decay_amid_a_gradient_that_counts_by_a_mask_counts_once(least, number):
    def loss(b):
        table = b.weights[0]  # read twice, so that the decay is added amid its gradient
        again = tf.reduce_sum(tf.square(tf.tanh(b.x @ table)), 1)
        count = tf.maximum(tf.reduce_sum(b.mask), least) + 1e-3
        return tf.reduce_sum((b.each + again) * b.mask) / count + 30.0 * b.decay

    job = loss_network(loss, feed=half_empty(number))
    assert_trains(job, caramel.ARModel(job.context(), workers=2, check=True))
    assert_trains(job, caramel.ARModel(job.context(), workers=3, pattern="ring", check=True))


# Pipelines --------------------------------------------------------------------------------------

NUMBER, PART = 22, 3


class Read(Batch):
    """A batch that comes out of a pipeline."""

    def __init__(self, iterator) -> None:
        self.x, self.y, self.mask = iterator.get_next()
        self._compute()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(SUMS, "sum and decay"), (WEIGHTED, "a mean by a mean"), (WEIGHTED, "boolean_mask")],
)
def test_parts_that_pipelines_deliver_count_alike(kind, name):
    x, y = examples(NUMBER)
    mask = (np.arange(NUMBER) % 3 > 0).astype(np.float64)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        data = tf.data.Dataset.from_tensor_slices((x, y, mask)).batch(PART)
        iterator = tf1.data.make_initializable_iterator(data)
        loss = kind[name](Read(iterator))
        train_op, _ = optimized(loss, ADAM)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with caramel.ARModel(context, workers=2, check=True).session(trials=None) as session:
        initial = session.variables()
        session.run(iterator.initializer.name)
        got = [session.step() for _ in range(4)]
        values = session.variables()
    alone = loss_network(kind[name], ADAM)
    feeds = [
        {"x:0": x[i : i + 2 * PART], "y:0": y[i : i + 2 * PART], "mask:0": mask[i : i + 2 * PART]}
        for i in range(0, NUMBER, 2 * PART)
    ]
    with alone.graph.as_default(), tf1.Session() as session:
        variables = start_from(initial, session)
        expected = [session.run([alone.loss, alone.train_op], feed)[0] for feed in feeds]
        named = session.run(variables)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert relative_error(values, named) < 1e-12


# Steps that count differently -------------------------------------------------------------------


def two_steps(reduce):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.placeholder(tf.float64, [None, 6], name="x")
        mask = tf1.placeholder(tf.float64, [None], name="mask")
        a, b = parameter("a", [6, 3]), parameter("b", [6, 3])
        first = tf.reduce_sum(tf.square(x @ a - 1))
        second = reduce(tf.reduce_sum(tf.square(x @ b - 2), 1), mask)
        adam, descent = tf1.train.AdamOptimizer(0.01), tf1.train.GradientDescentOptimizer(0.001)
        train = descent.minimize(first, var_list=[a]), adam.minimize(second, var_list=[b])
    return graph, (first, second), train


@pytest.mark.parametrize("name", ["by a mask", "boolean_mask", "mean"])
def test_steps_whose_losses_count_differently_are_done_together(name):
    mean = lambda each, mask: tf.reduce_mean(each)  # noqa: E731
    graph, losses, train = two_steps(REDUCTIONS.get(name, mean))
    feed = half_empty(11)
    feed.pop("y:0")
    context = caramel.Context(graph, steps={"a": (train[0], losses[0]), "b": (train[1], losses[1])})
    with caramel.ARModel(context, workers=2).session() as session:
        initial = session.variables()
        got = [session.step(feed, [*losses, train[1]], step="a")[:2] for _ in range(3)]
        values = session.variables()
    with graph.as_default(), tf1.Session() as alone:
        variables = start_from(initial, alone)
        expected = [alone.run([*losses, train], feed)[:2] for _ in range(3)]
        named = alone.run(variables)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert relative_error(values, named) < 1e-12


# Plans ------------------------------------------------------------------------------------------


def test_a_plan_with_weights_is_read_as_it_was_written():
    plan = caramel.ARModel(loss_network(WEIGHTED["boolean_mask"]).context(), workers=2).plan
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.job.weights


def test_the_plan_of_a_mean_has_no_weights():
    plan = caramel.ARModel(network().context(), workers=2).plan
    assert not plan.job.weights
    assert not any(gradient.weight or gradient.shared for gradient in plan.job.gradients)


def test_gradients_that_count_differently_are_not_joined():
    plan = caramel.ARModel(loss_network(WEIGHTED["boolean_mask"]).context(), workers=2).plan
    first, *others = plan.job.gradients
    mixed = (dataclasses.replace(first, weight="sum"), *others)
    members = tuple(gradient.parameter for gradient in plan.job.gradients)
    group = dataclasses.replace(plan.decision.groups[0], members=members)
    with pytest.raises(PlanError, match="joins gradients that count differently"):
        Plan(dataclasses.replace(plan.job, gradients=mixed), Decided((group,)))


def test_a_gradient_alone_is_not_believed_against_others_of_the_same_differentiation(monkeypatch):
    """A rule that is wrong about an op must change no training."""
    from caramel.analyzers.loss import Scales
    from caramel.core.facts import SUM

    shown_by = Scales.shown_by

    def wrong(self, gradient):
        return SUM if gradient.parameter == "b2" else shown_by(self, gradient)

    monkeypatch.setattr(Scales, "shown_by", wrong)
    job = network("momentum")
    plan = caramel.ARModel(job.context(), workers=2).plan
    assert {gradient.weight for gradient in plan.job.gradients} == {""}
