"""Train layers of Keras 2 on several workers: they build a graph, which `Context` takes as it is.

    python examples/train_legacy_keras.py --workers local:2

It needs tf_keras, and TF_USE_LEGACY_KERAS=1, which this program sets itself.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NamedTuple

import typer

import caramel
from caramel.cluster.quiet_start import quiet_start


class Job(NamedTuple):
    """The graph of a training step, and its tensors."""

    graph: Any
    x: Any
    y: Any
    is_training: Any
    loss: Any
    accuracy: Any
    train_op: Any


def build() -> Job:
    """The graph of a training step, with a normalised layer and dropout."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported
    with quiet_start():
        import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # Keras 2 uses what is deprecated
    tf1, layers = tf.compat.v1, tf.keras.layers
    graph = tf.Graph()
    with graph.as_default():
        tf1.set_random_seed(0)
        x = tf1.placeholder(tf.float32, [None, 8, 8, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        is_training = tf1.placeholder_with_default(False, [], name="is_training")
        network = tf.keras.Sequential(
            [
                layers.Conv2D(16, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dropout(0.2),
                layers.Dense(10),
            ]
        )
        logits = network(x, training=is_training)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        trained = tf1.train.AdamOptimizer(0.003).minimize(loss, var_list=network.trainable_weights)
        # What updates the moving averages is no part of the optimizer's op.
        train_op = tf.group(trained, *network.updates)
    return Job(graph, x, y, is_training, loss, accuracy, train_op)


def main(
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "local:2",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 8,
) -> None:
    """Train layers of Keras 2 on handwritten digits."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    job = build()
    # Here, so that --help need not wait for TensorFlow.
    import numpy as np
    from digits import load_data

    training, test = load_data()
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    with (
        caramel.Cluster.parse(workers) as cluster,
        caramel.ARModel(context, workers=cluster).session() as session,
    ):
        order = np.random.RandomState(0)
        for epoch in range(1, epochs + 1):
            losses = []
            for batch in np.array_split(order.permutation(len(training.labels)), 15):
                feeds = {
                    job.x: training.images[batch],
                    job.y: training.labels[batch],
                    job.is_training: True,
                }
                losses.append(session.step(feeds))
            print(f"epoch {epoch} of {epochs}: loss {np.mean(losses):.3f}")
        accuracy = session.run(job.accuracy, {job.x: test.images, job.y: test.labels})
        print(f"test accuracy {accuracy:.2%}, workers: {cluster.size}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
