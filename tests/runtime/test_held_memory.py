"""From the allocations that TensorFlow traces to the memory that tensors take on each device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef, received, sent
from caramel.core.placement import Placement
from caramel.runtime.traces.held_memory import held_memory
from caramel.runtime.traces.step_timeline import timeline_of
from tests.planning.placement.test_from_graph import graph_of
from tests.support.networks import tf

DEVICES = ("/job:worker/task:0", "/job:worker/task:1")
CPU = "/job:worker/replica:0/task:{}/device:CPU:0"
# "c" is computed as one with "d".
DEFINED = {
    "x": "Placeholder",
    "a": "Tanh x",
    "flat": "Reshape a",
    "b": "Tanh flat",
    "c": "Tanh a",
    "d": "Tanh c",
}
GRAPH = graph_of(**DEFINED)
PLACEMENT = Placement(DEVICES, (("x", "a"), ("flat", "b", "c", "d")))
AHEAD_US = 500_000  # the clock of device 1


def record(stats, name, begin_us, end_us, *allocations, label="", put_out=0):
    made = stats.node_stats.add(
        node_name=name,
        all_start_micros=begin_us,
        all_end_rel_micros=end_us - begin_us,
        op_end_rel_micros=end_us - begin_us,
        timeline_label=label,
    )
    if put_out:
        output = made.output.add(slot=0)
        output.tensor_description.allocation_description.requested_bytes = put_out
    for moment_us, size in allocations:
        memory = made.memory[0] if made.memory else made.memory.add(allocator_name="cpu")
        memory.allocation_records.add(alloc_micros=moment_us, alloc_bytes=size)


def traces():
    metadata = tf.compat.v1.RunMetadata()
    first = metadata.step_stats.dev_stats.add(device=CPU.format(0))
    record(first, "worker_0/a", 100, 110, (100, 100), (101, 30), (109, -30), (150, -100))
    record(first, "fifo_queue", 0, 9_000, (50, 200))  # not of the job: it waits for the step
    second = metadata.step_stats.dev_stats.add(device=CPU.format(1))
    label = (
        f"[1.6KB] [1Gb/s] edge_7_{sent('worker_0/a', 0, 1)} from {CPU.format(0)} to {CPU.format(1)}"
    )
    # TensorFlow writes down when the sender began by the sender's clock.
    record(second, "RecvTensor", 110, 120 + AHEAD_US, label=label)
    for name, begin_us, end_us, *allocations in (
        ("worker_0/flat", 121, 125),
        ("worker_0/b", 130, 140, (130 + AHEAD_US, 8)),
        ("worker_0/d", 150, 160),
    ):
        record(second, name, begin_us + AHEAD_US, end_us + AHEAD_US, *allocations)
    arrived = received("worker_0/a", 0, 1)
    record(second, arrived, 120 + AHEAD_US, 121 + AHEAD_US, put_out=1600)
    return [metadata.step_stats]


def held(graph=GRAPH, placement=PLACEMENT):
    offsets_s = (0.0, AHEAD_US * 1e-6)
    timeline = timeline_of(traces(), DEVICES, offsets_s, is_spread=True)
    return held_memory(traces(), timeline, placement, graph, {TensorRef("x", 0): 16}, offsets_s)


def test_what_ops_ask_for_counts_until_it_is_given_back():
    curve = held()[0]
    assert curve.peak_bytes == 100 + 30 + 16  # and what is fed, until it is read
    assert curve.times_s[-1] == pytest.approx(150e-6)


def test_what_arrives_counts_until_its_last_reader_has_ended():
    curve = held()[1]
    at = dict(zip([round(time_s * 1e6) for time_s in curve.times_s], curve.bytes, strict=True))
    # The exact size, not the label's. What "b" keeps stays until the step ends.
    assert at == {110: 1600, 130: 1608, 160: 0}


def test_what_does_not_run_in_the_step_reads_nothing_however_long_it_is():
    evaluated = {f"e{n}": f"Tanh e{n - 1}" for n in range(1, 2000)}
    ops = graph_of(**DEFINED, e0="Tanh x", **evaluated).ops
    # It assigns what is fed, and puts out nothing.
    ops = {**ops, "keep": replace(ops["e0"], name="keep", kind="AssignVariableOp", outputs=())}
    second = PLACEMENT.ops[1]
    placement = Placement(DEVICES, (tuple(n for n in ops if n not in second), second))
    assert held(OpGraph(ops), placement) == held()


def test_devices_compute_what_is_of_the_job():
    spans = timeline_of(traces(), DEVICES, (0.0, AHEAD_US * 1e-6), is_spread=True).spans
    computed = [(span.name, span.worker) for span in spans if span.resource == "compute"]
    assert computed == [
        ("worker_0/a", 0),
        ("worker_0/flat", 1),
        ("worker_0/b", 1),
        ("worker_0/d", 1),
    ]
    assert {span.resource for span in spans} == {"compute", "send", "receive"}


def test_a_step_without_records_of_memory_has_none():
    timeline = timeline_of([], DEVICES, is_spread=True)
    assert [each.peak_bytes for each in held_memory([], timeline, PLACEMENT, GRAPH, {})] == [0, 0]
