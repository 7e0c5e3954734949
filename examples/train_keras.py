"""Train a Keras model on several workers, with `fit`'s own callbacks and history.

    python examples/train_keras.py --workers local:2

Handwritten digits of 8x8 pixels; the workers are processes of this machine.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import caramel


def build_model() -> Any:
    """A small convolutional network, compiled."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def printing(epochs: int) -> Any:
    """A callback that tells of each epoch when it has ended."""
    import keras

    # No LambdaCallback: that has hooks for batches, too, for which all variables would come here.
    class Printing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            print(
                f"epoch {epoch + 1} of {epochs}: loss {logs['loss']:.3f}, "
                f"validation accuracy {logs['val_accuracy']:.2%}",
                flush=True,
            )

    return Printing()


def main(
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "local:2",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 8,
) -> None:
    """Train a Keras model on handwritten digits."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    from digits import load_data  # here, so that --help need not wait for TensorFlow

    training, test = load_data()
    model = build_model()
    with (
        caramel.Cluster.parse(workers) as cluster,
        caramel.keras.Trainer(model, workers=cluster) as trainer,
    ):
        trainer.fit(
            training.images,
            training.labels,
            batch_size=96,
            epochs=epochs,
            validation_split=0.1,
            callbacks=[printing(epochs)],
            verbose=0,
        )
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
