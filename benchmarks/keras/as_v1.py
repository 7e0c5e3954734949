"""The layers of a functional Keras model, written by hand as a training graph of v1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import caramel

tf1 = tf.compat.v1
layers = keras.layers


class _Graph:
    """The graph that is written.

    Args:
        model: whose layers are to be in it.

    Attributes:
        statistics: the updates of moving averages.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._initial = {id(variable): variable.numpy() for variable in model.variables}
        self.statistics: list[Any] = []

    def variable(self, own: Any) -> Any:
        """A variable with the value of a layer's."""
        value, trainable = self._initial[id(own)], own.trainable
        return tf1.get_variable(own.name, initializer=value, trainable=trainable, use_resource=True)

    def output(self, x: Any) -> Any:
        """What the model puts out."""
        model = self._model
        values = {id(model.inputs[0]): x}
        for operation in model.operations:
            for node in operation._inbound_nodes:
                if isinstance(operation, layers.InputLayer) or id(node.outputs[0]) in values:
                    continue
                found = [values.get(id(tensor)) for tensor in node.input_tensors]
                if any(value is None for value in found):  # of another model
                    continue
                with tf1.variable_scope(operation.name):
                    made = _MADE[type(operation)](operation, self, *found)
                values[id(node.outputs[0])] = made
        return values[id(model.outputs[0])]


def context_of(model: Any, learning_rate: float, momentum: float) -> caramel.Context:
    """A job that trains a model's layers, with batches fed as ``x:0`` and ``y:0``."""
    own = _Graph(model)
    with tf.Graph().as_default() as graph:
        given = model.inputs[0]
        x = tf1.placeholder(given.dtype, given.shape, name="x")
        labels = tf1.placeholder(tf.int64, [None], name="y")
        logits = own.output(x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses)
        update = tf1.train.MomentumOptimizer(learning_rate, momentum).minimize(loss)
        train_op = tf.group(update, *own.statistics)
        return caramel.Context(graph, train_op=train_op, loss=loss)


def _activated(layer: Any, value: Any) -> Any:
    return {"linear": tf.identity, "relu": tf.nn.relu}[layer.activation.__name__](value)


def _convolved(layer: Any, graph: _Graph, x: Any) -> Any:
    padding, strides = layer.padding.upper(), layer.strides
    x = tf.nn.conv2d(x, graph.variable(layer.kernel), strides, padding)
    return _activated(layer, tf.nn.bias_add(x, graph.variable(layer.bias)))


def _normalised(layer: Any, graph: _Graph, x: Any) -> Any:
    gamma, beta, mean, variance = map(
        graph.variable, (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
    )
    x, own_mean, own_variance = tf1.nn.fused_batch_norm(x, gamma, beta, epsilon=layer.epsilon)
    for moving, own in ((mean, own_mean), (variance, own_variance)):
        graph.statistics.append(moving.assign_sub((moving - own) * (1 - layer.momentum)))
    return x


def _padded(layer: Any, graph: _Graph, x: Any) -> Any:
    return tf.pad(x, [(0, 0), *layer.padding, (0, 0)])


def _pooled(layer: Any, graph: _Graph, x: Any) -> Any:
    return tf.nn.max_pool2d(x, layer.pool_size, layer.strides, layer.padding.upper())


def _dense(layer: Any, graph: _Graph, x: Any) -> Any:
    kernel, bias = graph.variable(layer.kernel), graph.variable(layer.bias)
    return _activated(layer, tf.nn.bias_add(tf.tensordot(x, kernel, 1), bias))


def _embedded(layer: Any, graph: _Graph, x: Any) -> Any:
    return tf.nn.embedding_lookup(graph.variable(layer.embeddings), x)


def _layer_normalised(layer: Any, graph: _Graph, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    gamma, beta = graph.variable(layer.gamma), graph.variable(layer.beta)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, layer.epsilon)


def _attended(layer: Any, graph: _Graph, query: Any, value: Any) -> Any:
    def projected(part: Any, x: Any) -> Any:
        with tf1.variable_scope(part.name):
            kernel, bias = graph.variable(part.kernel), graph.variable(part.bias)
        return tf.einsum(part.equation, x, kernel) + bias

    query = projected(layer.query_dense, query)
    key, value = projected(layer.key_dense, value), projected(layer.value_dense, value)
    scores = tf.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(layer.key_dim)
    found = tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)
    return projected(layer.output_dense, found)


_MADE: Mapping[Any, Callable[..., Any]] = {
    layers.Activation: lambda layer, graph, x: _activated(layer, x),
    layers.Add: lambda layer, graph, x, y: x + y,
    layers.BatchNormalization: _normalised,
    layers.Conv2D: _convolved,
    layers.Dense: _dense,
    layers.Embedding: _embedded,
    layers.GlobalAveragePooling1D: lambda layer, graph, x: tf.reduce_mean(x, 1),
    layers.GlobalAveragePooling2D: lambda layer, graph, x: tf.reduce_mean(x, [1, 2]),
    layers.LayerNormalization: _layer_normalised,
    layers.MaxPooling2D: _pooled,
    layers.MultiHeadAttention: _attended,
    layers.ZeroPadding2D: _padded,
}
