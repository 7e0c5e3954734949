"""Plans that defer some groups, and jobs in which more than updates follows the gradients."""

from __future__ import annotations

import dataclasses

from tests.support.networks import (
    Network,
    cross_entropy,
    inputs,
    network,
    perceptron,
    tf,
    tf1,
    tied,
)

EVERY, FIRST, LAST, SOME = "every", "first", "last", "some"
CHOICES = {
    EVERY: lambda number, count: True,
    FIRST: lambda number, count: number == 0,
    LAST: lambda number, count: number == count - 1,
    SOME: lambda number, count: number % 2 == 1,
}


def deferred(model, choice):
    """The model's plan with some of its groups deferred."""
    groups = [
        dataclasses.replace(
            group, deferred=CHOICES[choice](number, len(model.plan.decision.groups))
        )
        for number, group in enumerate(model.plan.decision.groups)
    ]
    return model.plan.deciding(groups=tuple(groups))


def averaged():
    """Weights averaged after each update, with a decay that depends on the step."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        variables = tf1.trainable_variables()
        step = tf1.train.get_or_create_global_step()
        update = tf1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        average = tf1.train.ExponentialMovingAverage(0.9, num_updates=step)
        with tf1.control_dependencies([update]):
            train_op = average.apply(variables)
    return Network(graph, train_op, loss, feed)


def assigned():
    """Updates and decay by `assign_sub`, and a rate that is kept in a variable and halved."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        rate = tf1.get_variable(  # a resource, as all variables of this module
            "rate",
            [],
            tf.float64,
            tf1.constant_initializer(0.5),
            trainable=False,
            use_resource=True,
        )
        with tf1.control_dependencies(gradients):
            decays = [v.assign_sub(0.01 * v, read_value=False) for v in variables]
        with tf1.control_dependencies(decays):
            updates = [
                v.assign_sub(rate * g, read_value=False)
                for g, v in zip(gradients, variables, strict=True)
            ]
        with tf1.control_dependencies(updates):
            train_op = tf.group(rate.assign(rate * 0.9, read_value=False))
    return Network(graph, train_op, loss, feed)


def scheduled_in_the_loss():
    """The forward pass reads the step counter, which waits for all updates."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        step = tf1.train.get_or_create_global_step()
        weight = 1 / (1 + tf.cast(step, tf.float64))
        loss = weight * cross_entropy(perceptron(x), y)
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    return Network(graph, train_op, loss, feed)


def with_norm():
    """The norm of all raw gradients is computed beside the train op."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        gradients = optimizer.compute_gradients(loss)
        tf.identity(tf.linalg.global_norm([g for g, _ in gradients]), name="norm")
        train_op = optimizer.apply_gradients(gradients)
    return Network(graph, train_op, loss, feed)


def failing():
    """The forward pass fails if it is fed NaN, the update if `poison` is NaN."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(tf.debugging.check_numerics(x, "bad input")), y)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        poison = tf1.placeholder_with_default(tf.constant(0.0, tf.float64), [], name="poison")
        checked = [
            (tf.debugging.check_numerics(g + poison, "bad gradient"), v)
            for g, v in optimizer.compute_gradients(loss)
        ]
        train_op = optimizer.apply_gradients(checked)
    return Network(graph, train_op, loss, feed)


JOBS = {
    "averaged": averaged,
    "assigned": assigned,
    "scheduled": scheduled_in_the_loss,
    "tied": lambda: network("momentum", model=tied),
    "global norm": lambda: network("adam", "clip_by_global_norm"),
}
