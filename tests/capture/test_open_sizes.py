"""Sizes of tensors by the number of examples are those that tensors have when so many are fed."""

from __future__ import annotations

import numpy as np

import caramel
from caramel.capture.open_sizes import sizes_with
from tests.support import models, pipelines
from tests.support.networks import built_network, tf, tf1


def open_tensors(job):
    step = job.context().op_graph.ancestors([job.train_op.name])
    return [
        tensor
        for op in job.graph.get_operations()
        if op.name in step
        for tensor in op.outputs
        if tensor.dtype.is_floating and not tensor.shape.is_fully_defined()
    ]


def test_sizes_are_those_of_tensors_that_are_fed():
    job = built_network("adam", "clip_by_global_norm", model=models.convolution, number=24)
    tensors = open_tensors(job)
    with tf1.Session(graph=job.graph) as session:
        with job.graph.as_default():
            session.run(tf1.global_variables_initializer())
        values = session.run([*tensors, job.train_op], job.feed)
    found = sizes_with(job.context(), 24)
    assert len(tensors) > 5
    for tensor, value in zip(tensors, values[:-1], strict=True):
        assert found[tensor.name] == np.asarray(value).nbytes, tensor.name


def test_sizes_of_what_an_iterator_gives():
    job = pipelines.job(lambda: pipelines.numbers(12).batch(4))
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    assert sizes_with(context, 4)[job.ids.name] == 4 * job.ids.dtype.size
    assert sizes_with(context, 8)[job.ids.name] == 8 * job.ids.dtype.size


def test_a_graph_that_cannot_take_so_many_examples():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, (None, 4), "x")
        w = tf1.get_variable("w", (4, 2), tf.float64)
        loss = tf.reduce_mean(tf.reshape(x @ w, (6, 5, 2)))
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train, loss=loss)
    assert sizes_with(context, 7) == {}
    assert sizes_with(context, 30)["x:0"] == 30 * 4 * 8
