"""What several workers bring, in words for who has read no paper."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.util import progress
from caramel.profiling.gain import Gain, gain
from tests.support.displays import Recorded
from tests.support.networks import network, wide


def test_workers_that_share_a_machine_are_told_why_they_gain_nothing():
    found = Gain(workers=2, cores=2, alone_s=0.04, step_s=0.05, apart_s=0.02)
    assert str(found).splitlines() == [
        "one worker alone: 40.0 ms a step with the same batch",
        "2 workers: 50.0 ms a step, 0.80 times as fast as one",
        "why: the 2 workers share this machine's 2 cores, which one worker alone keeps busy; "
        "nothing can be gained",
        "on 2 machines like this one with links of 1 Gbit/s 20.0 ms are predicted, 2.00 times as "
        "fast as one",
    ]


def test_what_is_gained_needs_no_reason():
    found = Gain(workers=4, cores=None, alone_s=0.4, step_s=0.2, apart_s=0.2)
    assert str(found).splitlines()[1:] == ["4 workers: 200.0 ms a step, 2.00 times as fast as one"]


def test_transfers_that_take_longer_than_what_is_saved_are_the_reason():
    found = Gain(workers=4, cores=None, alone_s=0.1, step_s=0.2, apart_s=None)
    assert str(found).splitlines()[-1].startswith("why: the transfers take longer")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_is_measured_and_predicted(workers, monkeypatch):
    job, display = network("momentum", model=wide), Recorded()
    monkeypatch.setattr(progress, "_display", display)
    found = gain(job.context(), job.feed, cluster=caramel.Cluster.embedded(workers), step_s=1.0)
    assert found.alone_s > 0
    assert found.cores is not None
    assert (found.apart_s is None) == (workers == 1)
    assert display.begun[0] == "measuring one worker alone"


@pytest.mark.parametrize("given", [["weights"], []])
def test_what_every_worker_is_fed_whole_is_not_cut(given):
    """Weights of classes are looked up by labels: given as such, and found in the graph."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.sparse_placeholder(tf.float32, [None, 4], name="x")
        y = tf1.placeholder(tf.int32, [None], name="y")
        weights = tf1.placeholder(tf.float32, [6], name="weights")
        w = tf1.get_variable("w", [4, 6], use_resource=True)
        logits = tf.sparse.sparse_dense_matmul(x, w)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = tf.reduce_mean(losses * tf.gather(weights, y))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss, replicated_feeds=given)
    dense = tf1.SparseTensorValue([[n, n % 4] for n in range(6)], np.ones(6, "f"), [6, 4])
    feeds = {(x, y): (dense, np.arange(6)[::-1]), "weights:0": np.ones(6, "f")}
    found = gain(context, feeds, cluster=caramel.Cluster.embedded(2), step_s=1.0)
    assert found.apart_s > 0
