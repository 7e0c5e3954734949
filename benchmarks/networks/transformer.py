"""A transformer that predicts the next token: the decoder of Vaswani et al. (arXiv:1706.03762).

Six layers of its base size: 512 numbers for each token, 8 heads, 2048 units between. What is added
is normalised before each part and not behind it, as in GPT-2, so that training needs no warm-up;
positions have a table of their own. Tokens see only those before them.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from benchmarks.networks import layers

tf1 = tf.compat.v1

LAYERS = 6
WIDTH = 512
HEADS = 8
BETWEEN = 2048
_LOWEST = -1e9  # what is added to the scores of tokens that come later


def transformer(tokens: Any, classes: int, dropout: float) -> list[Any]:
    """The logits of the token behind each."""
    length = int(tokens.shape[1])
    gain = float(classes)  # so that rows have a variance of 1
    table = layers.weights([classes, WIDTH], tf.float32, gain=gain, name="tokens")
    places = layers.weights([length, WIDTH], tf.float32, gain=float(length), name="positions")
    x = layers.dropout(tf.nn.embedding_lookup(table, tokens) + places, dropout)
    for number in range(LAYERS):
        with tf1.variable_scope(f"layer_{number}"):
            x += layers.dropout(_attention(_normal(x, "before_attention")), dropout)
            x += layers.dropout(_between(_normal(x, "before_dense")), dropout)
    logits = _dense(_normal(x, "last"), "logits", classes)
    return [logits]


def _attention(x: Any) -> Any:
    """What each token takes of those before it, and of itself."""
    length, size = int(x.shape[1]), WIDTH // HEADS
    query, key, value = (_by_head(_dense(x, name, WIDTH)) for name in ("query", "key", "value"))
    scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(size)
    later = 1 - tf.linalg.band_part(tf.ones([length, length], x.dtype), -1, 0)
    taken = tf.matmul(tf.nn.softmax(scores + _LOWEST * later), value)
    joined = tf.reshape(tf.transpose(taken, [0, 2, 1, 3]), [-1, length, WIDTH])
    return _dense(joined, "output", WIDTH)


def _by_head(x: Any) -> Any:
    """``[batch, length, WIDTH]`` as ``[batch, HEADS, length, WIDTH / HEADS]``."""
    split = tf.reshape(x, [-1, int(x.shape[1]), HEADS, WIDTH // HEADS])
    return tf.transpose(split, [0, 2, 1, 3])


def _between(x: Any) -> Any:
    """The two dense layers of each token."""
    return _dense(tf.nn.relu(_dense(x, "enter", BETWEEN, gain=2.0)), "leave", WIDTH)


def _dense(x: Any, name: str, units: int, *, gain: float = 1.0) -> Any:
    """A dense layer on each token, with bias."""
    length, width = int(x.shape[1]), int(x.shape[2])
    with tf1.variable_scope(name):
        w = layers.weights([width, units], x.dtype, gain=gain)
        flat = tf.matmul(tf.reshape(x, [-1, width]), w)
        y = tf.nn.bias_add(flat, layers.biases(units, x.dtype))
    return tf.reshape(y, [-1, length, units])


def _normal(x: Any, name: str) -> Any:
    """Layer normalisation (Ba et al., arXiv:1607.06450)."""
    with tf1.variable_scope(name):
        scale = tf1.get_variable(
            "scale", [WIDTH], x.dtype, tf1.ones_initializer(), use_resource=True
        )
        mean, variance = tf.nn.moments(x, [2], keepdims=True)
        return tf.nn.batch_normalization(
            x, mean, variance, layers.biases(WIDTH, x.dtype), scale, 1e-6
        )
