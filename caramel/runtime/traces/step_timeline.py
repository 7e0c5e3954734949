"""From what TensorFlow traced in a step of the distributed graph to its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from caramel.core.devices import Device
from caramel.core.names import (
    is_added,
    is_done_once,
    is_mark,
    is_token,
    server_place,
    without_variant,
    worker_of,
)
from caramel.core.plan import Plan
from caramel.core.timeline import Resource, Span, Timeline
from caramel.native import labels
from caramel.native.labels import Transfer


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
    replicas = _Replicas(devices, servers, clock_offsets_s or [0.0] * len(devices), is_spread)
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


class _Replicas:
    """Which worker or server has what device, and what its clock shows."""

    def __init__(
        self,
        devices: Sequence[str],
        servers: Sequence[str],
        clock_offsets_s: Sequence[float],
        is_spread: bool,
    ) -> None:
        self._is_spread = is_spread
        places = [*range(len(devices)), *map(server_place, range(len(servers)))]
        names = zip(places, [*devices, *servers], strict=True)
        self._devices = {place: Device.parse(name) for place, name in names}
        self._offsets_s = dict(zip(places, clock_offsets_s, strict=False))

    def worker_on(self, name: str) -> int | None:
        """The worker whose replica is on a device; None if it is no one's, or of several."""
        device = Device.parse(name)
        same_task = [worker for worker, _ in self._on_task(device)]
        same_device = [worker for worker, own in self._on_task(device) if own == device]
        any_device = [worker for worker, own in self._on_task(device) if own.kind is None]
        for found in (same_device, any_device, same_task):
            if len(found) == 1:
                return found[0]
        return None

    def place_of(self, op: str, device: str) -> int | None:
        """The worker or server that an op belongs to; what is done once or spread, to that of its
        device."""
        name = without_variant(op)
        place = self.worker_on(device) if self._is_spread or is_done_once(name) else None
        return worker_of(name) if place is None else place

    def sender_of(self, op: str, device: str) -> int | None:
        """The worker or server that sends what an op puts out, from a device."""
        named = None if self._is_spread else worker_of(op)
        return self.worker_on(device) if named is None else named

    def common_s(self, shown_s: float, worker: int) -> float:
        """The time by worker 0's clock at which this worker's shows `shown_s`."""
        return shown_s - self._offsets_s.get(worker, 0.0)

    def common_on_s(self, shown_s: float, name: str) -> float:
        """Likewise by the clock of a device; the workers of one task have one clock."""
        for worker, _ in self._on_task(Device.parse(name)):
            return self.common_s(shown_s, worker)
        return shown_s

    def _on_task(self, device: Device) -> Iterator[tuple[int, Device]]:
        for worker, own in self._devices.items():
            if (own.job, own.task) == (device.job, device.task):
                yield worker, own


def _ready_s(records: Iterable[tuple[str, Any]], replicas: _Replicas) -> dict[str, float]:
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
    record: Any, transfer: Transfer, replicas: _Replicas, ready_s: Mapping[str, float]
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


def _op(record: Any, worker: int | None, replicas: _Replicas) -> Iterator[Span]:
    name = without_variant(record.node_name)
    if worker is None or is_token(name) or is_mark(name):
        return
    if record.op_end_rel_micros <= record.op_start_rel_micros:
        return
    begin_s, end_s = (
        replicas.common_s((record.all_start_micros + micros) * 1e-6, worker)
        for micros in (record.op_start_rel_micros, record.op_end_rel_micros)
    )
    yield Span("reduce" if is_added(name) else "compute", name, begin_s, end_s, worker)
