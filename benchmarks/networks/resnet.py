"""ResNet v1 (He et al., arXiv:1512.03385) and v2 (arXiv:1603.05027) with bottleneck units.

The counts of variables in the papers are those of networks whose convolutions have biases and no
batch normalisation; only v2 normalises before each unit and at the end. Without it, the last
convolution of every unit starts small, else the sum over many units would explode.
Images have at least 8x8 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.networks import layers

tf1 = tf.compat.v1

_STRIDES = (2, 2, 2, 1)  # of the last unit of each block


def resnet_v1(images: Any, classes: int, dropout: float, *, units: Sequence[int]) -> list[Any]:
    """The logits; `units` says how many there are in each of the four blocks."""
    x = layers.conv_like_caffe(images, "conv1", 64, 7, 2)
    x = layers.max_pool(x, 3, 2)
    for scope, depth, stride in _units(units):
        with tf1.variable_scope(scope):
            shortcut = _shortcut(x, x, depth, stride)
            x = tf.nn.relu(shortcut + _residual(x, depth, stride, sum(units)))
    return [_logits(x, classes)]


def resnet_v2(images: Any, classes: int, dropout: float, *, units: Sequence[int]) -> list[Any]:
    """The logits; `units` says how many there are in each of the four blocks."""
    x = layers.conv_like_caffe(images, "conv1", 64, 7, 2, activation=layers.linear)
    x = layers.max_pool(x, 3, 2)
    for scope, depth, stride in _units(units):
        with tf1.variable_scope(scope):
            normal = layers.batch_norm(x, "preact")
            shortcut = _shortcut(x, normal, depth, stride)
            x = shortcut + _residual(normal, depth, stride, sum(units))
    return [_logits(layers.batch_norm(x, "postnorm"), classes)]


def _units(units: Sequence[int]) -> list[tuple[str, int, int]]:
    """Scope, channels and stride of every unit."""
    return [
        (f"block{block + 1}/unit_{unit + 1}", 256 * 2**block, stride if unit == count - 1 else 1)
        for block, (count, stride) in enumerate(zip(units, _STRIDES, strict=True))
        for unit in range(count)
    ]


def _shortcut(x: Any, projected: Any, depth: int, stride: int) -> Any:
    """What passes a unit by: `x` itself where it has the unit's depth, else a projection."""
    if x.shape[3] == depth:
        return x if stride == 1 else layers.max_pool(x, 1, stride)
    return layers.conv(projected, "shortcut", depth, 1, stride, activation=layers.linear, gain=1.0)


def _residual(x: Any, depth: int, stride: int, total_units: int) -> Any:
    y = layers.conv(x, "conv1", depth // 4, 1)
    y = layers.conv_like_caffe(y, "conv2", depth // 4, 3, stride)
    return layers.conv(y, "conv3", depth, 1, activation=layers.linear, gain=1 / total_units)


def _logits(x: Any, classes: int) -> Any:
    x = tf.reduce_mean(x, [1, 2], keepdims=True)
    x = layers.conv(x, "logits", classes, 1, activation=layers.linear, gain=1.0)
    return tf.squeeze(x, [1, 2])
