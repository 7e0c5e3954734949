"""Jobs with several steps over the same variables, and their comparison with plain TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import caramel
from tests.support.networks import parameter, relative_error, replicas_of, start_from, tf, tf1


@dataclass(frozen=True)
class Steps:
    """A job for one device: train op and loss of each step, and what is fed."""

    graph: tf.Graph
    steps: Mapping[str, tuple[Any, Any]]
    feed: Mapping[str, np.ndarray]
    more: Mapping[str, Any] = field(default_factory=dict)

    def context(self, **options: Any) -> caramel.Context:
        return caramel.Context(self.graph, steps=self.steps, **options)

    def part(self, number: int) -> dict[str, np.ndarray]:
        """What is fed to a step: other examples each time."""
        return {name: np.roll(value, 7 * number, axis=0) for name, value in self.feed.items()}


def gathering(number: int = 23) -> Steps:
    """Gradients are gathered over several steps, then applied, then cleared."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.placeholder(tf.float64, [None, 6], name="x")
        w, v = parameter("w", [6, 5]), parameter("v", [5, 1])
        loss = tf.reduce_mean(tf.square(tf.tanh(x @ w) @ v - 1))
        zeros, sums = tf1.zeros_initializer(), []
        for each in (w, v):
            name = f"{each.op.name}_sum"
            sums.append(tf1.get_variable(name, each.shape, tf.float64, zeros, trainable=False))
        gradients = tf1.gradients(loss, [w, v])
        pairs = list(zip(sums, gradients, strict=True))
        gather = tf.group(*[s.assign_add(g) for s, g in pairs], name="gather")
        with tf.control_dependencies([loss]):  # which is fetched with each step
            values = [s.read_value() for s in sums]
        apply = optimizer("adam").apply_gradients(zip(values, [w, v], strict=True), name="apply")
        clear = tf.group(*[s.assign(tf.zeros_like(s)) for s in sums], name="clear")
    steps = {"gather": (gather, loss), "apply": (apply, loss), "clear": (clear, loss)}
    return Steps(graph, steps, {"x:0": examples(number)["x:0"]})


# A turn: the name of the step, and what is fetched besides (names).
Turn = tuple[str, tuple[str, ...]]


def examples(number: int) -> dict[str, np.ndarray]:
    random = np.random.RandomState(3)
    return {"x:0": random.randn(number, 6), "z:0": random.randn(number, 4)}


def optimizer(name: str) -> Any:
    if name == "adam":
        return tf1.train.AdamOptimizer(0.02)
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def gan(kind: str = "adam", number: int = 23) -> Steps:
    """A generator and a discriminator, each with a train op that updates its own variables."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.placeholder(tf.float64, [None, 6], name="x")
        z = tf1.placeholder(tf.float64, [None, 4], name="z")
        g1, g2 = parameter("g1", [4, 5]), parameter("g2", [5, 6])
        d1, bias, d2 = parameter("d1", [6, 5]), parameter("bias", [5]), parameter("d2", [5, 1])
        made = tf.tanh(z @ g1) @ g2

        def judged(values):
            return tf.tanh(tf.nn.bias_add(values @ d1, bias)) @ d2

        real, fake = judged(x), judged(made)
        d_loss = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(fake))
        g_loss = tf.reduce_mean(tf.nn.softplus(-fake))
        d_gradients = tf1.gradients(d_loss, [d1, bias, d2])
        g_gradients = tf1.gradients(g_loss, [g1, g2])
        with tf.control_dependencies([*d_gradients, *g_gradients]):  # one order on one device, too
            d_train = optimizer(kind).apply_gradients(
                zip(d_gradients, [d1, bias, d2], strict=True), name="d_train"
            )
            g_train = optimizer(kind).apply_gradients(
                zip(g_gradients, [g1, g2], strict=True), name="g_train"
            )
        zeros = tf1.zeros_initializer()
        counter = tf1.get_variable("counter", [], tf.int64, zeros, trainable=False)
        counted = tf.identity(counter.assign_add(1), name="counted")
        kept = tf1.get_variable("kept", [], tf.float64, zeros, trainable=False)
        tf.identity(kept.assign(tf.reduce_mean(x), name="keep"), name="kept_now")
        with tf.control_dependencies([*d_gradients, *g_gradients]):
            clipped = [v.assign(tf.clip_by_value(v, -0.2, 0.2)) for v in (d1, d2)]
        tf.group(*clipped, name="clip")
        average = tf1.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies([g_train]):
            tf.group(average.apply([g1, g2]), name="average")
    steps = {"d": (d_train, d_loss), "g": (g_train, g_loss)}
    return Steps(graph, steps, examples(number), {"counted": counted})


def trained(
    job: Steps, model: caramel.ARModel, turns: Sequence[Turn], **options: Any
) -> tuple[dict, dict, list, list]:
    """Initial values, values after the turns, what was fetched, and the replicas' values."""
    options = {"trials": None, **options}
    with model.session(**options) as session:
        initial = session.variables()
        told = [
            session.step(job.part(number), [job.steps[step][1], *fetches], step=step)
            for number, (step, fetches) in enumerate(turns)
        ]
        return initial, session.variables(), told, replicas_of(session)


def alone(job: Steps, initial: Mapping[str, Any], turns: Sequence[Turn]) -> tuple[dict, list]:
    """The same by plain TensorFlow on the whole batches."""
    with job.graph.as_default(), tf1.Session(graph=job.graph) as session:
        variables = start_from(initial, session, local=True)
        told = []
        for number, (step, fetches) in enumerate(turns):
            train_op, loss = job.steps[step]
            told.append(session.run([loss, *fetches, train_op], job.part(number))[:-1])
        return session.run(variables), told


def assert_as_alone(
    job: Steps, model: caramel.ARModel, turns: Sequence[Turn], **options: Any
) -> None:
    """Train by turns on workers and on one device: variables and losses are the same."""
    initial, values, told, replicas = trained(job, model, turns, **options)
    expected, expected_told = alone(job, initial, turns)
    assert relative_error(values, expected) < 1e-12
    for own, wanted in zip(told, expected_told, strict=True):
        np.testing.assert_allclose(own[0], wanted[0], rtol=1e-12)
    for replica in replicas[1:]:
        for name, value in replica.items():
            np.testing.assert_array_equal(value, replicas[0][name], err_msg=name)


def all_deferred(step: Any) -> caramel.Plan:
    """The plan of a step of a model, with everything deferred."""
    groups = [dataclasses.replace(group, deferred=True) for group in step.plan.decision.groups]
    return step.plan.deciding(groups=tuple(groups))
