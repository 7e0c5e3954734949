"""Train with a loop of one's own on several workers.

    python examples/train_loop.py --workers local:2

The model is that of `train_keras.py`; the step is an ordinary function.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from train_keras import build_model

import caramel

BATCH_SIZE = 96


def main(
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "local:2",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 8,
) -> None:
    """Train on handwritten digits with a loop of one's own."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    # Here, so that --help need not wait for TensorFlow.
    import numpy as np
    from digits import load_data, tf

    training, test = load_data()
    model = build_model()

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = caramel.loss(model.compute_loss(y=labels, y_pred=model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_weights)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    random = np.random.default_rng(0)
    with (
        caramel.Cluster.parse(workers) as cluster,
        caramel.distribute(step, workers=cluster) as distributed,
    ):
        for epoch in range(1, epochs + 1):
            losses = [distributed(*batch) for batch in training.batches(BATCH_SIZE, random)]
            print(f"epoch {epoch} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
    _, accuracy = model.evaluate(test.images, test.labels, verbose=0)
    print(f"test accuracy {accuracy:.2%}, workers: {cluster.size}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
