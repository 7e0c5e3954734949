"""The same model gives the same graph, whatever the process has built before."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import caramel
from caramel.capture.counted_names import CountedNames
from caramel.capture.functions import lower
from caramel.core.util.fingerprint import graph_hash

layers = keras.layers
pytestmark = pytest.mark.usefixtures("float64")


def lowered(classes=3, *, makes_slots=False):
    """A step of a model that is new: with loops, conditionals, slots, and a layer with a name.

    Args:
        classes: how many there are.
        makes_slots: whether the step makes them. It is traced twice then.
    """
    words = keras.Input((4,), dtype="int32")
    hidden = layers.Bidirectional(layers.GRU(3))(layers.Embedding(9, 5)(words))
    hidden = layers.Dropout(0.1)(layers.Dense(4, name="mine_7")(hidden))
    model = keras.Model(words, layers.Dense(classes)(layers.Dense(4, "silu")(hidden)))
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
    if not makes_slots:
        optimizer.build(model.trainable_weights)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = caramel.loss(loss_of(y, model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        return loss

    return lower(step, [tf.TensorSpec([None, 4], tf.int32), tf.TensorSpec([None], tf.int32)])


def test_a_model_that_is_made_again_has_the_same_graph():
    first = lowered(makes_slots=True)
    other, second = lowered(classes=4), lowered()
    hashes = [graph_hash(each.graph.as_graph_def()) for each in (first, second, other)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
    assert list(first.variables) == list(second.variables)
    assert {
        *("embedding/embeddings", "bidirectional/forward_gru/gru_cell/bias", "mine_7/kernel"),
        *("dense/kernel", "dense_1/bias", "adam/dense_1_bias_velocity"),
        *("adam/bidirectional_backward_gru_gru_cell_kernel_momentum", "adam/mine_7_bias_momentum"),
    } < set(first.variables)


def test_counts_begin_in_each_scope():
    names = CountedNames()
    assert names.of_variable("functional_4/dense_7/kernel") == "functional/dense/kernel"
    assert names.of_variable("functional_4/dense_9/kernel") == "functional/dense_1/kernel"
    assert names.of_variable("adam_3/functional_4_dense_9_kernel_velocity") == (
        "adam/functional_dense_1_kernel_velocity"
    )
    # An op may be in a scope that is called as a variable's is.
    assert names.of_op("functional_4/dense_7/MatMul") == "functional_1/dense/MatMul"
    assert names.of_op("functional_4/dense_7/Add_2") == "functional_1/dense/Add_2"
    assert names.of_op("functional_4/mine_9/Add") == "functional_1/mine_9/Add"
