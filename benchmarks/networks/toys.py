"""Seq-32 and Par-32: the two extremes of how transfers can be ordered ("Execution ordering").

In Seq-32 one dense layer follows the other, and one order of the transfers is the best; in Par-32
all layers read the input and their outputs are added up, and all orders are as good. The paper
does not say how large the layers are: here each has one matrix of 1 MiB in float32.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.networks import layers

tf1 = tf.compat.v1

WIDTH = 512
LAYERS = 32


def seq_32(vectors: Any, classes: int, dropout: float) -> list[Any]:
    """The last layer's output, as logits."""
    x = vectors
    for number in range(LAYERS):
        x = tf.nn.relu(_layer(x, number))
    return [x]


def par_32(vectors: Any, classes: int, dropout: float) -> list[Any]:
    """The mean of all layers' outputs, as logits."""
    return [tf.add_n([_layer(vectors, number) for number in range(LAYERS)]) / LAYERS]


def _layer(x: Any, number: int) -> Any:
    with tf1.variable_scope(f"layer_{number:02}"):
        return tf.matmul(x, layers.weights([WIDTH, WIDTH], x.dtype))
