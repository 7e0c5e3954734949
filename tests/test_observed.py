"""What traced steps of a running job tell of its ops."""

from __future__ import annotations

import pytest
import tensorflow as tf

from caramel.graph import OpGraph
from caramel.observed import observed_timing

DEVICES = ["/job:worker/task:0", "/job:worker/task:1"]


def traced(*ops):
    """One call on both workers: ops with begin and end, in microseconds."""
    step_stats = tf.compat.v1.RunMetadata().step_stats
    for worker, name in enumerate(DEVICES):
        device = step_stats.dev_stats.add(device=f"{name}/device:CPU:0")
        for op, begin_us, end_us in ops:
            device.node_stats.add(
                node_name=f"worker_{worker}/{op}",
                all_start_micros=1_000_000 + begin_us,
                all_end_rel_micros=end_us - begin_us,
                op_end_rel_micros=end_us - begin_us,
            )
    return [step_stats]


@pytest.fixture(name="graph")
def fixture_graph():
    with tf.Graph().as_default() as graph:
        x = tf.ones([2, 2], name="x")
        tf.matmul(x, x, name="a")
        tf.matmul(x, x, name="b")
    return OpGraph.from_graph_def(graph.as_graph_def(), {})


def test_ops_one_after_the_other_take_the_sum_of_their_least_times(graph):
    steps = [traced(("a", 0, 100), ("b", 100, 160)), traced(("a", 0, 80), ("b", 90, 200))]
    table = observed_timing(steps, graph, DEVICES)
    assert table.seconds == pytest.approx({"a": 80e-6, "b": 60e-6})
    assert (table.steps, table.step_s, table.slowdown) == (4, None, 1.0)


def test_ops_side_by_side_take_as_long_as_any_of_them_runs(graph):
    table = observed_timing([traced(("a", 0, 100), ("b", 20, 120))], graph, DEVICES)
    assert table.seconds == pytest.approx({"a": 100e-6, "b": 100e-6})
    assert table.step_s == pytest.approx(120e-6)
    assert table.slowdown == pytest.approx(0.6)
