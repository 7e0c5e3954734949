"""What traced steps of a distributed job tell: times of ops, rate and latency of the network."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import ProfileError
from caramel.core.graph import OpGraph
from caramel.core.names import is_added, pull_of, without_prefix, without_variant, worker_of
from caramel.core.plan import Plan
from caramel.core.planned_job import PlannedJob
from caramel.core.profile import Profile
from caramel.core.time_facts import NetworkModel, TimingTable, TransferTimes
from caramel.core.timeline import Span, Timeline
from caramel.core.util.fingerprint import graph_hash, this_machine
from caramel.core.util.sizes import bytes_text
from caramel.models.facts import KnownStep
from caramel.planning.ordering.transfer_spans import TransferSpan, transfer_times_s
from caramel.runtime.traces.op_times import op_seconds, open_bytes, timing_table
from caramel.runtime.traces.step_timeline import timeline_of
from caramel.simulation.network_model import assumed_network

_PROCESSOR = re.compile(r".*/(device:)?CPU:\d+", re.IGNORECASE)
_LARGE_BYTES = 2**16  # tensors that show the rate of a link
_SMALL_BYTES = 8 * 1024  # and its latency
_MUCH_FASTER = 2.0
_USUAL_LATENCY_S = 1e-3  # where no small tensor was sent


def observed_timing(
    steps: Sequence[Sequence[Any]],
    graph: OpGraph,
    devices: Sequence[str],
    cores: int | None = None,
    *,
    is_spread: bool = False,
) -> TimingTable:
    """The least time of every op over all steps and workers.

    Args:
        steps: for each step the `StepStats` protos of its calls.
        graph: the single-device graph.
        devices: of the replicas.
        cores: how many each worker's processor has, if that is known.
        is_spread: whether they are those over which one replica is spread, each of which computes
            some of the ops.
    """
    workers = range(1 if is_spread else len(devices))
    own = [_of_worker(calls, worker) for calls in steps for worker in workers]
    # The ops were timed while gradients were on their way. The least time of an op is one in which
    # the processor had little else to do, so what transfers cost comes on top.
    table = timing_table(
        [op_seconds(each, graph) for each in own],
        sizes=[open_bytes(each, graph) for each in own],
    )
    used = {device.device for each in own for device in each.dev_stats if device.node_stats}
    on_processor = all(map(_PROCESSOR.fullmatch, used))
    table = dataclasses.replace(
        table, on_processor=on_processor, cores=cores if on_processor else None
    )
    timelines = [timeline_of(calls, devices, is_spread=is_spread) for calls in steps]
    # Where a device runs several ops at a time, a step computes for less time than its ops
    # together.
    if is_spread:  # each device has some of them
        computing = [[each.busy_s(d, "compute") for d in each.workers] for each in timelines]
        busy_s = statistics.median(map(sum, computing))
    else:
        busy_s = statistics.median(each.computation_s for each in timelines)
    if 0.0 < busy_s < sum(table.seconds.values()):
        return dataclasses.replace(table, step_s=busy_s)
    return table


def observed_network(
    steps: Sequence[Sequence[Any]],
    devices: Sequence[str],
    clock_offsets_s: Sequence[float],
    *,
    is_spread: bool = False,
) -> NetworkModel:
    """A model of the network from what was sent in traced steps.

    The rate is what workers receive at best while anything larger than 65.5 kB is on their links,
    the latency that of the fastest small tensor.

    Args:
        steps: for each step the `StepStats` protos of its calls.
        devices: of the replicas.
        clock_offsets_s: by how much each worker's clock is ahead of the first one's.
        is_spread: whether they are those over which one replica is spread.

    Raises:
        ProfileError: no transfer was seen.
    """
    timelines = [
        timeline_of(calls, devices, clock_offsets_s, is_spread=is_spread) for calls in steps
    ]
    best: dict[int, float] = {}
    for timeline in timelines:
        for worker, rate in _rates(timeline, len(devices)):
            best[worker] = max(rate, best.get(worker, 0.0))
    if not best:
        least = bytes_text(_LARGE_BYTES)
        raise ProfileError(f"no transfer of more than {least} was seen in the traced steps")
    small = [
        span.end_s - span.begin_s
        for each in timelines
        for span in each.spans
        if span.resource == "receive" and span.bytes is not None and span.bytes <= _SMALL_BYTES
    ]
    fastest, slowest = max(best.values()), min(best.values())
    # The fastest worker counts, since all else makes transfers only seem slower. But where another
    # one has less than half of its rate, something on its way is slow, and all wait for that.
    rate = slowest if slowest * _MUCH_FASTER < fastest else fastest
    return assumed_network(len(devices), rate, min(small, default=_USUAL_LATENCY_S))


def observed_profile(
    steps: Sequence[Sequence[Any]],
    clock_offsets_s: Sequence[float],
    plan: Plan,
    known: KnownStep,
    *,
    cores: int | None,
    fed_bytes: Mapping[str, int],
) -> Profile:
    """The profile of a job that runs; see `caramel.runtime.session.Session.profile`.

    Args:
        steps: for each step the `StepStats` protos of its calls.
        clock_offsets_s: by how much each worker's clock is ahead of the first one's.
        plan: that did them.
        known: what they are steps of.
        cores: how many each worker's processor has, if that is known.
        fed_bytes: sizes of what was fed, which no trace tells, by name.

    Raises:
        ProfileError: gradients travel, but no transfer was seen.
    """
    devices, is_spread = plan.hosts, plan.placement is not None
    timing = observed_timing(steps, known.graph, devices, cores, is_spread=is_spread)
    timing = dataclasses.replace(timing, traced_bytes={**timing.traced_bytes, **fed_bytes})
    networks: tuple[NetworkModel, ...] = ()
    try:
        networks = (observed_network(steps, devices, clock_offsets_s, is_spread=is_spread),)
    except ProfileError:
        if plan.is_distributed:
            raise
    calibration = next((fact for fact in known.measured if isinstance(fact, Calibration)), DEFAULT)
    return Profile(
        tensorflow=tf.__version__,
        machine=this_machine("CPU" if timing.on_processor else "accelerator"),
        graph=graph_hash(known.context.captured.graph_def),
        timing=timing,
        networks=networks,
        calibration=calibration,
    )


def observed_transfers(steps: Sequence[Sequence[Any]], job: PlannedJob) -> TransferTimes:
    """For how long channels carry what workers receive from servers: the least over all steps.

    Args:
        steps: for each step the `StepStats` protos of its calls.
        job: says who the workers and servers are.

    Raises:
        ProfileError: no transfer was seen.
    """
    least: dict[str, float] = {}
    for calls in steps:
        timeline = timeline_of(calls, job.devices, servers=job.servers)
        spans = [span for span in timeline.spans if span.resource == "receive"]
        for worker in range(len(job.devices)):
            own = [
                TransferSpan(pull.variable, str(pull.server), span.begin_s, span.end_s)
                for span in spans
                if span.worker == worker and (pull := pull_of(span.name)) is not None
            ]
            for variable, seconds in transfer_times_s(own).items():
                least[variable] = min(seconds, least.get(variable, seconds))
    if not least:
        raise ProfileError("no variable was seen on its way from a server in the traced steps")
    return TransferTimes(least)


def _rates(timeline: Timeline, workers: int) -> Iterator[tuple[int, float]]:
    """Each worker, and the bytes that it received per second in which its link was in use."""
    for worker in range(workers):
        large: list[Span] = [
            span
            for span in timeline.spans
            if span.worker == worker
            and span.resource == "receive"
            and (span.bytes or 0) >= _LARGE_BYTES
        ]
        busy_s = Timeline(tuple(large)).busy_s(worker, "receive")
        if busy_s > 0:
            yield worker, sum(span.bytes or 0 for span in large) / busy_s


def _of_worker(calls: Sequence[Any], worker: int) -> Any:
    """What one worker did of the user's ops, under the names of the single-device graph."""
    devices = []
    for step_stats in calls:
        for device in step_stats.dev_stats:
            own = [_renamed(stats, worker) for stats in device.node_stats]
            node_stats = [stats for stats in own if stats is not None]
            devices.append(SimpleNamespace(device=device.device, node_stats=node_stats))
    return SimpleNamespace(dev_stats=devices)


def _renamed(stats: Any, worker: int) -> Any:
    name = without_variant(stats.node_name)
    if is_added(name) or worker_of(name) != worker:
        return None
    renamed = type(stats)()
    renamed.CopyFrom(stats)
    renamed.node_name = without_prefix(name)
    renamed.timeline_label = ""
    return renamed
