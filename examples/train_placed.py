"""Train a model that fits on no worker: its variables and ops are spread over two of them.

    python examples/train_placed.py --memory "6.3 MB"

The network and the data are those of `digits.py`; the workers are processes of this machine.
Each may have less memory than the variables and tensors of a step need. Then the same batches train
the same network on one device, by plain TensorFlow: that gives the same weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from train_resnet import Reporter, train

import caramel

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from digits import Digits, Network

BATCH_SIZE = 96


def main(
    memory: Annotated[str, typer.Option(help="What each worker may hold.")] = "6.3 MB",
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "local:2",
    partitioner: Annotated[
        str, typer.Option(help="How ops get their devices: search, heft, critical_path, ...")
    ] = "search",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 8,
    seed: Annotated[int, typer.Option(help="For the weights and the order of images.")] = 0,
) -> None:
    """Train a residual network on 8x8 digits that needs more memory than one worker has."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    # Here, so that --help need not wait for TensorFlow.
    from digits import build_network, load_data, tf

    training, test = load_data()
    with tf.Graph().as_default() as graph:
        total_steps = epochs * (len(training) // BATCH_SIZE)
        network = build_network(total_steps, seed)
    context = caramel.Context(graph, train_op=network.train_op, loss=network.loss)
    whole = caramel.PlacedModel(context, 1, batch_size=BATCH_SIZE).memory_bytes[0]
    print(f"on one worker a step would need {megabytes(whole)}; each may have {memory}")

    print(f"placing by '{partitioner}'", flush=True)
    with caramel.Cluster.parse(workers) as cluster:
        model = caramel.PlacedModel(
            context, cluster, memory=memory, partitioner=partitioner, batch_size=BATCH_SIZE
        )
        for line in held(model):
            print(line, flush=True)
        with model.session() as session:
            with Reporter(epochs) as report:
                rate = run(network, session, training, epochs, seed, report)
            placed = accuracy(network, session, test)
            weights = session.variables()
    print(f"placed: test accuracy {placed:.2%}, {rate:.1f} steps/s", flush=True)

    with OneDevice(graph, network) as session:
        with Reporter(epochs) as report:
            rate = run(network, session, training, epochs, seed, report)
        alone = accuracy(network, session, test)
        off = max(abs(weights[name] - own).max() for name, own in session.variables().items())
    print(f"on one device: test accuracy {alone:.2%}, {rate:.1f} steps/s")
    print(f"largest difference between their weights: {off:.1g}")


def held(model: caramel.PlacedModel) -> list[str]:
    """What each worker holds, in a line."""
    placement = model.plan.placement
    assert placement is not None, "a placed model has one"
    lines = []
    for number, need in enumerate(model.memory_bytes):
        own = [v for v in model.context.job.variables if placement.number_of[v.handle] == number]
        size = sum(variable.spec.bytes or 0 for variable in own)
        lines.append(
            f"worker {number}: {len(own)} variables of {megabytes(size)}, at most "
            f"{megabytes(need)} in a step"
        )
    return lines


def megabytes(size: float) -> str:
    """Bytes, for people."""
    return f"{size / 1e6:.2f} MB"


def run(
    network: Network, session: Any, data: Digits, epochs: int, seed: int, report: Reporter
) -> float:
    """Train; returns steps per second."""
    return train(
        network,
        session,
        data,
        epochs=epochs,
        batch_size=BATCH_SIZE,
        seed=seed,
        report=report,
    )


def accuracy(network: Network, session: Any, test: Digits) -> float:
    """The share of test images that are told rightly."""
    feeds = {network.images: test.images, network.labels: test.labels, network.is_training: False}
    return float(session.run(network.accuracy, feeds))


class OneDevice:
    """Trains by plain TensorFlow; the seed of the graph gives it the same initial weights."""

    def __init__(self, graph: tf.Graph, network: Network) -> None:
        from digits import tf1

        with graph.as_default():
            self._variables = {v.op.name: v for v in tf1.global_variables()}
            initializer = tf1.global_variables_initializer()
        # TensorFlow's own optimizer of graphs computes some sums otherwise, which then round
        # otherwise. In Caramel's sessions it is off, so it is off here.
        config = tf1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = tf1.Session(graph=graph, config=config)
        self._session.run(initializer)
        self._step = network.loss, network.train_op

    def step(self, feeds: Mapping[Any, Any]) -> float:
        """One step; returns the loss."""
        return float(self._session.run(self._step, feeds)[0])

    def run(self, fetches: Any, feeds: Mapping[Any, Any]) -> Any:
        """Values of tensors."""
        return self._session.run(fetches, feeds)

    def variables(self) -> dict[str, np.ndarray]:
        """All values, by name."""
        return dict(self._session.run(self._variables))

    def __enter__(self) -> OneDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
