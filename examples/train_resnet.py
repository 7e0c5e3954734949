"""Train a residual network on real handwritten digits, on as many workers as wanted.

    python examples/train_resnet.py --workers 2

The network and the data are those of `digits.py`, ordinary TensorFlow for one device. Two
statements distribute the training: `caramel.Context` and `caramel.ARModel`.

Batch norm uses the statistics of the images that a worker has in this step, as in all data-parallel
systems: with more workers they come from fewer images, so results differ a little. Each worker
keeps its own moving averages; evaluation and the checkpoint use their mean over the workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from rich import get_console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import caramel
from caramel.planning.options import Planner

if TYPE_CHECKING:
    from digits import Digits, Network

PLAIN_REPORTS = 4  # lines about progress where there is no terminal


# Training ----------------------------------------------------------------------------------------


def train(
    network: Network,
    session: caramel.Session,
    data: Digits,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    report: Callable[[int, float, float], None],
) -> float:
    """Train for some epochs; `report` gets each one's number, mean loss and images per second.

    Returns:
        Steps per second, without the first step, in which the workers set up their graphs.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    steps, started = 0, time.perf_counter()
    for epoch in range(1, epochs + 1):
        losses, epoch_started = [], time.perf_counter()
        for images, labels in data.batches(batch_size, rng):
            feeds = {network.images: images, network.labels: labels, network.is_training: True}
            losses.append(session.step(feeds))
            if steps == 0:
                started = time.perf_counter()
            steps += 1
        seconds = time.perf_counter() - epoch_started
        report(epoch, float(np.mean(losses)), len(losses) * batch_size / seconds)
    return (steps - 1) / (time.perf_counter() - started) if steps > 1 else 0.0


class Reporter:
    """Shows how training goes on: a bar in a terminal, a few plain lines elsewhere."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._console = get_console()  # that of Caramel's own display
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=epochs, news="")

    def __enter__(self) -> Reporter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, epoch: int, loss: float, images_per_s: float) -> None:
        news = f"loss {loss:.3f}, {images_per_s:.0f} images/s"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=epoch, news=news)
        elif epoch * PLAIN_REPORTS // self._epochs > (epoch - 1) * PLAIN_REPORTS // self._epochs:
            print(f"epoch {epoch} of {self._epochs}: {news}", flush=True)


# The command -------------------------------------------------------------------------------------


def main(
    workers: Annotated[
        str,
        typer.Option(help='"2" (in this process), "local:2" (processes), or host:port,host:port.'),
    ] = "2",
    start_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the workers.")
    ] = 60.0,
    pattern: Annotated[
        str,
        typer.Option(help="How to aggregate: auto, or shuffle, ring, halving_doubling, exchange."),
    ] = "auto",
    profile: Annotated[
        str | None, typer.Option(help="What 'caramel profile' has measured, to plan from.")
    ] = None,
    planner: Annotated[
        Planner, typer.Option(help="The fastest by simulation, the rules of the paper, or none.")
    ] = "search",
    serialization: Annotated[bool, typer.Option(help="Gradients in one order.")] = True,
    batching: Annotated[bool, typer.Option(help="Small gradients together.")] = True,
    scheduling: Annotated[bool, typer.Option(help="Transfers planned, some for later.")] = True,
    adaptive_depth: Annotated[bool, typer.Option(help="Large gradients in parts.")] = True,
    factors: Annotated[bool, typer.Option(help="Factors in place of gradients.")] = True,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a step, of all workers.")] = 96,
    checkpoint: Annotated[str, typer.Option(help="Where to save.")] = "checkpoints/digits.ckpt",
    compare: Annotated[
        bool, typer.Option("--compare", help="Say at last what the workers have brought, and why.")
    ] = False,
    seed: Annotated[int, typer.Option(help="For the weights and the order of images.")] = 0,
) -> None:
    """Train a residual network on 8x8 handwritten digits."""
    if sys.stdout.isatty():
        caramel.show_progress()  # says what takes long
    # Here, so that --help need not wait for TensorFlow.
    import digits
    import numpy as np
    from digits import tf

    training, test = digits.load_data()
    if batch_size > len(training):
        raise caramel.CaramelError(
            f"--batch-size {batch_size} is more than the {len(training)} training images"
        )
    with tf.Graph().as_default() as graph:
        network = digits.build_network(epochs * (len(training) // batch_size), seed)

    context = caramel.Context(graph, train_op=network.train_op, loss=network.loss)
    with ExitStack() as stack:
        chosen = stack.enter_context(caramel.Cluster.parse(workers))
        model = caramel.ARModel(
            context,
            workers=chosen,
            pattern=pattern,
            profile=profile,
            planner=planner,
            serialization=serialization,
            batching=batching,
            scheduling=scheduling,
            adaptive_depth=adaptive_depth,
            factors=factors,
        )
        session = stack.enter_context(model.session(start_timeout_s=start_timeout))
        parameters = sum(v.spec.elements or 0 for v in context.job.variables if v.trainable)
        print(
            f"{len(training)} training images, {len(test)} test images, {parameters:,} parameters, "
            f"{chosen.size} worker{'s' if chosen.size > 1 else ''}, {pattern}",
            flush=True,
        )
        with Reporter(epochs) as report:
            steps_per_s = train(
                network,
                session,
                training,
                epochs=epochs,
                batch_size=batch_size,
                seed=seed,
                report=report,
            )
        accuracy = session.run(
            network.accuracy,
            {network.images: test.images, network.labels: test.labels, network.is_training: False},
        )
        path = session.save(checkpoint)
        step_s = session.metrics().usual_step_s
    if step_s is not None:  # without the pauses for planning
        steps_per_s = 1 / step_s
    print(f"test accuracy {accuracy:.2%}, {steps_per_s:.1f} steps/s, checkpoint {path}")
    if compare and step_s is not None:
        from caramel.profiling.gain import gain

        images, labels = next(training.batches(batch_size, np.random.default_rng(seed)))
        feeds = {network.images: images, network.labels: labels, network.is_training: True}
        print(gain(context, feeds, cluster=chosen, step_s=step_s))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
