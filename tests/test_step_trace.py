"""Traced steps become timelines: who computed, added, sent and received what, and when."""

from __future__ import annotations

import dataclasses

import pytest
from networks import network, tf, wide

import caramel
from caramel.names import group_of
from caramel.step_trace import timeline_of

DEVICES = ["/job:worker/task:0", "/job:worker/task:1"]


def stats(*entries):
    step_stats = tf.compat.v1.RunMetadata().step_stats
    device = step_stats.dev_stats.add(device="/job:worker/replica:0/task:0/device:CPU:0")
    for name, begin_us, op_begin_us, op_end_us, label in entries:
        device.node_stats.add(
            node_name=name,
            all_start_micros=begin_us,
            all_end_rel_micros=op_end_us,
            op_start_rel_micros=op_begin_us,
            op_end_rel_micros=op_end_us,
            timeline_label=label,
        )
    return step_stats


def test_ops_and_transfers_become_spans_of_their_workers():
    label = (
        "[1.5KB] [1.3Gb/s] edge_12_caramel/group_3/worker_1/chunks from "
        "/job:worker/replica:0/task:1/device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0"
    )
    timeline = timeline_of(
        [
            stats(
                ("worker_0/dense/MatMul", 1_000_000, 1, 11, ""),
                ("caramel/group_3/worker_0/mean/2", 1_000_000, 20, 25, ""),
                ("caramel/worker_0/tokens/w/take", 1_000_000, 0, 90, ""),
                ("_SOURCE", 1_000_000, 0, 1, ""),
            ),
            stats(("RecvTensor", 1_000_010, 0, 8, label)),
        ],
        DEVICES,
    )
    transfer = "caramel/group_3/worker_1/chunks"
    assert [(s.resource, s.name, s.worker, s.bytes) for s in timeline.spans] == [
        ("compute", "worker_0/dense/MatMul", 0, None),
        ("send", transfer, 1, 1536),
        ("receive", transfer, 0, 1536),
        ("reduce", "caramel/group_3/worker_0/mean/2", 0, None),
    ]
    first = timeline.spans[0]
    assert (first.begin_s, first.end_s) == (pytest.approx(1.000001), pytest.approx(1.000011))
    assert timeline.step_s == pytest.approx(24e-6)
    assert timeline.communication_s == pytest.approx(8e-6)


@pytest.mark.processes
@pytest.mark.parametrize("deferred", [False, True])
def test_traced_steps_are_steps_and_show_every_group(deferred, tmp_path):
    job = network("momentum", model=wide)
    context = job.context()
    plain = caramel.ARModel(context, 2)
    groups = tuple(dataclasses.replace(group, deferred=deferred) for group in plain.plan.groups)
    plan = dataclasses.replace(plain.plan, groups=groups)
    with caramel.Cluster.local(2) as cluster:
        model = caramel.ARModel(context, cluster, plan=plan)
        with plain.session() as expected, model.session() as session:
            session.restore(expected.save(tmp_path / "initial"))
            timelines = session.trace(3, job.feed)
            for _ in range(3):
                expected.step(job.feed)
            values = session.variables()
            for name, value in expected.variables().items():
                assert (values[name] == value).all()
    assert len(timelines) == 3
    for worker in range(2):
        assert timelines[-1].busy_s(worker, "compute") > 0
    spans = [span for timeline in timelines for span in timeline.spans]
    sent = {group_of(span.name) for span in spans if span.resource == "send"}
    assert sent - {None} == {group.name for group in groups}
