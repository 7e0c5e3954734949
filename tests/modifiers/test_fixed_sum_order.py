"""Sums of the user's graph are added in a fixed order on every worker."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.graph_reader import called_functions
from caramel.modifiers.fixed_sum_order import order_sums
from tests.support import networks

tf1 = tf.compat.v1


def sums_in(graph_def):
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return [node for node in nodes if node.op == "AddN"]


def job_with_sums(dtype=tf.float32):
    """A parameter read four times, so that its gradient is a sum of four; one sum in a function."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = networks.inputs(24, dtype)
        w = networks.parameter("w", [networks.FEATURES, networks.FEATURES], dtype)
        out = networks.parameter("out", [networks.FEATURES, networks.CLASSES], dtype)

        @tf.function
        def mixed(a):
            return tf.add_n([a, tf.sin(a), tf.cos(a), a * a])

        hidden = x
        for _ in range(4):
            hidden = tf.tanh(mixed(hidden) @ w)
        loss = networks.cross_entropy(hidden @ out, y)
        train_op, raw = networks.optimized(loss, networks.OPTIMIZERS["momentum"])
    return networks.Network(graph, train_op, loss, feed, raw)


def test_a_sum_of_many_becomes_a_chain_from_left_to_right():
    job = job_with_sums()
    assert sums_in(job.graph.as_graph_def())
    model = caramel.ARModel(job.context(), workers=2, check=True)
    graph_def = model.graph.as_graph_def()
    assert not [node for node in sums_in(graph_def) if node.attr["N"].i > 2]
    called = {name for node in graph_def.node for name in called_functions(node)}
    assert called <= {function.signature.name for function in graph_def.library.function}


def test_a_graph_without_such_sums_is_left_alone():
    with tf.Graph().as_default() as graph:
        tf.add_n([tf.constant(1.0), tf.constant(2.0)])
    graph_def = graph.as_graph_def()
    assert order_sums(graph_def, None) is graph_def


def test_the_input_is_not_edited_and_controls_are_kept():
    with tf.Graph().as_default() as graph:
        operands = [tf.constant(float(number)) for number in range(4)]
        with tf.control_dependencies([tf.no_op("before")]):
            tf.add_n(operands, name="total")
    graph_def = graph.as_graph_def()
    text = str(graph_def)
    (total,) = [n for n in order_sums(graph_def, None).node if n.name == "total"]
    assert str(graph_def) == text
    assert total.input[0] == "total/ordered_1"
    assert total.input[-1] == "^before"
    assert total.op == "AddV2"


def test_the_sums_are_those_of_one_device():
    networks.assert_equals_one_device(job_with_sums(tf.float64), 3)


@pytest.mark.onednn
def test_float32_training_repeats_bit_for_bit():
    job = job_with_sums()
    model = caramel.ARModel(job.context(), workers=3)
    results = []
    for _ in range(3):
        with model.session() as session:
            for _ in range(10):
                session.step(job.feed)
            results.append(session.variables())
    for result in results[1:]:
        for name, value in result.items():
            np.testing.assert_array_equal(value, results[0][name], err_msg=name)
