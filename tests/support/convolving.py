"""Convolutions with gradients as a lowered Keras model has them: no `Identity` stands between."""

from __future__ import annotations

from tests.support import networks
from tests.support.networks import CLASSES, FEATURES, parameter, tf


def biased(x, w, b):
    """A convolution with a bias, whose three gradients read one tensor."""

    @tf.custom_gradient
    def layer(x, w, b):
        y = tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)

        def gradient(of_y):
            shape_x, shape_w = tf.raw_ops.ShapeN(input=[x, w])
            alike = {"out_backprop": of_y, "strides": [1] * 4, "padding": "SAME"}
            of_x = tf.raw_ops.Conv2DBackpropInput(input_sizes=shape_x, filter=w, **alike)
            of_w = tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=shape_w, **alike)
            return of_x, of_w, tf.raw_ops.BiasAddGrad(out_backprop=of_y)

        return y, gradient

    return layer(x, w.read_value(), b.read_value())


def as_images(x):
    """Examples as images of 4 x 4 x 2."""
    return tf.reshape(x @ parameter("w", [FEATURES, 32], x.dtype), [-1, 4, 4, 2])


def lowered(x):
    """Three convolutions."""
    h = as_images(x)
    for number in range(3):
        w = parameter(f"w{number}", [3, 3, h.shape[-1], 4], x.dtype)
        h = tf.tanh(biased(h, w, parameter(f"b{number}", [4], x.dtype)))
    return tf.reduce_mean(h, [1, 2]) @ parameter("out", [4, CLASSES], x.dtype)


def usual(x):
    """The same with gradients as `tf.gradients` makes them, behind an `Identity` each."""
    h = as_images(x)
    for number in range(3):
        w = parameter(f"w{number}", [3, 3, h.shape[-1], 4], x.dtype)
        h = tf.nn.conv2d(h, w, 1, "SAME")
        h = tf.tanh(tf.nn.bias_add(h, parameter(f"b{number}", [4], x.dtype)))
    return tf.reduce_mean(h, [1, 2]) @ parameter("out", [4, CLASSES], x.dtype)


def job(model=lowered, optimizer="momentum", dtype=tf.float32) -> networks.Network:
    return networks.network(optimizer, model=model, dtype=dtype)


def gradient_of(context, parameter: str) -> str:
    """The op that puts out a parameter's gradient."""
    cuts = networks.frontier_of(context).cuts
    return next(c.gradient.values.op for c in cuts if c.gradient.parameter == parameter)


def shape_of_filter(context, parameter: str) -> str:
    """The op that tells the shape of a filter to what computes its gradient."""
    return context.op_graph[gradient_of(context, parameter)].inputs[1].op
