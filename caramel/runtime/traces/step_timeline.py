"""From what TensorFlow traced in a step of the distributed graph to its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from caramel.core.names import is_added, is_mark, is_token, sent_of, without_variant
from caramel.core.plan import Plan
from caramel.core.timeline import Resource, Span, Timeline
from caramel.native import labels
from caramel.native.labels import Transfer
from caramel.runtime.traces.replicas import Replicas


def timeline_of(
    traces: Iterable[Any],
    devices: Sequence[str],
    clock_offsets_s: Sequence[float] | None = None,
    *,
    servers: Sequence[str] = (),
    is_spread: bool = False,
) -> Timeline:
    """The timeline of one step, by the clock of worker 0.

    A transfer is one span of the worker that sends it and one of the worker that receives it, under
    the name of the op that put it out. It lasts from when sending begins until it is there.
    Names are those of the plan's own graph, also where it is one of several variants.

    What passes between replicas on one task is not seen: TensorFlow traces transfers between tasks
    only. Where several replicas are on one task, a transfer to a device that is none of theirs (as
    the processor, beside replicas on GPUs) is seen at the worker that sends it only.

    Args:
        traces: the `StepStats` protos of the calls that ran in that step.
        devices: of the replicas, in order.
        clock_offsets_s: by how much each worker's clock is ahead of worker 0's, and behind these
            each server's; not at all by default.
        servers: devices of the parameter servers, whose spans have their places
            (`names.server_place`) for workers.
        is_spread: whether the devices are those over which one replica is spread. Then spans have
            their numbers for workers.

    Raises:
        InstallationError: TensorFlow labels a transfer in another form than Caramel reads.
    """
    replicas = Replicas(devices, servers, clock_offsets_s or [0.0] * len(devices), is_spread)
    records = [
        (d.device, record)
        for step_stats in traces
        for d in step_stats.dev_stats
        for record in d.node_stats
    ]
    ready_s = _ready_s(records, replicas)
    spans: list[Span] = []
    for device, record in records:
        transfer = labels.transfer(record)
        if transfer is None:
            spans += _op(record, replicas.place_of(record.node_name, device), replicas)
        else:
            spans += _ends(record, transfer, replicas, ready_s)
    return Timeline(tuple(sorted(spans, key=lambda span: (span.begin_s, span.end_s, span.name))))


def traced_timeline(
    plan: Plan, traces: Iterable[Any], clock_offsets_s: Sequence[float] | None = None
) -> Timeline:
    """The timeline of one step of a plan; see `timeline_of`."""
    return timeline_of(
        traces,
        plan.hosts,
        clock_offsets_s,
        servers=plan.job.servers,
        is_spread=plan.placement is not None,
    )


def _ready_s(records: Iterable[tuple[str, Any]], replicas: Replicas) -> dict[str, float]:
    """When each op first had put out something."""
    found: dict[str, float] = {}
    for device, record in records:
        worker = replicas.place_of(record.node_name, device)
        if worker is not None:
            shown_s = (record.all_start_micros + record.op_end_rel_micros) * 1e-6
            end_s = replicas.common_s(shown_s, worker)
            found[record.node_name] = min(end_s, found.get(record.node_name, end_s))
    return found


def _ends(
    record: Any, transfer: Transfer, replicas: Replicas, ready_s: Mapping[str, float]
) -> Iterator[Span]:
    """The spans of a transfer at the worker that sends it, and at the one that receives it."""
    op, source, target, size_bytes = transfer
    shown_s = record.all_start_micros * 1e-6
    end_s = replicas.common_on_s(shown_s + max(0, record.all_end_rel_micros) * 1e-6, target)
    # The receiver writes down when the sender began, by the sender's clock. If that is before it
    # asked, by its own clock, it writes down when it asked; if it is after the end, the end.
    begin_s = replicas.common_on_s(shown_s, source)
    if begin_s > end_s:
        begin_s = replicas.common_on_s(shown_s, target)
    begin_s = min(max(begin_s, ready_s.get(op, begin_s)), end_s)
    name = without_variant(op)
    ends: tuple[tuple[Resource, int | None], ...] = (
        ("send", replicas.sender_of(name, source)),
        ("receive", replicas.worker_on(target)),
    )
    for resource, worker in ends:
        if worker is not None:
            yield Span(resource, name, begin_s, end_s, worker, size_bytes)


def _op(record: Any, worker: int | None, replicas: Replicas) -> Iterator[Span]:
    name = without_variant(record.node_name)
    # What a tensor passes on its way hands it on at once.
    if worker is None or is_token(name) or is_mark(name) or sent_of(name) is not None:
        return
    if record.op_end_rel_micros <= record.op_start_rel_micros:
        return
    begin_s, end_s = (
        replicas.common_s((record.all_start_micros + micros) * 1e-6, worker)
        for micros in (record.op_start_rel_micros, record.op_end_rel_micros)
    )
    yield Span("reduce" if is_added(name) else "compute", name, begin_s, end_s, worker)
