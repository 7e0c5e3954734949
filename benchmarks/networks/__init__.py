"""The networks of the papers as training jobs for one device, written in plain TensorFlow.

`NETWORKS` has what is known of each, `build` makes the job. Trainable variables and their size in
float32 are those of the papers' tables: the reference implementations for 1000 classes, without
batch normalisation, which only ResNet v2 has:

================ ========= ======= ===== ===== ==========================
name             variables MiB     image batch file
================ ========= ======= ===== ===== ==========================
alexnet_v2       16        191.89  224   512   `alexnet`
inception_v1     116       25.24   224   128   `inception`
inception_v2     141       42.64   224   128   `inception`
inception_v3     196       103.54  299   32    `inception`
resnet_v1_50     108       97.39   224   32    `resnet`
resnet_v1_101    210       169.74  224   64    `resnet`
resnet_v2_50     125       97.45   224   64    `resnet`
resnet_v2_101    244       169.86  224   32    `resnet`
resnet_v2_152    363       229.5   224   32    `resnet`
vgg_16           32        527.79  224   32    `vgg`
vgg_19           38        548.05  224   32    `vgg`
seq_32           32        32.0    --    32    `toys`
par_32           32        32.0    --    32    `toys`
================ ========= ======= ===== ===== ==========================

Counts, sizes and batches: TicTac (2019), table 1, and Caramel, section 6; no table has the batches
of ResNet-v2-152 and the toys.

`SEQUENCES` has two more, which no table has. Their graphs have no loop:

================ ========= ======= =================== ===== ================
name             variables MiB     example             batch file
================ ========= ======= =================== ===== ================
lstm             4         0.31    28 rows of 28       128   `lstm`
transformer      102       111.38  64 of 10,000 tokens 32    `transformer`
================ ========= ======= =================== ===== ================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.networks.alexnet import alexnet_v2
from benchmarks.networks.inception import inception_v1, inception_v2, inception_v3
from benchmarks.networks.lstm import lstm
from benchmarks.networks.resnet import resnet_v1, resnet_v2
from benchmarks.networks.toys import WIDTH, par_32, seq_32
from benchmarks.networks.transformer import transformer
from benchmarks.networks.vgg import vgg
from caramel import Context

tf1 = tf.compat.v1

# Inputs, number of classes and dropout rate to the logits of one or more classifiers.
Body = Callable[[Any, int, float], list[Any]]


@dataclass(frozen=True, slots=True)
class Network:
    """What is known of one network.

    Attributes:
        body: makes the logits.
        variables: number of trainable variables.
        mib: their size as float32, in MiB.
        image: height and width of its images in pixels; None if it takes something else.
        shape: of an example that is no image.
        smallest_image: the smallest height and width it can be built for.
        classes: number of classes.
        batch: examples in a batch on one device, in the papers.
        dropout: probability with which it drops entries in training.
        takes_tokens: whether examples are numbers of classes, and each of these has a label.
    """

    body: Body
    variables: int
    mib: float
    image: int | None = 224
    shape: tuple[int, ...] = ()
    smallest_image: int = 8
    classes: int = 1000
    batch: int = 32
    dropout: float = 0.0
    takes_tokens: bool = False


NETWORKS: Mapping[str, Network] = {
    "alexnet_v2": Network(alexnet_v2, 16, 191.89, smallest_image=67, batch=512, dropout=0.5),
    "inception_v1": Network(inception_v1, 116, 25.24, batch=128, dropout=0.2),
    "inception_v2": Network(inception_v2, 141, 42.64, batch=128, dropout=0.2),
    "inception_v3": Network(inception_v3, 196, 103.54, 299, smallest_image=75, dropout=0.2),
    "resnet_v1_50": Network(partial(resnet_v1, units=(3, 4, 6, 3)), 108, 97.39),
    "resnet_v1_101": Network(partial(resnet_v1, units=(3, 4, 23, 3)), 210, 169.74, batch=64),
    "resnet_v2_50": Network(partial(resnet_v2, units=(3, 4, 6, 3)), 125, 97.45, batch=64),
    "resnet_v2_101": Network(partial(resnet_v2, units=(3, 4, 23, 3)), 244, 169.86),
    "resnet_v2_152": Network(partial(resnet_v2, units=(3, 8, 36, 3)), 363, 229.5),
    "vgg_16": Network(
        partial(vgg, convolutions=(2, 2, 3, 3, 3)),
        32,
        527.79,
        smallest_image=32,
        dropout=0.5,
    ),
    "vgg_19": Network(
        partial(vgg, convolutions=(2, 2, 4, 4, 4)),
        38,
        548.05,
        smallest_image=32,
        dropout=0.5,
    ),
    "seq_32": Network(seq_32, 32, 32.0, None, (WIDTH,), classes=WIDTH),
    "par_32": Network(par_32, 32, 32.0, None, (WIDTH,), classes=WIDTH),
}
"""The networks of the papers."""

SEQUENCES: Mapping[str, Network] = {
    "lstm": Network(lstm, 4, 0.31, None, (28, 28), classes=10, batch=128),
    "transformer": Network(
        transformer, 102, 111.38, None, (64,), classes=10_000, dropout=0.1, takes_tokens=True
    ),
}
"""Networks for sequences, without loops."""

OPTIMIZERS: Mapping[str, Callable[[float], Any]] = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "momentum": partial(tf1.train.MomentumOptimizer, momentum=0.9),
    "rmsprop": tf1.train.RMSPropOptimizer,
    "adam": tf1.train.AdamOptimizer,
}


@dataclass(frozen=True)
class Job:
    """A training job for one device.

    Attributes:
        name: the network's name.
        graph: the graph; nothing else is in it.
        train_op: what a step runs.
        loss: mean over the examples.
        inputs: the tensors to feed, by name, with the shape of one batch; the graph takes batches
            of any size.
        classes: labels are below this.
        gradients: raw gradients and their variables.
    """

    name: str
    graph: tf.Graph
    train_op: Any
    loss: Any
    inputs: Mapping[str, tuple[int, ...]]
    classes: int
    gradients: tuple[tuple[Any, Any], ...]

    def context(self, **options: Any) -> Context:
        """The job as a `caramel.Context`; options are those of `Context`."""
        return Context(self.graph, train_op=self.train_op, loss=self.loss, **options)

    def feed(self, seed: int = 0) -> dict[str, np.ndarray]:
        """A batch of random examples, to be fed."""
        random = np.random.default_rng(seed)
        return {name: self._drawn(name, shape, random) for name, shape in self.inputs.items()}

    def _drawn(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        """Random numbers: below that of classes if they are integers."""
        dtype = self.graph.get_tensor_by_name(name).dtype
        if dtype.is_integer:
            return random.integers(0, self.classes, shape).astype(dtype.as_numpy_dtype)
        return random.standard_normal(shape).astype(dtype.as_numpy_dtype)


def build(
    name: str,
    *,
    batch: int | None = None,
    image: int | None = None,
    optimizer: str = "momentum",
    learning_rate: float = 0.01,
    dropout: float | None = None,
    dtype: Any = tf.float32,
    seed: int = 1,
) -> Job:
    """A training job for one device.

    Args:
        name: one of `NETWORKS` or `SEQUENCES`.
        batch: examples in a batch; by default as in the papers. Says what to feed, nothing else.
        image: height and width of the images in pixels; by default the network's own. Parameters
            do not depend on it.
        optimizer: one of `OPTIMIZERS`.
        learning_rate: its learning rate.
        dropout: probability with which entries are dropped; by default the network's own. 0 leaves
            no random draws in a step.
        dtype: of examples and parameters; that of networks for tokens is float32.
        seed: of initial values and dropout: the same seed gives the same values.

    Raises:
        ValueError: an unknown name, or an image or type that the network cannot take.
    """
    spec = _known({**NETWORKS, **SEQUENCES}, name, "network")
    make_optimizer = _known(OPTIMIZERS, optimizer, "optimizer")
    shape = _example_shape(name, spec, image)
    if spec.takes_tokens and dtype != tf.float32:
        raise ValueError(f"{name} takes tokens, and computes with float32 only")
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(seed)
        of_examples, label = (tf.int32, shape) if spec.takes_tokens else (dtype, ())
        examples = tf1.placeholder(of_examples, [None, *shape], name="examples")
        labels = tf1.placeholder(tf.int32, [None, *label], name="labels")
        rate = spec.dropout if dropout is None else dropout
        loss = _loss(spec.body(examples, spec.classes, rate), labels)
        train_op, pairs = _train_op(loss, make_optimizer(learning_rate))
    count = batch or spec.batch
    inputs = {examples.name: (count, *shape), labels.name: (count, *label)}
    return Job(name, graph, train_op, loss, inputs, spec.classes, pairs)


def _known(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"there is no {what} '{name}'; there are {', '.join(table)}")
    return table[name]


def _example_shape(name: str, spec: Network, image: int | None) -> tuple[int, ...]:
    if spec.image is None:
        if image is not None:
            raise ValueError(f"{name} takes examples of shape {spec.shape}, no images")
        return spec.shape
    size = image or spec.image
    if size < spec.smallest_image:
        raise ValueError(
            f"{name} needs images of at least {spec.smallest_image} pixels, not {size}"
        )
    return (size, size, 3)


def _loss(logits: list[Any], labels: Any) -> Any:
    """The mean cross entropy; that of a second classifier counts 0.4 (Szegedy et al., 2015)."""
    losses = [
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))
        for x in logits
    ]
    return losses[0] if len(losses) == 1 else losses[0] + 0.4 * tf.add_n(losses[1:])


def _train_op(loss: Any, optimizer: Any) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """The op that updates parameters and moving averages, and the raw gradients."""
    pairs = tuple(optimizer.compute_gradients(loss))
    apply = optimizer.apply_gradients(pairs, global_step=tf1.train.get_or_create_global_step())
    averages = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    return (tf.group(apply, *averages, name="train") if averages else apply), pairs
