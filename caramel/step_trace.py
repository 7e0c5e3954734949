"""From what TensorFlow traced in a step of the distributed graph to its timeline.

Times are those of each worker's own clock; workers on several machines need clocks that agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from caramel.devices import Device
from caramel.names import is_added, is_token, without_variant, worker_of
from caramel.timeline import Resource, Span, Timeline

_TRANSFER = re.compile(
    r"\[(?P<size>[\d.]+)(?P<unit>[KMG]?B).*\] edge_\d+_(?P<op>\S+) "
    r"from (?P<source>/\S+) to (?P<target>/\S+)"
)
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


def timeline_of(traces: Iterable[Any], devices: Iterable[str]) -> Timeline:
    """The timeline of one step.

    A transfer is one span of the worker that sends it and one of the worker that receives it, under
    the name of the op that put it out. It lasts from when it is ready to be sent until it is there.
    Names are those of the plan's own graph, also where it is one of several variants.

    Args:
        traces: the `StepStats` protos of the calls that ran in that step.
        devices: of the replicas, in order; each on a task of its own if transfers are to be seen.
    """
    tasks = {Device.parse(name).task: worker for worker, name in enumerate(devices)}
    spans: list[Span] = []
    for step_stats in traces:
        for device in step_stats.dev_stats:
            for stats in device.node_stats:
                spans += _transfer(stats, tasks) if _is_transfer(stats) else _op(stats)
    return Timeline(tuple(sorted(spans, key=lambda span: (span.begin_s, span.end_s, span.name))))


def _is_transfer(stats: Any) -> bool:
    return bool(stats.node_name == "RecvTensor")


def _transfer(stats: Any, tasks: dict[int | None, int]) -> Iterator[Span]:
    found = _TRANSFER.search(stats.timeline_label)
    if found is None:
        return
    size_bytes = round(float(found["size"]) * _UNITS[found["unit"]])
    begin_s = stats.all_start_micros * 1e-6
    end_s = begin_s + max(0, stats.all_end_rel_micros) * 1e-6
    ends: tuple[tuple[Resource, str], ...] = (("send", "source"), ("receive", "target"))
    for resource, end in ends:
        worker = tasks.get(Device.parse(found[end].rstrip(":")).task)
        if worker is not None:
            name = without_variant(found["op"])
            yield Span(resource, name, begin_s, end_s, worker, size_bytes)


def _op(stats: Any) -> Iterator[Span]:
    name = without_variant(stats.node_name)
    worker = worker_of(name)
    if worker is None or is_token(name) or stats.op_end_rel_micros <= stats.op_start_rel_micros:
        return
    begin_s = (stats.all_start_micros + stats.op_start_rel_micros) * 1e-6
    end_s = (stats.all_start_micros + stats.op_end_rel_micros) * 1e-6
    yield Span("reduce" if is_added(name) else "compute", name, begin_s, end_s, worker)
