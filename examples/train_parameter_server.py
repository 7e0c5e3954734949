"""Train handwritten digits with parameter servers, and see in which order parameters arrive.

    python examples/train_parameter_server.py --workers local:2 --servers 1

The network and the data are those of `digits.py`. Without an order, parameters arrive in another
order in nearly each step; with one they arrive as they are needed.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import caramel

BATCH_SIZE = 96


def main(
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "local:2",
    servers: Annotated[
        str,
        typer.Option(
            help="How many parameter servers, or of workers that run: host:port,host:port."
        ),
    ] = "1",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 5,
    traced: Annotated[int, typer.Option(min=1, help="Steps of each kind to look at.")] = 5,
) -> None:
    """Train a residual network on 8x8 digits with parameter servers."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    # Here, so that --help need not wait for TensorFlow.
    import numpy as np
    from digits import build_network, load_data, tf

    training, test = load_data()
    with tf.Graph().as_default() as graph:
        network = build_network(epochs * (len(training) // BATCH_SIZE), seed=0)
    context = caramel.Context(graph, train_op=network.train_op, loss=network.loss)
    with caramel.Cluster.parse(workers, parameter_servers=servers) as cluster:
        model = caramel.PSModel(context, cluster, ordering="tac", in_flight_bytes=0)
        model.add_variant(caramel.PSModel(context, cluster, ordering=None).plan, "unordered")
        with model.session(trials=None) as session:
            random = np.random.default_rng(0)
            losses: list[float] = []
            for epoch in range(1, epochs + 1):
                losses = [
                    session.step(
                        {
                            network.images: images,
                            network.labels: labels,
                            network.is_training: True,
                        }
                    )
                    for images, labels in training.batches(BATCH_SIZE, random)
                ]
                print(f"epoch {epoch} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
            feeds = {
                network.images: training.images[:BATCH_SIZE],
                network.labels: training.labels[:BATCH_SIZE],
                network.is_training: True,
            }
            for name, told in (("unordered", "no order"), ("own", "planned order")):
                session.use(name)
                session.step(feeds)  # the first one of a plan is prepared
                orders = model.orders(session.trace(traced, feeds))
                print(
                    f"{told}: of {traced * cluster.size} arrivals of all parameters, different "
                    f"orders: {orders.unique}",
                    flush=True,
                )
            accuracy = session.run(
                network.accuracy,
                {
                    network.images: test.images,
                    network.labels: test.labels,
                    network.is_training: False,
                },
            )
    print(
        f"test accuracy {accuracy:.2%}, workers: {cluster.size}, "
        f"parameter servers: {len(cluster.servers)}"
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
