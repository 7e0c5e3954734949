"""AlexNet-v2: Krizhevsky, "One weird trick" (arXiv:1404.5997), without response normalisation.

Its first dense layer takes 5x5 maps; those of other images than 224x224 are brought to that size
(`layers.resized`), so that all 191.89 MiB stay. Images have at least 67x67 pixels.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.networks import layers


def alexnet_v2(images: Any, classes: int, dropout: float) -> list[Any]:
    """The logits."""
    x = layers.conv(images, "conv1", 64, 11, 4, padding="VALID")
    x = layers.max_pool(x, 3, 2, "VALID")
    x = layers.conv(x, "conv2", 192, 5)
    x = layers.max_pool(x, 3, 2, "VALID")
    x = layers.conv(x, "conv3", 384, 3)
    x = layers.conv(x, "conv4", 384, 3)
    x = layers.conv(x, "conv5", 256, 3)
    x = layers.resized(layers.max_pool(x, 3, 2, "VALID"), 5)
    return [classifier(x, classes, dropout)]


def classifier(x: Any, classes: int, dropout: float) -> Any:
    """The three dense layers, written as convolutions as `tf_slim` does; gives the logits."""
    x = layers.conv(x, "fc6", 4096, (x.shape[1], x.shape[2]), padding="VALID")
    x = layers.conv(layers.dropout(x, dropout), "fc7", 4096, 1)
    x = layers.dropout(x, dropout)
    x = layers.conv(x, "fc8", classes, 1, activation=layers.linear, gain=1.0)
    return tf.squeeze(x, [1, 2])
