"""A checkpoint of another model is restored only when asked, and what differs is said."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import caramel
import caramel.runtime.checkpoint
from caramel.core.errors import CheckpointError
from tests.support import networks
from tests.support.networks import parameter

tf1 = tf.compat.v1


def job(optimizer="adam"):
    with tf.Graph().as_default() as graph:
        x, y, feed = networks.inputs(12)
        loss = networks.cross_entropy(x @ parameter("w", [6, 3]), y)
        train_op, raw = networks.optimized(loss, networks.OPTIMIZERS[optimizer])
    return networks.Network(graph, train_op, loss, feed, raw)


@pytest.fixture
def without_slots(tmp_path):
    """A checkpoint of the parameters alone, by TensorFlow's saver."""
    network = job()
    with network.graph.as_default(), tf1.Session() as single:
        single.run(tf1.global_variables_initializer())
        single.run(network.train_op, network.feed)
        path = tf1.train.Saver(tf1.trainable_variables()).save(single, str(tmp_path / "m"))
        return path, single.run(tf1.trainable_variables())[0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_checkpoint_without_slots_restores_what_it_has(without_slots, caplog, workers):
    path, expected = without_slots
    network = job()
    with caramel.ARModel(network.context(), workers=workers).session() as session:
        session.step(network.feed)
        before = session.variables()
        with caplog.at_level(logging.WARNING, "caramel"):
            missing = session.restore(path, partial=True)
        assert set(missing) == set(before) - {"w"}
        assert f"lacks {len(missing)} variables, which are as they were: '" in caplog.text
        for worker in range(workers):
            values = session.variables(worker)
            np.testing.assert_array_equal(values["w"], expected)
            for name in missing:
                np.testing.assert_array_equal(values[name], before[name])


def test_it_is_refused_without_being_asked_for(without_slots):
    path, _ = without_slots
    with caramel.ARModel(job().context(), workers=2).session() as session:
        before = session.variables()
        with pytest.raises(CheckpointError, match=r"'w/Adam'.*restore\(..., partial=True\)"):
            session.restore(path)
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, before[name])


def test_a_checkpoint_that_holds_nothing_of_the_graph_is_refused(tmp_path):
    other = caramel.runtime.checkpoint.write_checkpoint(
        tmp_path / "other", [caramel.runtime.checkpoint.SavedTensor("v", "", np.zeros(3))]
    )
    with (
        caramel.ARModel(job().context(), workers=2).session() as session,
        pytest.raises(CheckpointError, match="holds none of the graph's .* variables.*'w'"),
    ):
        session.restore(other, partial=True)


@pytest.mark.parametrize("partial", [False, True])
def test_what_is_left_over_of_a_larger_model_is_said(tmp_path, caplog, partial):
    with caramel.ARModel(job("adam").context(), workers=2).session() as session:
        path = session.save(tmp_path / "m")
        expected = session.variables()["w"]
    with caramel.ARModel(job("gradient_descent").context(), workers=2).session() as session:
        with caplog.at_level(logging.WARNING, "caramel"):
            assert session.restore(path, partial=partial) == ()
        assert "of which the graph has no variable: 'beta1_power'" in caplog.text
        assert len(caplog.records) == 1
        np.testing.assert_array_equal(session.variables()["w"], expected)


def test_a_checkpoint_of_the_same_model_is_restored_without_a_word(tmp_path, caplog):
    with caramel.ARModel(job().context(), workers=2).session() as session:
        path = session.save(tmp_path / "m")
        with caplog.at_level(logging.WARNING, "caramel"):
            session.restore(path)
    assert not caplog.records
