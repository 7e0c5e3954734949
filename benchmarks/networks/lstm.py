"""An LSTM (Hochreiter and Schmidhuber, 1997) over the rows of a digit, unrolled: without a loop.

As the example `recurrent_network` of github.com/aymericdamien/TensorFlow-Examples, which the
partitioning paper takes: 28 rows of 28 pixels, one layer of 128 units, and the digit from the last
output. All steps read the same two variables, each by an op of its own, as TensorFlow's cells do.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.networks import layers

tf1 = tf.compat.v1

UNITS = 128
_FORGET = 1.0  # what the forget gate's input has more, so that the state is kept at first


def lstm(rows: Any, classes: int, dropout: float) -> list[Any]:
    """The logits."""
    steps = tf.unstack(rows, axis=1)
    with tf1.variable_scope("cell"):
        kernel = layers.weights([rows.shape[2] + UNITS, 4 * UNITS], rows.dtype, gain=1.0)
        bias = layers.biases(4 * UNITS, rows.dtype)
    output = state = tf.zeros([tf.shape(rows)[0], UNITS], rows.dtype)
    for number, row in enumerate(steps):
        with tf1.name_scope(f"step_{number:02}"):
            gates = tf.nn.bias_add(tf.matmul(tf.concat([row, output], 1), kernel), bias)
            enter, new, forget, leave = tf.split(gates, 4, 1)
            kept = state * tf.sigmoid(forget + _FORGET)
            state = kept + tf.sigmoid(enter) * tf.tanh(new)
            output = tf.tanh(state) * tf.sigmoid(leave)
    output = layers.dropout(output, dropout)
    return [layers.dense(output, "logits", classes, activation=layers.linear)]
