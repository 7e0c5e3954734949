"""From what TensorFlow traced in a step to the time that each op of the graph took.

On a CPU every op has its wall time. A GPU works off its kernels while the processor goes on; they
appear once more under pseudo-devices, one for each stream and one for all streams together, and
count in place of the time that it took to start them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caramel.core.dtypes import dtype_bytes, dtype_name
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.time_facts import TimingTable
from caramel.native import labels

_NO_OPS = (labels.STREAM, "/memcpy")  # parts of names of pseudo-devices


def op_seconds(step_stats: Any, graph: OpGraph) -> dict[str, float]:
    """The time of every op of the graph that ran in one step.

    An op that ran several times, as in a loop, has the sum. What runs in place of a call or inside
    of it, such as the body of a `While`, counts for the call.

    Args:
        step_stats: the `StepStats` proto of a traced step.
        graph: the graph that ran, with the names it was run with.
    """
    host: dict[str, float] = defaultdict(float)
    kernels: dict[str, float] = defaultdict(float)
    inside: dict[str, float] = defaultdict(float)
    streams = _streams(step_stats)
    for device in step_stats.dev_stats:
        on_stream = device.device in streams
        if not on_stream and any(part in device.device for part in _NO_OPS):
            continue
        for stats in device.node_stats:
            seconds = (stats.op_end_rel_nanos - stats.op_start_rel_nanos) * 1e-9
            if not stats.op_end_rel_nanos:  # only microseconds are there
                seconds = (stats.op_end_rel_micros - stats.op_start_rel_micros) * 1e-6
            op = next((op for op in labels.names(stats) if op in graph), None)
            call = None if op else next(_calls(stats, graph), None)
            if op:
                (kernels if on_stream else host)[op] += seconds
            elif call:
                inside[call] += seconds
    found = {**host, **kernels}
    for call, seconds in inside.items():
        found[call] = max(seconds, found.get(call, 0.0))  # some calls span what is inside
    return {op: seconds for op, seconds in found.items() if seconds > 0.0}


def open_bytes(step_stats: Any, graph: OpGraph) -> dict[str, int]:
    """The bytes, in one step, of each tensor whose size the graph does not know, by its name.

    Of what an op puts out several times, as in a loop, the largest counts. Tensors whose elements
    have no fixed size (text) are left out, and those of ops that run inside of calls.

    Args:
        step_stats: the `StepStats` proto of a traced step.
        graph: the graph that ran.
    """
    open_slots = {
        op.name: slots
        for op in graph
        if (slots := [slot for slot, size in enumerate(op.output_bytes) if size is None])
    }
    found: dict[str, int] = {}
    for device in step_stats.dev_stats:
        for stats in device.node_stats:
            name = next((op for op in labels.names(stats) if op in graph), "")
            for output in stats.output if name in open_slots else ():
                described = output.tensor_description
                element_bytes = dtype_bytes(dtype_name(described.dtype))
                if element_bytes and output.slot in open_slots[name]:
                    tensor = str(TensorRef(name, output.slot))
                    size = element_bytes * math.prod(axis.size for axis in described.shape.dim)
                    found[tensor] = max(size, found.get(tensor, 0))
    return found


def _streams(step_stats: Any) -> set[str]:
    """The pseudo-devices that have each kernel once."""
    names = [device.device for device in step_stats.dev_stats if labels.STREAM in device.device]
    combined = {
        name.removesuffix(labels.ALL_STREAMS) for name in names if name.endswith(labels.ALL_STREAMS)
    }
    return {
        name
        for name in names
        if name.endswith(labels.ALL_STREAMS) or name.partition(labels.STREAM)[0] not in combined
    }


def _calls(stats: Any, graph: OpGraph) -> Iterator[str]:
    """Ops with functions under whose name it ran, the innermost first."""
    for scope in labels.scopes(stats):
        if scope in graph and graph[scope].functions:
            yield scope


def timing_table(
    steps: Sequence[Mapping[str, float]],
    untraced_s: Sequence[float] = (),
    sizes: Sequence[Mapping[str, int]] = (),
) -> TimingTable:
    """The least time of every op, and how much of it half of the steps would have missed.

    Args:
        steps: times by op, for each traced step, at least one.
        untraced_s: whole times of steps that were not traced.
        sizes: of tensors whose size the graph does not know, for each traced step; the largest
            count.
    """
    seconds = _least(steps)
    total = sum(seconds.values())
    error = None
    if len(steps) > 1 and total > 0.0:
        error = abs(sum(_least(steps[: len(steps) // 2]).values()) - total) / total
    step_s = statistics.median(untraced_s) if untraced_s else None
    largest: dict[str, int] = {}
    for each in sizes:
        largest.update((name, max(size, largest.get(name, 0))) for name, size in each.items())
    return TimingTable(seconds, steps=len(steps), error=error, step_s=step_s, traced_bytes=largest)


def _least(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in steps:
        for op, seconds in step.items():
            found[op] = min(seconds, found.get(op, seconds))
    return {op: found[op] for op in sorted(found)}
