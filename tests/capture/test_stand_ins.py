"""Variables that are made many at once are those that TensorFlow makes one by one."""

from __future__ import annotations

import pytest
import tensorflow as tf

from caramel.capture.stand_ins import variables_like

tf1 = tf.compat.v1
# Names that are there already, but for the case of their letters, and those of other ops.
KINDS = [
    ("dense/kernel", [3, 4], tf.float32, True),
    ("dense/kernel", [3, 4], tf.float32, False),
    ("Dense/Kernel", [40, 50], tf.float64, True),
    ("dense", [], tf.int64, False),
    ("zeros", [0, 3], tf.bfloat16, True),
    ("zeros_1", [2], tf.string, False),
    ("variable", [2], tf.bool, False),
    ("zeros/variable", [40, 50], tf.float64, True),
]


def one_by_one(others):
    for name, other in others:
        zeros = tf.zeros(other.shape, other.dtype)
        yield tf1.Variable(zeros, trainable=other.trainable, use_resource=True, name=name)


def made(make):
    """A graph with them, and what it tells of them."""
    others = [
        (name, tf.Variable(tf.zeros(shape, dtype), trainable=trainable))
        for name, shape, dtype, trainable in KINDS
    ]
    with tf.Graph().as_default() as graph:
        own = [each for some in (others[:3], others[3:], []) for each in make(some)]
        tf.identity(own[0], name="dense")
        told = [str(each.to_proto()) for each in own]
        told += [(each.dtype, each.shape, each.trainable, each.handle.name) for each in own]
    collections = {
        key: [own.index(each) for each in graph.get_collection(key)]
        for key in graph.get_all_collection_keys()
    }
    return graph.as_graph_def(add_shapes=True), told, collections


def test_they_are_those_that_are_made_one_by_one(monkeypatch):
    monkeypatch.setattr(tf.Variable, "__eq__", object.__eq__)  # so that `index` finds each
    assert made(variables_like) == made(one_by_one)


def test_a_shape_that_is_not_known_is_refused():
    other = tf.Variable([1.0], shape=[None])
    with tf.Graph().as_default(), pytest.raises(ValueError, match="partially known TensorShape"):
        list(variables_like([("a", other)]))
