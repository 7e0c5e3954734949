"""Traced steps become timelines: who computed, added, sent and received what, and when."""

from __future__ import annotations

import dataclasses

import pytest

import caramel
from caramel.core.errors import InstallationError
from caramel.core.names import TensorRef, group_of, server_place
from caramel.native.session import GraphSession
from caramel.runtime.execution.clocks import compared_clocks
from caramel.runtime.traces.step_timeline import timeline_of
from tests.support.networks import network, tf, wide

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


def test_what_is_done_once_is_done_by_the_server_that_has_it():
    traced = stats(("once/update", 1_000_000, 0, 10, ""))
    traced.dev_stats[0].device = "/job:ps/replica:0/task:0/device:CPU:0"
    traces = [traced, stats(("once/counter", 1_000_000, 0, 5, ""))]
    timeline = timeline_of(traces, DEVICES, [0.0, 0.0, 1.0], servers=["/job:ps/task:0"])
    told = [(span.name, span.worker, span.begin_s) for span in timeline.spans]
    assert told == [
        ("once/update", server_place(0), pytest.approx(0.0)),  # by the clock of worker 0
        ("once/counter", 0, pytest.approx(1.0)),
    ]


def test_a_transfer_with_a_label_of_another_form_is_not_left_out():
    with pytest.raises(InstallationError, match="labels a transfer '1536 bytes of chunks'"):
        timeline_of([stats(("RecvTensor", 1_000_010, 0, 8, "1536 bytes of chunks"))], DEVICES)


# One clock --------------------------------------------------------------------------------------

WORKER_1_AHEAD_S = 0.002


def transfer(begin_us, end_us, source=0, target=1):
    """What the receiver notes of a transfer; the sender's op has ended 100 us after 1 s."""
    label = (
        f"[1B] [1.3Gb/s] edge_1_worker_{source}/a from /job:worker/replica:0/task:{source}/"
        f"device:CPU:0 to /job:worker/replica:0/task:{target}/device:CPU:0"
    )
    op_end_us = 100 + source * WORKER_1_AHEAD_S * 1e6
    return stats(
        (f"worker_{source}/a", 1_000_000, 0, round(op_end_us), ""),
        ("RecvTensor", 1_000_000 + begin_us, 0, end_us - begin_us, label),
    )


def times_us(trace):
    timeline = timeline_of([trace], DEVICES, (0.0, WORKER_1_AHEAD_S))
    found = {span.resource: span for span in timeline.spans}
    assert found["send"].begin_s == found["receive"].begin_s
    assert found["send"].end_s == found["receive"].end_s
    span = found["send"]
    return tuple(round((time_s - 1) * 1e6) for time_s in (span.begin_s, span.end_s))


@pytest.mark.parametrize(
    ("written", "source", "meant"),
    [
        ((150, 2_400), 0, (150, 400)),  # begin by the sender's clock, end by the receiver's
        ((2_050, 2_400), 0, (100, 400)),  # asked at 50, of the receiver's clock; sent when ready
        ((2_200, 2_400), 0, (200, 400)),  # asked at 200, after it was ready
        ((2_150, 2_400), 1, (150, 2_400)),  # sent at 150 by worker 0's clock
        ((399, 400), 1, (100, 400)),  # sent at 2,150 by the sender's clock: nothing is known
    ],
)
def test_transfers_are_corrected_at_both_ends(written, source, meant):
    assert times_us(transfer(*written, source=source, target=1 - source)) == meant


def test_ops_are_corrected_by_the_clock_of_their_worker():
    trace = stats(("worker_0/a", 1_000_000, 0, 10, ""), ("worker_1/a", 1_003_000, 0, 10, ""))
    timeline = timeline_of([trace], DEVICES, (0.0, WORKER_1_AHEAD_S))
    assert [s.begin_s for s in timeline.spans] == [pytest.approx(1.0), pytest.approx(1.001)]


def test_a_call_that_was_sent_twice_is_asked_again(monkeypatch):
    calls = []

    def compared(ask, clocks):
        calls.append(ask(0))
        if len(calls) < 3:
            raise tf.errors.AbortedError(None, None, "received twice")
        return (0.0,) * clocks

    monkeypatch.setattr("caramel.runtime.execution.clocks.clock_offsets_s", compared)
    with tf.Graph().as_default() as graph:
        stamp = TensorRef(tf.timestamp().op.name)
    session = GraphSession("", tf.compat.v1.ConfigProto())
    session.extend(graph.as_graph_def().SerializeToString())
    assert compared_clocks(session, [stamp] * 2) == (0.0, 0.0)
    assert len(calls) == 3
    calls[:] = []
    monkeypatch.setattr("caramel.runtime.execution.clocks._CALL_TRIES", 2)
    with pytest.raises(tf.errors.AbortedError):
        compared_clocks(session, [stamp])
    session.close()


@pytest.mark.processes
def test_the_clocks_of_remote_workers_are_read(two_processes):
    """All are this machine's, so none is ahead."""
    job = network("momentum")
    remote = caramel.Cluster.of([task.address for task in two_processes.tasks])
    with caramel.ARModel(job.context(), remote).session() as session:
        (timeline,) = session.trace(1, job.feed)
        assert timeline.workers == (0, 1)
        offsets_s = session._running.runner.clock_offsets_s()
    assert offsets_s[0] == 0.0
    assert offsets_s[1] != 0.0
    assert abs(offsets_s[1]) < 0.1


# Replicas ---------------------------------------------------------------------------------------


def moved(op, source, target):
    label = f"[8B] [1Mb/s] edge_1_{op} from {source}:0 to {target}:0"
    return stats(("RecvTensor", 1_000_000, 0, 8, label))


def ends(trace, devices):
    return [(s.resource, s.worker) for s in timeline_of([trace], devices).spans]


def test_replicas_on_one_task_are_told_apart_by_their_devices():
    task_0, task_1 = (f"/job:worker/replica:0/task:{task}/device:" for task in (0, 1))
    devices = [
        "/job:worker/task:0/device:GPU:0",
        "/job:worker/task:0/device:GPU:1",
        "/job:worker/task:1/device:GPU:0",
    ]
    to_second = moved("worker_2/a", task_1 + "GPU", task_0 + "GPU")
    assert ends(to_second, devices) == [("send", 2), ("receive", 0)]
    label = "[8B] [1Mb/s] edge_1_worker_1/a from /job:worker/replica:0/task:0/device:GPU:1 to "
    to_third = stats(("RecvTensor", 1_000_000, 0, 8, label + task_1 + "CPU:0"))
    assert ends(to_third, devices) == [("send", 1), ("receive", 2)]
    to_nobody = moved("worker_2/a", task_1 + "GPU", task_0 + "CPU")
    assert ends(to_nobody, devices) == [("send", 2)]


def test_tasks_of_two_jobs_are_told_apart():
    chief, worker = (f"/job:{job}/replica:0/task:0/device:CPU" for job in ("chief", "worker"))
    devices = ["/job:chief/task:0", "/job:worker/task:0"]
    assert ends(moved("worker_0/a", chief, worker), devices) == [("send", 0), ("receive", 1)]


# Real steps -------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("deferred", [False, True])
def test_traced_steps_are_steps_and_show_every_group(deferred, two_processes, tmp_path):
    job = network("momentum", model=wide)
    context = job.context()
    plain = caramel.ARModel(context, 2)
    groups = tuple(
        dataclasses.replace(group, deferred=deferred) for group in plain.plan.decision.groups
    )
    plan = plain.plan.deciding(groups=groups)
    model = caramel.ARModel(context, two_processes, plan=plan)
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
