"""The network and the data of the examples: a small residual network, and handwritten digits.

The network is ordinary TensorFlow for one device: convolutions, batch norm written out, Momentum,
a learning rate that follows the step counter, weight decay in the loss. The data are scikit-learn's
1,797 digits of 8x8 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from caramel.cluster.quiet_start import quiet_start

with quiet_start():
    import tensorflow as tf

tf1 = tf.compat.v1

CHANNELS = (16, 32, 64)  # of the three stages; each but the first halves height and width
BLOCKS = 1  # in each stage
MOMENTUM = 0.9
MOVING_AVERAGE_DECAY = 0.9
WEIGHT_DECAY = 1e-3
LEARNING_RATES = (0.1, 0.01, 0.001)
LEARNING_RATE_CHANGES = (0.6, 0.85)  # when the next one begins, as a part of all steps


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
