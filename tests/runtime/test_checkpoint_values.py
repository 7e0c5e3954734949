"""Checkpoints hold every kind of value, to the byte, for Caramel and for TensorFlow's own saver."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CheckpointError

tf1 = tf.compat.v1

BFLOAT16 = tf.bfloat16.as_numpy_dtype
VALUES = {
    "text": np.array("run 7", object),
    "empty_text": np.array(b"", object),
    "zeros_at_the_end": np.array(b"a\0\0", object),
    "no_utf8": np.array(b"\xff\xfe\0x", object),
    "texts": np.array([[b"", b"a\0"], [b"\x80", "ä".encode()]], object),
    "no_texts": np.array([], object),
    "switch": np.array([True, False]),
    "complex64": np.array(1 - 2j, np.complex64),
    "complex128": np.array([1j, 2], np.complex128),
    "bfloat16": np.array([1.5, -2], BFLOAT16),
    "half": np.array([[0.5]], np.float16),
    "int8": np.array([-128, 127], np.int8),
    "uint64": np.array(2**64 - 1, np.uint64),
    "no_rows": np.zeros((0, 3), np.float32),
}


def built(values):
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None])
        w = tf1.get_variable("w", [], tf.float64, tf1.zeros_initializer(), use_resource=True)
        for name, value in values.items():
            initial = tf.constant(value, tf.string if value.dtype == object else None)
            tf1.get_variable(name, initializer=initial, trainable=False, use_resource=True)
        loss = tf.reduce_mean(tf.square(w - x), name="loss")
        tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return graph


def opened(graph, workers=2):
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    return caramel.ARModel(context, workers=workers).session()


def emptied(values):
    return {name: np.zeros(value.shape, value.dtype) for name, value in values.items()} | {
        name: np.full(value.shape, b"", object)
        for name, value in values.items()
        if value.dtype == object
    }


def as_bytes(value):
    return [x.encode() if isinstance(x, str) else x for x in np.ravel(np.array(value, object))]


def assert_same(values, expected):
    for name, value in expected.items():
        assert as_bytes(values[name]) == as_bytes(value), name
        assert np.shape(values[name]) == value.shape, name


@pytest.mark.parametrize("workers", [1, 3])
def test_caramel_restores_what_a_saver_saved(tmp_path, workers):
    graph = built(VALUES)
    with graph.as_default(), tf1.Session() as single:
        single.run(tf1.global_variables_initializer())
        path = tf1.train.Saver().save(single, str(tmp_path / "model"))
    with opened(built(emptied(VALUES)), workers) as session:
        assert session.restore(path) == ()
        for worker in range(workers):
            assert_same(session.variables(worker), VALUES)


def test_a_saver_restores_what_caramel_saved(tmp_path):
    with opened(built(VALUES)) as session:
        path = session.save(tmp_path / "model")
        session.restore(path)
        assert_same(session.variables(), VALUES)
    with built(emptied(VALUES)).as_default(), tf1.Session() as single:
        tf1.train.Saver().restore(single, path)
        assert_same(single.run({v.op.name: v for v in tf1.global_variables()}), VALUES)


def test_a_value_of_another_kind_is_refused(tmp_path):
    with opened(built({"a": np.array(b"1", object)})) as session:
        path = session.save(tmp_path / "model")
    with (
        opened(built({"a": np.array(1.0)})) as session,
        pytest.raises(CheckpointError, match=r"has 'a' as string .*the graph as float64"),
    ):
        session.restore(path)


@pytest.mark.parametrize("dtype", [tf.float64, tf.int32, tf.string, tf.complex64, tf.bool])
def test_partitioned_variables_of_any_kind_are_saved_and_restored(tmp_path, dtype):
    value = np.array([[b"a\0", b"b"], [b"", b"c"], [b"d", b"e"]], object)
    if dtype != tf.string:
        value = np.arange(6).reshape(3, 2).astype(dtype.as_numpy_dtype)

    def build(value):
        graph = built({})
        with graph.as_default():
            tf1.get_variable(
                "parts",
                [3, 2],
                dtype,
                initializer=lambda shape, partition_info=None, dtype=None: tf.slice(
                    tf.constant(value, dtype), partition_info.var_offset, shape
                ),
                partitioner=tf1.fixed_size_partitioner(2),
                trainable=False,
                use_resource=True,
            )
        return graph

    with opened(build(value)) as session:
        path = session.save(tmp_path / "model")
    nothing = np.full(value.shape, b"" if dtype == tf.string else 0, value.dtype)
    with opened(build(nothing)) as session:
        session.restore(path)
        values = session.variables()
        parts = [values[f"parts/part_{part}"] for part in range(2)]
        assert as_bytes(np.concatenate(parts)) == as_bytes(value)
    with build(nothing).as_default(), tf1.Session() as single:
        tf1.train.Saver().restore(single, path)
        parts = single.run([v for v in tf1.global_variables() if "parts" in v.name])
        assert as_bytes(np.concatenate(parts)) == as_bytes(value)
