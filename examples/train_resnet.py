"""Train a residual network on real handwritten digits, on as many workers as wanted.

    python examples/train_resnet.py --workers 2

The network is ordinary TensorFlow for one device: convolutions, batch norm written out, Momentum,
a learning rate that follows the step counter, weight decay in the loss. Two statements distribute
it: `caramel.Context` and `caramel.ARModel`. The data are scikit-learn's 1,797 digits of 8x8 pixels.

Batch norm uses the statistics of the images that a worker has in this step, as in all data-parallel
systems: with more workers they come from fewer images, so results differ a little. Each worker
keeps its own moving averages; evaluation and the checkpoint use their mean over the workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import caramel
from caramel.cluster.quiet_start import quiet_start
from caramel.planning.options import Planner

with quiet_start():
    import tensorflow as tf

    from caramel.profiling.gain import gain

tf1 = tf.compat.v1

CHANNELS = (16, 32, 64)  # of the three stages; each but the first halves height and width
BLOCKS = 1  # in each stage
MOMENTUM = 0.9
MOVING_AVERAGE_DECAY = 0.9
WEIGHT_DECAY = 1e-3
LEARNING_RATES = (0.1, 0.01, 0.001)
LEARNING_RATE_CHANGES = (0.6, 0.85)  # when the next one begins, as a part of all steps
PLAIN_REPORTS = 4  # lines about progress where there is no terminal


# The network, for one device ---------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What of the single-device graph is fed and fetched."""

    images: tf.Tensor
    labels: tf.Tensor
    is_training: tf.Tensor
    loss: tf.Tensor
    accuracy: tf.Tensor
    train_op: tf.Operation


def build_network(total_steps: int, seed: int) -> Network:
    """The network and its training step, in the default graph."""
    tf1.set_random_seed(seed)
    images = tf1.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    labels = tf1.placeholder(tf.int32, [None], name="labels")
    is_training = tf1.placeholder(tf.bool, [], name="is_training")

    values = tf.nn.relu(batch_norm(convolution(images, CHANNELS[0], "first"), is_training, "first"))
    for stage, channels in enumerate(CHANNELS):
        for block in range(BLOCKS):
            stride = 2 if stage > 0 and block == 0 else 1
            with tf1.variable_scope(f"stage{stage}_block{block}"):
                values = residual_block(values, channels, stride, is_training)
    features = tf.reduce_mean(values, [1, 2])
    kernel = tf1.get_variable("classifier/kernel", [CHANNELS[-1], 10])
    bias = tf1.get_variable("classifier/bias", [10], initializer=tf1.zeros_initializer())
    logits = features @ kernel + bias

    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    kernels = [v for v in tf1.trainable_variables() if v.shape.rank > 1]
    decay = tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
    loss = tf.reduce_mean(errors) + WEIGHT_DECAY * decay
    correct = tf.equal(tf.argmax(logits, 1, tf.int32), labels)
    accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))

    step = tf1.train.get_or_create_global_step()
    changes = [int(part * total_steps) for part in LEARNING_RATE_CHANGES]
    learning_rate = tf1.train.piecewise_constant(step, changes, list(LEARNING_RATES))
    optimizer = tf1.train.MomentumOptimizer(learning_rate, MOMENTUM)
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, global_step=step)
    return Network(images, labels, is_training, loss, accuracy, train_op)


def residual_block(
    values: tf.Tensor, channels: int, stride: int, is_training: tf.Tensor
) -> tf.Tensor:
    """Two convolutions, added to their input (He et al., 2016)."""
    shortcut = values
    if stride > 1 or values.shape[-1] != channels:
        shortcut = convolution(values, channels, "shortcut", size=1, stride=stride)
    values = convolution(values, channels, "conv1", stride=stride)
    values = tf.nn.relu(batch_norm(values, is_training, "conv1"))
    values = convolution(values, channels, "conv2")
    return tf.nn.relu(batch_norm(values, is_training, "conv2") + shortcut)


def convolution(
    values: tf.Tensor, channels: int, name: str, *, size: int = 3, stride: int = 1
) -> tf.Tensor:
    """A convolution without bias, of which batch norm has one."""
    kernel = tf1.get_variable(
        f"{name}/kernel",
        [size, size, int(values.shape[-1]), channels],
        initializer=tf1.variance_scaling_initializer(scale=2.0),
    )
    return tf.nn.conv2d(values, kernel, stride, "SAME")


def batch_norm(values: tf.Tensor, is_training: tf.Tensor, name: str) -> tf.Tensor:
    """Normalise each channel: by the batch in training, by moving averages in evaluation."""
    channels = int(values.shape[-1])
    zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
    with tf1.variable_scope(f"{name}/batch_norm"):
        offset = tf1.get_variable("offset", [channels], initializer=zeros)
        scale = tf1.get_variable("scale", [channels], initializer=ones)
        moving_mean = tf1.get_variable("mean", [channels], initializer=zeros, trainable=False)
        moving_variance = tf1.get_variable(
            "variance", [channels], initializer=ones, trainable=False
        )
    mean, variance = tf.nn.moments(values, [0, 1, 2])
    for average, now in ((moving_mean, mean), (moving_variance, variance)):
        update = average.assign_sub((average - now) * (1 - MOVING_AVERAGE_DECAY))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    mean = tf.where(is_training, mean, moving_mean)
    variance = tf.where(is_training, variance, moving_variance)
    return tf.nn.batch_normalization(values, mean, variance, offset, scale, 1e-3)


# The data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Images of shape (n, 8, 8, 1), with values from 0 to 1, and their labels from 0 to 9."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        """Every image once in a new order, except for those too few for a whole batch."""
        order = rng.permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            chosen = order[start : start + size]
            yield self.images[chosen], self.labels[chosen]


def load_data() -> tuple[Digits, Digits]:
    """A training set and a test set, always the same."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    parts = train_test_split(images, digits.target.astype(np.int32), test_size=0.2, random_state=0)
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])


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
        self._console = Console()
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
    training, test = load_data()
    if batch_size > len(training):
        raise caramel.CaramelError(
            f"--batch-size {batch_size} is more than the {len(training)} training images"
        )
    with tf.Graph().as_default() as graph:
        network = build_network(epochs * (len(training) // batch_size), seed)

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
    print(f"test accuracy {accuracy:.2%}, {steps_per_s:.1f} steps/s, checkpoint {path}")
    if compare and step_s is not None:
        images, labels = next(training.batches(batch_size, np.random.default_rng(seed)))
        feeds = {network.images: images, network.labels: labels, network.is_training: True}
        with quiet_start():  # TensorFlow's profiler tells each time that it begins
            gained = gain(context, feeds, cluster=chosen, step_s=step_s)
        print(gained)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except caramel.CaramelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
