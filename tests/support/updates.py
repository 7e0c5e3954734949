"""Jobs whose train op is made from all that a step has."""

from __future__ import annotations

from tests.support.networks import (
    Network,
    cross_entropy,
    inputs,
    perceptron,
    tf,
    tf1,
)


def job_with(make_train_op, *, seed: int | None = 1, model=perceptron) -> Network:
    """A job whose train op is made from x, the loss, the gradients and the variables."""
    with tf.Graph().as_default() as graph:
        if seed is not None:
            tf1.set_random_seed(seed)
        x, y, feed = inputs(40)
        loss = cross_entropy(model(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        train_op = make_train_op(x, loss, gradients, variables)
    raw = {v.op.name: g for g, v in zip(gradients, variables, strict=True)}
    return Network(graph, train_op, loss, feed, raw)


def descent(gradients, variables, rate=0.3):
    optimizer = tf1.train.GradientDescentOptimizer(rate)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True))


def normalized(x):
    """A layer that keeps moving averages of its batches' statistics through UPDATE_OPS."""
    h = perceptron(x)
    mean, variance = tf.nn.moments(h, [0])
    for name, value in (("moving_mean", mean), ("moving_variance", variance)):
        zeros = tf1.zeros_initializer()
        average = tf1.get_variable(name, [3], tf.float64, zeros, trainable=False, use_resource=True)
        update = average.assign_sub(0.1 * (average - value))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return h


def with_update_ops(x, loss, gradients, variables):
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        return descent(gradients, variables)
