"""Any loss that scales with the examples trains as on one device, and is returned as there."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import caramel
from caramel.core.errors import GraphError, LossScaleError
from tests.support.losses import MEANS, NEITHER, SUMS, WEIGHTED, batch_feed, loss_network
from tests.support.networks import assert_equals_one_device, in_turns, start_from, tf, tf1

ADAM = lambda step: tf1.train.AdamOptimizer(0.02)  # noqa: E731


def trains_alike(loss, workers, number, optimizer=None, *, tolerance=1e-12, **options):
    job = loss_network(loss, optimizer, number=number, feed=options.pop("feed", None))
    assert_equals_one_device(job, workers, steps=3, tolerance=tolerance, **options)


def tolerance_of(name: str) -> float:
    return 1e-5 if name.startswith("losses") else 1e-12  # tf.losses computes in float32


@pytest.mark.parametrize(("name", "workers", "number"), in_turns(SUMS, (2, 3), (12, 11, 12)))
def test_sums_are_found_and_added_up(name, workers, number):
    trains_alike(SUMS[name], workers, number, tolerance=tolerance_of(name))


@pytest.mark.parametrize(("name", "workers", "number"), in_turns(WEIGHTED, (2, 3), (11, 11, 12)))
def test_what_is_divided_by_a_count_counts_by_it(name, workers, number):
    trains_alike(WEIGHTED[name], workers, number, ADAM, tolerance=tolerance_of(name))


@pytest.mark.parametrize("name", MEANS)
def test_means_need_no_argument(name):
    trains_alike(MEANS[name], 2, 11, tolerance=tolerance_of(name))


@pytest.mark.parametrize("name", NEITHER)
def test_what_is_neither_is_refused_with_the_op_and_what_to_do(name):
    context = loss_network(NEITHER[name]).context()
    with pytest.raises(LossScaleError, match=r"(?s)'.*Context\(loss_reduction='mean'\)"):
        caramel.ARModel(context, workers=2)
    caramel.ARModel(context, workers=1)
    caramel.ARModel(loss_network(NEITHER[name]).context(loss_reduction="mean"), workers=2)


# Counts of nothing ------------------------------------------------------------------------------


def with_empty_part(number: int = 12) -> dict[str, np.ndarray]:
    feed = batch_feed(number)
    feed["mask:0"][: number // 2] = 0.0
    feed["mask:0"][number // 2 :] = 1.0
    return feed


@pytest.mark.parametrize(("name", "workers"), in_turns(WEIGHTED, (3, 2)))
def test_a_worker_whose_mask_is_empty_counts_nothing(name, workers):
    feed = with_empty_part()
    trains_alike(WEIGHTED[name], workers, 12, ADAM, feed=feed, tolerance=tolerance_of(name))


@pytest.mark.parametrize(
    "name", ["by the sum of a mask, or 1", "div_no_nan", "losses with weights"]
)
def test_a_batch_of_which_nothing_counts_changes_nothing(name):
    feed = batch_feed(8)
    feed["mask:0"][:] = 0.0
    job = loss_network(WEIGHTED[name], feed=feed)
    with caramel.ARModel(job.context(), workers=2).session() as session:
        before = session.variables()
        assert session.step(feed) == 0
        after = session.variables()
    for variable in job.raw:
        np.testing.assert_array_equal(after[variable], before[variable])


# What the user says -----------------------------------------------------------------------------


def hidden_count(b):
    @tf.function
    def loss(each, mask):
        return tf.reduce_sum(each * mask) / tf.reduce_sum(mask)

    tf.reduce_sum(b.mask, name="count")
    return loss(b.each, b.mask)


def test_a_count_inside_a_function_is_asked_for():
    job = loss_network(hidden_count)
    with pytest.raises(LossScaleError, match=r"in a function.*Context\(loss_weight=count\)"):
        caramel.ARModel(job.context(), workers=2)


def test_the_user_can_name_the_count():
    job = loss_network(hidden_count, number=11)
    gradients = [(gradient, name) for name, gradient in job.raw.items()]
    assert_equals_one_device(job, 2, steps=3, loss_weight="count", gradients=gradients)


def test_what_the_user_says_wins_with_a_warning(caplog):
    job = loss_network(SUMS["sum"])
    with caplog.at_level(logging.WARNING):
        model = caramel.ARModel(job.context(loss_reduction="mean"), workers=2)
    assert model.plan.job.reduction == "mean"
    assert "is a sum over the examples, but loss_reduction='mean' was given" in caplog.text


def test_a_sum_that_is_found_is_told(caplog):
    with caplog.at_level(logging.INFO):
        model = caramel.ARModel(loss_network(SUMS["sum"]).context(), workers=2)
    assert model.plan.job.reduction == "sum"
    assert "is a sum over the examples: gradients are added up" in caplog.text


def test_a_weight_that_is_no_scalar_is_refused():
    job = loss_network(MEANS["mean"])
    with pytest.raises(GraphError, match="loss_weight 'mask:0' must be a scalar number"):
        job.context(loss_weight="mask")
    with pytest.raises(GraphError, match="give loss_reduction or loss_weight, not both"):
        job.context(loss_weight="mask", loss_reduction="sum")


# Other results ----------------------------------------------------------------------------------


def fetched(loss, extra) -> tuple[list, list]:
    """Scalars on one device and on two workers, of one uneven step."""
    made = {}

    def both(b):
        own = loss(b)
        made["extra"] = extra(b)
        return own

    job = loss_network(both, number=11)
    with caramel.ARModel(job.context(), workers=2).session() as session:
        initial = session.variables()
        got = session.step(job.feed, [job.loss, made["extra"]])
    with job.graph.as_default(), tf1.Session() as alone:
        start_from(initial, alone)
        expected = alone.run([job.loss, made["extra"]], job.feed)
    return got, expected


@pytest.mark.parametrize("name", ["sum", "sum and decay", "sum by a constant"])
def test_a_fetched_sum_is_that_of_the_whole_batch(name):
    got, expected = fetched(MEANS["mean"], SUMS[name])
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_fetched_weighted_mean_is_that_of_the_whole_batch():
    counts = {}

    def loss(b):
        counts["count"] = tf.reduce_sum(b.mask)
        return tf.reduce_sum(b.each * b.mask) / counts["count"]

    def extra(b):
        return tf.reduce_sum(tf.square(b.error[:, 0]) * b.mask) / counts["count"]

    got, expected = fetched(loss, extra)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
