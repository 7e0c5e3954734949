"""Handles of variables that functions, loops and conditionals put out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import DriftError, UnsupportedOpError

tf1 = tf.compat.v1
X = np.random.RandomState(0).rand(8, 3)


@tf.function(autograph=False)
def same(handle):
    return tf.identity(handle)


def looped(handle, rounds=2):
    return tf.while_loop(lambda i, _: i < rounds, lambda i, h: (i + 1, h), (0, handle))[1]


@tf.function(autograph=False)
def subtracted(handle, value):
    """Inside a function, from a loop, from another function."""
    tf.raw_ops.AssignSubVariableOp(resource=looped(same(handle)), value=value)
    return tf.identity(value)


def either(predicate, first, second):
    return tf.cond(predicate, lambda: tf.identity(first), lambda: tf.identity(second))


def context_of(update):
    """A linear model, and a counter that its rate depends on.

    Args:
        update: makes the ops that run with the update of the bias: it is given all variables, the
            gradient of the weights and the sum over all examples.
    """
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, 3], name="x")
        w = tf1.get_variable("w", [3], tf.float64, tf1.ones_initializer(), use_resource=True)
        zero, options = tf1.zeros_initializer(), {"use_resource": True}
        bias = tf1.get_variable("bias", [], tf.float64, zero, **options)
        counter, other = (
            tf1.get_variable(name, [], tf.float64, zero, trainable=False, **options)
            for name in ("counter", "other")
        )
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, 1) + bias - 1.0))
        of_w, of_bias = tf.gradients(loss, [w, bias])
        done = update((w, counter, other), of_w, tf.reduce_sum(x))
        with tf.control_dependencies([done]):
            rate = 0.1 / (1.0 + counter.read_value())
        train_op = tf.group(done, bias.assign_sub(rate * of_bias))
    return caramel.Context(graph, train_op=train_op, loss=loss)


def alone(context):
    """The variables after three steps of one device."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(context.graph_def, name="")
    with tf1.Session(graph=graph) as session:
        session.run([f"{name}/Assign" for name in ("w", "bias", "counter", "other")])
        for _ in range(3):
            session.run("group_deps", {"x:0": X})
        return {name: session.run(f"{name}/Read/ReadVariableOp:0") for name in ("w", "bias")}


@pytest.mark.parametrize(
    "update",
    [
        lambda variables, of_w, _: tf.raw_ops.AssignSubVariableOp(
            resource=same(variables[0].handle), value=0.1 * of_w
        ),
        lambda variables, of_w, _: subtracted(variables[0].handle, 0.1 * of_w).op,
    ],
    ids=["from a function", "inside a function"],
)
@pytest.mark.parametrize(
    "model",
    [lambda context: caramel.ARModel(context, 2), lambda context: caramel.PSModel(context, 2, 1)],
    ids=["all-reduce", "servers"],
)
def test_updates_by_such_handles_are_those_of_one_device(update, model):
    context = context_of(update)
    with model(context).session(trials=None) as session:
        for _ in range(3):
            session.step({"x:0": X})
        values = session.variables()
    for name, value in alone(context).items():
        np.testing.assert_allclose(values[name], value, rtol=1e-12)


@pytest.mark.parametrize(
    "handle",
    [
        lambda counter, _: same(counter.handle),
        lambda counter, other: either(other.read_value() < 1, counter.handle, counter.handle),
    ],
    ids=["a function", "a conditional"],
)
def test_replicas_cannot_drift_apart_by_such_handles(handle):
    def update(variables, _, total):
        return tf.raw_ops.AssignAddVariableOp(resource=handle(*variables[1:]), value=total)

    with pytest.raises(DriftError, match="reaches parameter 'bias' without being aggregated"):
        caramel.ARModel(context_of(update), 2)


def test_nor_inside_a_function_by_the_handle_that_a_loop_puts_out():
    def update(variables, _, total):
        return subtracted(variables[1].handle, total).op

    with pytest.raises(DriftError, match="reaches parameter 'bias' without being aggregated"):
        caramel.ARModel(context_of(update), 2)


def test_a_handle_that_is_chosen_while_a_step_runs_is_refused():
    def update(variables, _, total):
        handle = either(total > 0, variables[1].handle, variables[2].handle)
        return tf.raw_ops.AssignAddVariableOp(resource=handle, value=total)

    with pytest.raises(UnsupportedOpError, match="uses variable 'counter' or 'other', as a cond"):
        caramel.ARModel(context_of(update), 2)
