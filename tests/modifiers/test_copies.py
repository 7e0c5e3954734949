"""How often aggregation copies what it aggregates, seen in the memory that traced ops put out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import caramel
from caramel.core.names import in_group, without_variant
from caramel.runtime.training import training_step
from tests.support.networks import (
    CLASSES,
    FEATURES,
    Network,
    cross_entropy,
    inputs,
    parameter,
    tf,
    tf1,
)

WIDTHS = (160, 33, 320, 250)  # numbers of 4 bytes; the second and last matrix end where 64 do not


def joined(deferred):
    """Four matrices in one group, on two workers."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40, tf.float32)
        hidden = [
            tf.tanh(x @ parameter(f"w{number}", [FEATURES, width], x.dtype))
            for number, width in enumerate(WIDTHS)
        ]
        hidden = tf.concat(hidden, axis=1)
        loss = cross_entropy(hidden @ parameter("out", [sum(WIDTHS), CLASSES], x.dtype), y)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = Network(graph, train_op, loss, feed).context()
    plan = caramel.ARModel(context, 2, planner="plain", pattern="shuffle").plan
    members = tuple(f"w{number}" for number in range(len(WIDTHS)))
    group = dataclasses.replace(plan.decision.groups[0], members=members, deferred=deferred)
    (last,) = [each for each in plan.decision.groups if each.members == ("out",)]
    groups = (group, dataclasses.replace(last, name="last"))
    return caramel.ARModel(context, 2, plan=plan.deciding(groups=groups)), feed


def outputs_of(session, feed):
    """Of each op of a traced step the bytes of each output, and those of the memory it is in."""
    for _ in range(2):
        session.step(feed)
    traces = []

    def traced(controller, *given):
        return controller.step_as_before(*given, traces)

    training_step(session._running, feed, run=traced)
    found = {}
    for metadata in traces:
        for device in metadata.step_stats.dev_stats:
            for stats in device.node_stats:
                for output in stats.output:
                    tensor = output.tensor_description
                    size = 4 * math.prod(dim.size for dim in tensor.shape.dim)
                    memory = tensor.allocation_description.requested_bytes
                    found.setdefault(without_variant(stats.node_name), []).append((size, memory))
    return found


@pytest.mark.parametrize("deferred", [False, True])
def test_only_what_is_cut_or_not_aligned_is_copied_when_a_group_is_taken_apart(deferred):
    model, feed = joined(deferred)
    group, _ = model.plan.decision.groups
    sizes = [model.plan.spec(name).elements * 4 for name in group.members]
    ragged = [size for size in sizes if size % 64]
    assert 0 < sum(ragged) < sum(sizes) / 2
    first_chunk, last_chunk = (4 * elements for elements in model.plan.chunks(group))
    assert sizes[0] < first_chunk < sizes[0] + sizes[2]  # aligned members come first
    with model.session() as session:
        outputs = outputs_of(session, feed)
    copied_of = {"members": ragged, "joined": [sizes[2]], "chunks": [last_chunk], "complete": []}
    for worker in range(2):
        for pieces, expected in copied_of.items():
            name = in_group(group.name, worker, pieces)
            own = [p for op, places in outputs.items() if op.startswith(name) for p in places]
            if pieces == "complete":  # hands on what was added and what was received
                assert [size for size, _ in own] == [first_chunk, last_chunk]
            else:
                assert sorted(size for size, memory in own if memory == size) == sorted(expected)


@pytest.mark.parametrize("deferred", [False, True])
def test_each_gradient_of_a_group_is_its_own_whatever_the_order_of_the_members(deferred, tmp_path):
    model, feed = joined(deferred)
    plain = caramel.ARModel(model.context, 2, planner="plain", pattern="shuffle")
    fetches = [str(model.plan.gradient(f"w{number}").values) for number in range(len(WIDTHS))]
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "start"))
        for _ in range(3):
            pairs = zip(session.step(feed, fetches), expected.step(feed, fetches), strict=True)
            for gradient, other in pairs:
                np.testing.assert_array_equal(gradient, other)
        values = session.variables()
        for name, value in expected.variables().items():
            np.testing.assert_array_equal(values[name], value, err_msg=name)
