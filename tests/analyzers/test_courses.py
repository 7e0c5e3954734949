"""How a loss goes with the examples is read off the graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.examples.courses import EXAMPLES, PER_EXAMPLE, ROOT, Course, Kind
from caramel.analyzers.examples.examples import Examples
from caramel.capture.context import Context
from caramel.core.facts import SUM, LossScale, LossScales, SharedTerm
from caramel.core.names import parse_tensor
from tests.support import losses
from tests.support.models import MODELS, WITH_CONTROL_FLOW
from tests.support.networks import (
    Network,
    built_network,
    control_flow_version,
    in_turns,
    l2,
    network,
    tf,
    tf1,
)


def course_of(job: Network) -> Course:
    (course,) = courses_of(job, [job.loss])
    return course


def courses_of(job: Network, tensors: Iterable[Any]) -> Iterator[Course]:
    context = job.context()
    found = Analysis([context.op_graph, context.job], ANALYZERS).get(Examples)
    return (found.of(parse_tensor(tensor.name)) for tensor in tensors)


def is_proportional(course: Course) -> bool:
    return course.kind is Kind.SUM and (not course.marks or ROOT in course.marks)


def is_mean(course: Course) -> bool:
    return is_proportional(course) and course.powers == PER_EXAMPLE


def is_sum(course: Course) -> bool:
    return is_proportional(course) and not course.powers


@pytest.mark.parametrize("name", losses.MEANS)
def test_a_mean_is_known(name):
    course = course_of(losses.loss_network(losses.MEANS[name]))
    assert is_mean(course), course


@pytest.mark.parametrize("name", losses.SUMS)
def test_a_sum_is_known(name):
    course = course_of(losses.loss_network(losses.SUMS[name]))
    assert is_sum(course), course
    assert course.affine == ("decay" in name)


@pytest.mark.parametrize("name", losses.WEIGHTED)
def test_what_a_sum_is_divided_by_is_known(name):
    course = course_of(losses.loss_network(losses.WEIGHTED[name]))
    assert is_proportional(course), course
    (count,) = [count for count, _ in course.powers if count != EXAMPLES]
    assert count.of == "rows" or count.leaves


@pytest.mark.parametrize("name", losses.NEITHER)
def test_what_is_neither_is_known(name):
    course = course_of(losses.loss_network(losses.NEITHER[name]))
    assert not is_proportional(course), course
    assert course.why


@pytest.mark.parametrize(
    ("model", "version"),
    [*in_turns(MODELS, ["v1", "v2"]), *itertools.product(WITH_CONTROL_FLOW, ["v1", "v2"])],
)
def test_networks_are_followed_through_all_their_ops(model, version):
    def both(losses):
        totals.append(tf.reduce_sum(losses))
        return tf.reduce_mean(losses)

    totals = []
    with control_flow_version(version):
        job = built_network(model=model, reduce=both, decayed_loss=True)
    with job.graph.as_default():
        (total,) = totals
        decayed = total + l2(tf1.trainable_variables())
    mean, total = courses_of(job, [job.loss, decayed])
    assert is_mean(mean), mean
    assert not mean.affine
    assert is_sum(total), total
    assert total.affine


@pytest.mark.parametrize("model", MODELS)
def test_a_gradient_goes_with_the_examples_as_its_loss(model):
    job = network(model=model)
    for course in courses_of(job, job.raw.values()):
        assert is_mean(course), course


def test_a_loss_may_have_a_thousand_decays_that_were_added_one_by_one():
    with tf.Graph().as_default() as graph:
        batch = tf.compat.v1.placeholder(tf.float32, [None, 2])
        weights = tf.compat.v1.get_variable("w", [2, 2], use_resource=True)
        loss = tf.reduce_sum(batch @ weights)
        decay = tf.nn.l2_loss(weights)
        # Their gradient, which takes long to make, is that of one.
        trained = loss + 1200.0 * decay
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(trained)
        for _ in range(1200):
            loss += decay
    context = Context(graph, train_op=train_op, loss=loss)
    scales = Analysis([context.op_graph, context.job], ANALYZERS).get(LossScales)
    (scale,) = scales.of.values()
    assert scale == LossScale(SUM, (SharedTerm().times(parse_tensor(decay.name)),) * 1200)
