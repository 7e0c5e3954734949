"""The layers that the networks are made of: convolution, pooling, normalisation, dense layers.

Images are ``[batch, height, width, channels]``. Every convolution and dense layer has a bias, as
the counts of variables in the papers imply. Initial values are drawn so that the size of
activations is kept (He et al., 2015, arXiv:1502.01852), from the graph's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

Activation = Callable[[Any], Any]


def linear(x: Any) -> Any:
    """No activation."""
    return x


def weights(shape: Sequence[int], dtype: Any, *, gain: float = 2.0, name: str = "weights") -> Any:
    """A trainable variable of the given shape; `gain` is the variance that a layer keeps."""
    initializer = tf1.variance_scaling_initializer(scale=gain)
    return tf1.get_variable(name, shape, dtype, initializer=initializer, use_resource=True)


def biases(channels: int, dtype: Any) -> Any:
    """A trainable variable of zeros, one for each channel."""
    return tf1.get_variable(
        "biases", [channels], dtype, initializer=tf1.zeros_initializer(), use_resource=True
    )


def conv(
    x: Any,
    name: str,
    filters: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    *,
    padding: str = "SAME",
    activation: Activation = tf.nn.relu,
    gain: float = 2.0,
) -> Any:
    """A convolution with bias and activation."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    with tf1.variable_scope(name):
        w = weights([height, width, x.shape[3], filters], x.dtype, gain=gain)
        y = tf.nn.conv2d(x, w, strides=stride, padding=padding)
        return activation(tf.nn.bias_add(y, biases(filters, x.dtype)))


def conv_like_caffe(
    x: Any, name: str, filters: int, kernel: int, stride: int, **options: Any
) -> Any:
    """A convolution padded alike on both sides whatever the stride, as ResNet's are."""
    if stride == 1:
        return conv(x, name, filters, kernel, **options)
    before = (kernel - 1) // 2
    after = kernel - 1 - before
    padded = tf.pad(x, [[0, 0], [before, after], [before, after], [0, 0]])
    return conv(padded, name, filters, kernel, stride, padding="VALID", **options)


def separable_conv(x: Any, name: str, filters: int, kernel: int, stride: int, depth: int) -> Any:
    """A convolution of each channel by itself into `depth`, then one of 1x1, bias, activation."""
    channels = x.shape[3]
    with tf1.variable_scope(name):
        depthwise = weights([kernel, kernel, channels, depth], x.dtype, name="depthwise_weights")
        pointwise = weights([1, 1, channels * depth, filters], x.dtype, name="pointwise_weights")
        y = tf.nn.separable_conv2d(x, depthwise, pointwise, [1, stride, stride, 1], "SAME")
        return tf.nn.relu(tf.nn.bias_add(y, biases(filters, x.dtype)))


def dense(x: Any, name: str, units: int, *, activation: Activation = tf.nn.relu) -> Any:
    """A dense layer on vectors, with bias and activation."""
    with tf1.variable_scope(name):
        w = weights([x.shape[1], units], x.dtype)
        return activation(tf.nn.bias_add(tf.matmul(x, w), biases(units, x.dtype)))


def max_pool(x: Any, kernel: int, stride: int = 1, padding: str = "SAME") -> Any:
    """The largest value in each window."""
    return tf.nn.max_pool2d(x, kernel, stride, padding)


def avg_pool(x: Any, kernel: int, stride: int = 1, padding: str = "SAME") -> Any:
    """The mean of each window."""
    return tf.nn.avg_pool2d(x, kernel, stride, padding)


def resized(x: Any, size: int) -> Any:
    """Feature maps of ``size x size``; those of another size repeat or skip their nearest values.

    So a layer that takes whole maps keeps its parameters when images are smaller or larger.
    """
    if x.shape[1] == x.shape[2] == size:
        return x
    return tf1.image.resize_nearest_neighbor(x, [size, size])


def dropout(x: Any, rate: float) -> Any:
    """Entries set to zero with probability `rate`, the others scaled up."""
    return tf.nn.dropout(x, rate=rate) if rate else x


def batch_norm(x: Any, name: str) -> Any:
    """Batch normalisation without scale (gamma), as `tf_slim` does it by default, and ReLU.

    Its moving averages are updated by ops in the collection ``UPDATE_OPS``.
    """
    channels = x.shape[3]
    with tf1.variable_scope(name):
        beta = tf1.get_variable(
            "beta", [channels], x.dtype, tf1.zeros_initializer(), use_resource=True
        )
        if x.dtype == tf.float64:  # there is no fused kernel
            mean, variance = tf.nn.moments(x, [0, 1, 2])
            y = tf.nn.batch_normalization(x, mean, variance, beta, None, 0.001)
        else:
            y, mean, variance = tf1.nn.fused_batch_norm(x, tf.ones([channels]), beta)
        _update_average("moving_mean", mean, tf1.zeros_initializer())
        _update_average("moving_variance", variance, tf1.ones_initializer())
        return tf.nn.relu(y)


def _update_average(name: str, value: Any, initializer: Any, decay: float = 0.999) -> None:
    average = tf1.get_variable(
        name, value.shape, value.dtype, initializer, trainable=False, use_resource=True
    )
    update = average.assign_sub((average - value) * (1 - decay), read_value=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
