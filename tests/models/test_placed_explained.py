"""What a placed model explains, before it trains and beside what was traced."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

import caramel
from caramel.cli.trace import show_traced, trace_job
from caramel.cli.user_job import UserJob
from tests.support.networks import tf, tf1

SIDE = 512
MIB = SIDE * SIDE * 4  # bytes of a tensor of this side


def job():
    """Updates a matrix of 1 MiB by what tanh and a second matrix make of it."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [SIDE, SIDE], name="x")
        w = tf1.get_variable("w", [SIDE, SIDE], initializer=tf1.zeros_initializer())
        hidden = tf.tanh(tf.matmul(x, w, name="product"), name="hidden")
        loss = tf.reduce_mean(tf.square(hidden, name="square"), name="loss")
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return caramel.Context(graph, train_op=train_op, loss=loss)


FEED = {"x:0": np.ones((SIDE, SIDE), "float32")}


def spread(**options):
    """The variable and what touches it are on device 1, what follows on device 0."""
    constraints = {"w|product": 1, "hidden|square": 0}
    return caramel.PlacedModel(job(), 2, constraints=constraints, memory="8MiB", **options)


def test_what_was_traced_is_shown_beside_what_was_predicted():
    model = spread()
    predicted = model.explain().placed
    assert [device.variable_bytes for device in predicted.devices] == [0, MIB]
    with model.session(trials=None) as session:
        session.step(FEED)
        timelines = session.trace(3, FEED)
    found = model.explain(timelines, measured_step_s=0.1)
    for device in found.placed.devices:
        # At least one tensor, and not more than all of them: how many depends on what runs first.
        assert MIB <= device.measured.tensor_bytes <= 8 * MIB
        assert device.measured.sent_bytes == pytest.approx(device.predicted.sent_bytes, rel=0.1)
        assert device.predicted.tensor_bytes > MIB
    assert str(found).count("task:1") == 1
    assert "held-measured" in found._repr_html_()


def test_a_plan_that_is_given_is_explained_by_simulating_it():
    decided = spread(partitioner="heft")
    given = spread(plan=decided.plan)
    first, second = decided.explain(), given.explain()
    assert second.planner == "none, the plan was given"
    assert [d.variable_bytes for d in second.placed.devices] == [
        d.variable_bytes for d in first.placed.devices
    ]
    assert second.placed.crossing_count == first.placed.crossing_count
    assert second.step_s == pytest.approx(first.step_s, rel=0.2)


def test_a_placed_plan_is_traced_by_device(tmp_path, capsys):
    model = spread()
    (tmp_path / "plan.json").write_text(model.plan.to_json())
    traced = trace_job(
        UserJob(job(), FEED), caramel.Cluster.embedded(2), steps=1, plan=tmp_path / "plan.json"
    )
    show_traced(traced, Console(width=160))
    shown = capsys.readouterr().out
    assert "1 replica on 2 devices" in shown
    for number in range(2):
        (line,) = [line for line in shown.splitlines() if f" {number} /job:worker" in line]
        assert "MB" in line
