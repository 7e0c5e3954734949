"""Jobs that faults disturb, and what plain TensorFlow makes of them on one device.

======== ===========================================================================================
plain    batches are fed, gradients are aggregated in their step
deferred likewise; all updates are done in the next step
factors  likewise; gradients are computed from their factors where they have some
trials   likewise; the job measures itself, plans, and tries plans while it trains
pipeline examples come from `tf.data` in the graph, shuffled
servers  as plain, with variables on parameter servers
placed   as plain, with one replica that is spread over all workers
======== ===========================================================================================
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

import caramel
from caramel.core.decision import FACTORS

tf1 = tf.compat.v1

Kind = Literal["plain", "deferred", "factors", "trials", "pipeline", "servers", "placed"]
KINDS: tuple[Kind, ...] = ("plain", "deferred", "factors", "trials", "pipeline")

SERVED, SERVERS = 2, 2
"""How many workers and parameter servers there are where variables are on servers."""

FEATURES, WIDTH, CLASSES, BATCH = 16, 48, 5, 12
NUMBERS = 4096  # examples of a pipeline
IDS = "ids:0"


@dataclass(frozen=True)
class Job:
    """A job for one device.

    Attributes:
        given: the placeholder of the examples' numbers; None if a pipeline has them.
        starter: the op that starts the pipeline, if there is one.
    """

    graph: tf.Graph
    train_op: Any
    loss: Any
    given: Any
    starter: Any

    def feeds(self, step: int) -> dict[Any, np.ndarray] | None:
        """What a step is fed."""
        return None if self.given is None else {self.given: ids_of(step)}


def ids_of(step: int) -> np.ndarray:
    """The numbers of the examples of a step."""
    return np.random.default_rng([7, step]).integers(0, NUMBERS, BATCH)


def build(kind: Kind, *, fed: bool | None = None) -> Job:
    """A job in float64, which begins alike in every process.

    Args:
        fed: whether the numbers of examples are fed; by default unless the job has a pipeline.
    """
    random = np.random.default_rng(1)
    with tf.Graph().as_default() as graph:
        given, starter = None, None
        if kind == "pipeline" and not fed:
            numbers = tf.data.Dataset.range(NUMBERS).shuffle(NUMBERS, seed=3).batch(BATCH // 3)
            iterator = tf1.data.make_initializable_iterator(numbers)
            ids, starter = iterator.get_next(), iterator.initializer
        else:
            ids = given = tf1.placeholder(tf.int64, [None], name="numbers")
        ids = tf.identity(ids, name=IDS.partition(":")[0])
        x = tf.gather(tf.constant(random.standard_normal((NUMBERS, FEATURES))), ids)
        y = tf.gather(tf.constant(random.integers(0, CLASSES, NUMBERS)), ids)
        for number, (rows, columns) in enumerate(((FEATURES, WIDTH), (WIDTH, WIDTH))):
            x = tf.tanh(x @ _weights(f"w{number}", random, rows, columns))
        logits = x @ _weights("w", random, WIDTH, CLASSES)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
        train_op = tf1.train.MomentumOptimizer(0.05, 0.9).minimize(
            loss, global_step=tf1.train.get_or_create_global_step()
        )
    return Job(graph, train_op, loss, given, starter)


def _weights(name: str, random: np.random.Generator, rows: int, columns: int) -> Any:
    begin = random.standard_normal((rows, columns)) / np.sqrt(rows)
    return tf1.get_variable(name, initializer=begin, use_resource=True)


def model_of(
    kind: Kind, job: Job, cluster: caramel.Cluster
) -> caramel.ARModel | caramel.PSModel | caramel.PlacedModel:
    """The job over workers, by a plan of its kind."""
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    if kind == "servers":
        return caramel.PSModel(context, cluster)
    if kind == "placed":
        return caramel.PlacedModel(context, cluster, partitioner="hash")
    if kind == "trials":
        return caramel.ARModel(context, cluster, replan="auto")
    model = caramel.ARModel(context, cluster, pattern="shuffle")
    groups = model.plan.decision.groups
    if kind == "deferred":
        groups = tuple(dataclasses.replace(group, deferred=True) for group in groups)
    elif kind == "factors":
        groups = tuple(
            dataclasses.replace(group, pattern=FACTORS)
            if model.plan.gradient(group.members[0]).factors is not None
            else group
            for group in groups
        )
    return caramel.ARModel(context, cluster, plan=model.plan.deciding(groups=groups))


def on_one_device(numbers: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The variables after plain TensorFlow has trained on these examples, a step on each batch."""
    job = build("plain", fed=True)
    with job.graph.as_default(), tf1.Session(graph=job.graph) as session:
        session.run(tf1.global_variables_initializer())
        for ids in numbers:
            session.run(job.train_op, {job.given: ids})
        variables = tf1.global_variables()
        return {
            v.op.name: value for v, value in zip(variables, session.run(variables), strict=True)
        }
