"""Batch norm multiplies a parameter by a statistic of the batch; so does its gradient."""

from __future__ import annotations

import pytest
import tensorflow as tf

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import GradientFrontier

tf1 = tf.compat.v1


def normalised(process=lambda gradient, inverse: gradient):
    """A layer with batch norm written out; its context, and its gradients' names by variable."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        kernel = tf1.get_variable("kernel", [3, 5])
        scale = tf1.get_variable("scale", [5])
        offset = tf1.get_variable("offset", [5])
        values = x @ kernel
        mean, variance = tf.nn.moments(values, [0])
        inverse = tf.math.rsqrt(variance + 1e-3)
        factor = inverse * scale
        loss = tf.reduce_mean(tf.square(values * factor + (offset - mean * factor) - 1))
        variables = [kernel, scale, offset]
        gradients = tf.gradients(loss, variables)
        names = {v.op.name: g.name for v, g in zip(variables, gradients, strict=True)}
        gradients[1] = process(gradients[1], inverse)
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).apply_gradients(
            zip(gradients, variables, strict=True)
        )
    return caramel.Context(graph, train_op=train_op, loss=loss), names


def frontier(context):
    return Analysis([context.op_graph, context.job], ANALYZERS).get(GradientFrontier)


def test_the_gradient_of_the_scale_is_found():
    context, names = normalised()
    found = {cut.gradient.parameter: str(cut.gradient.values) for cut in frontier(context).cuts}
    assert found == names


def test_a_gradient_that_is_multiplied_by_the_statistic_once_more_is_ambiguous():
    context, _ = normalised(lambda gradient, inverse: gradient * inverse)
    with pytest.raises(AmbiguousGradientError, match="is the raw gradient"):
        frontier(context)
