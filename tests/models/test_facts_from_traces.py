"""What traced steps of a running job tell of its ops and of its network."""

from __future__ import annotations

import pytest
import tensorflow as tf

from caramel.core.errors import ProfileError
from caramel.core.graph_reader import read_graph
from caramel.models.facts_from_traces import observed_network, observed_timing

DEVICES = ["/job:worker/task:0", "/job:worker/task:1"]


def traced(*ops, kind="CPU"):
    """One call on both workers: ops with begin and end, in microseconds."""
    step_stats = tf.compat.v1.RunMetadata().step_stats
    for worker, name in enumerate(DEVICES):
        device = step_stats.dev_stats.add(device=f"{name}/device:{kind}:0")
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
    return read_graph(graph.as_graph_def(), {})


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


def test_it_is_seen_whether_processors_compute(graph):
    assert observed_timing([traced(("a", 0, 100))], graph, DEVICES).on_processor
    assert not observed_timing([traced(("a", 0, 100), kind="GPU")], graph, DEVICES).on_processor
    both = [traced(("a", 0, 100)), traced(("b", 0, 100), kind="GPU")]
    assert not observed_timing(both, graph, DEVICES).on_processor


def test_cores_are_those_of_the_processor_that_computes(graph):
    own, accelerator = traced(("a", 0, 100)), traced(("a", 0, 100), kind="GPU")
    assert observed_timing([own], graph, DEVICES, cores=2).cores == 2
    assert observed_timing([accelerator], graph, DEVICES, cores=2).cores is None


def test_the_largest_size_of_a_tensor_counts():
    with tf.Graph().as_default() as graph:
        x = tf.identity(tf.compat.v1.placeholder(tf.float32, [None, 2]), name="x")
        tf.matmul(x, tf.ones([2, 3]), name="product")
    steps = []
    for rows in (5, 7, 6):
        calls = traced(("x", 0, 10), ("product", 10, 20))
        for device in calls[0].dev_stats:
            described = device.node_stats[0].output.add(slot=0).tensor_description
            described.dtype = tf.float32.as_datatype_enum
            described.shape.CopyFrom(tf.TensorShape([rows, 2]).as_proto())
        steps.append(calls)
    definitions = {op: graph.op_def_for_type(op) for op in ("Placeholder", "Identity", "MatMul")}
    known = read_graph(graph.as_graph_def(add_shapes=True), definitions)
    assert observed_timing(steps, known, DEVICES).traced_bytes == {"x:0": 7 * 2 * 4}


# The network ------------------------------------------------------------------------------------


def sent(*transfers):
    """One call: transfers with sender, receiver, size, begin and end in microseconds."""
    step_stats = tf.compat.v1.RunMetadata().step_stats
    device = step_stats.dev_stats.add(device=f"{DEVICES[0]}/device:CPU:0")
    for number, (source, target, size, begin_us, end_us) in enumerate(transfers):
        device.node_stats.add(
            node_name="RecvTensor",
            all_start_micros=1_000_000 + begin_us,
            all_end_rel_micros=end_us - begin_us,
            timeline_label=(
                f"[{size}] [1Gb/s] edge_{number}_caramel/group_0/worker_{source}/chunks from "
                f"/job:worker/replica:0/task:{source}/device:CPU:0 to "
                f"/job:worker/replica:0/task:{target}/device:CPU:0"
            ),
        )
    return [step_stats]


def test_the_rate_is_that_of_the_fastest_worker_in_its_best_step():
    steps = [
        sent((0, 1, "1.0MB", 0, 20_000), (1, 0, "1.0MB", 0, 15_000)),
        sent((0, 1, "1.0MB", 0, 12_000), (1, 0, "1.0MB", 0, 10_000), (1, 0, "1.0KB", 0, 300)),
    ]
    network = observed_network(steps, DEVICES, [0.0, 0.0])
    assert network.bytes_per_s == pytest.approx(2**20 / 0.01)


def test_two_transfers_at_a_time_share_their_link():
    both = sent((0, 1, "1.0MB", 0, 20_000), (0, 1, "1.0MB", 10_000, 30_000))
    assert observed_network([both], DEVICES, [0.0, 0.0]).bytes_per_s == pytest.approx(2**21 / 0.03)


def test_all_wait_for_a_link_that_is_much_slower_than_others():
    steps = [sent((0, 1, "1.0MB", 0, 100_000), (1, 0, "1.0MB", 0, us)) for us in (10_000, 12_000)]
    network = observed_network(steps, DEVICES, [0.0, 0.0])
    assert network.bytes_per_s == pytest.approx(2**20 / 0.1)


def test_small_transfers_tell_of_no_rate():
    with pytest.raises(ProfileError, match=r"no transfer of more than 65\.5 kB"):
        observed_network([sent((0, 1, "1.0KB", 0, 300))], DEVICES, [0.0, 0.0])
