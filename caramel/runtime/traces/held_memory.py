"""From what TensorFlow traced in a step to the memory that its tensors took on each device.

A full trace has all memory that ops asked for, and when it was given back, which may be long after
the op: when the last reader of its output had ended. It lacks what arrives from elsewhere, as fed
values and tensors of other devices do. That is there from the begin of its transfer, or of the
step, until its last reader on the device has ended.

Variables do not count: they are there before and after. What ops keep for themselves without asking
TensorFlow is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from caramel.core import op_types
from caramel.core.graph import OpGraph
from caramel.core.memory import Held, MemoryCurve
from caramel.core.names import TensorRef, received, sent_of, without_prefix, without_variant
from caramel.core.placement import Placement
from caramel.core.timeline import Timeline
from caramel.native import labels
from caramel.runtime.traces.replicas import Replicas


def held_memory(
    traces: Sequence[Any],
    timeline: Timeline,
    placement: Placement,
    graph: OpGraph,
    fed_bytes: Mapping[TensorRef, int],
    clock_offsets_s: Sequence[float] | None = None,
) -> tuple[MemoryCurve, ...]:
    """The memory of one step of a replica that is spread over several devices, for each of them.

    Args:
        traces: the `StepStats` protos of the calls that ran in that step.
        timeline: what was made of them.
        placement: the device of each op.
        graph: the single-device graph.
        fed_bytes: the sizes of what is fed.
        clock_offsets_s: by how much each device's clock is ahead of the first one's.
    """
    devices = placement.devices
    replicas = Replicas(devices, (), clock_offsets_s or [0.0] * len(devices), True)
    seen = _Seen(traces, replicas)
    readers = _Readers(graph, placement, seen)
    end_s = timeline.begin_s + timeline.step_s
    held: list[list[Held]] = [[] for _ in devices]
    for device, own in enumerate(held):
        own += _asked_for(seen.records[device], end_s, replicas, device)
    for span in timeline.spans:
        crossing = sent_of(span.name)
        if span.resource == "receive" and crossing is not None and crossing.output is not None:
            tensor = TensorRef(without_prefix(crossing.op), crossing.output)
            arrived = received(crossing.op, crossing.output, span.worker)
            size = seen.put_out.get(arrived, span.bytes or 0)  # labels round
            until_s = max(span.end_s, readers.last_end_s(tensor, span.worker))
            held[span.worker].append(Held(span.begin_s, until_s, size))
    for tensor, size in fed_bytes.items():
        device = placement.number_of[tensor.op]
        until_s = max(timeline.begin_s, readers.last_end_s(tensor, device))
        held[device].append(Held(timeline.begin_s, until_s, size))
    return tuple(MemoryCurve.of(device, own) for device, own in enumerate(held))


class _Seen:
    """What was traced of ops.

    Attributes:
        records: of each device.
        ends_s: when the op of the user's last ended, by its name.
        put_out: how many bytes the first output of an op has, by its whole name.
    """

    def __init__(self, traces: Iterable[Any], replicas: Replicas) -> None:
        self.records: dict[int, list[Any]] = {device: [] for device in replicas.places}
        self.ends_s: dict[str, float] = {}
        self.put_out: dict[str, int] = {}
        for step_stats in traces:
            for d in step_stats.dev_stats:
                for record in d.node_stats:
                    device = replicas.place_of(record.node_name, d.device)
                    if device is not None and record.node_name != labels.TRANSFER:
                        self._add(record, device, replicas)

    def _add(self, record: Any, device: int, replicas: Replicas) -> None:
        self.records[device].append(record)
        name = without_variant(record.node_name)
        shown_s = (record.all_start_micros + record.all_end_rel_micros) * 1e-6
        end_s, own = replicas.common_s(shown_s, device), without_prefix(name)
        self.ends_s[own] = max(end_s, self.ends_s.get(own, end_s))
        for output in record.output:
            if output.slot == 0:
                described = output.tensor_description.allocation_description
                self.put_out[name] = described.requested_bytes


class _Readers:
    """When what reads a tensor on a device has ended."""

    def __init__(self, graph: OpGraph, placement: Placement, seen: _Seen) -> None:
        self._graph, self._device_of, self._ends_s = graph, placement.number_of, seen.ends_s

    def last_end_s(self, tensor: TensorRef, device: int) -> float:
        """The last one's end, and of what reads the same memory from it; before all times if
        nothing reads it there."""
        last_s = float("-inf")
        # No recursion: what does not run in a step, as a network that only evaluates, may be long.
        found, waiting = {tensor}, [tensor]
        while waiting:
            read = waiting.pop()
            for name in self._names(read, device):
                last_s = max(last_s, self._ends_s.get(name, last_s))
                handed_on = [t for t in self._handed_on(name, read) if t not in found]
                found.update(handed_on)
                waiting += handed_on
        return last_s

    def _names(self, tensor: TensorRef, device: int) -> Iterator[str]:
        for name in self._graph.consumers[tensor.op]:
            if self._device_of[name] == device and tensor in self._graph[name].inputs:
                yield name

    def _handed_on(self, name: str, tensor: TensorRef) -> Iterator[TensorRef]:
        """What an op puts out in the memory of a tensor that it reads."""
        op = self._graph[name]
        # What was not seen was computed as one with its readers, or does not run in the step.
        if name not in self._ends_s or (op.kind in op_types.HANDS_ON and op.inputs[0] == tensor):
            yield from (TensorRef(name, index) for index in range(len(op.outputs)))


def _asked_for(
    records: Iterable[Any], end_s: float, replicas: Replicas, device: int
) -> Iterator[Held]:
    """Memory that ops asked for, until they gave it back, or until the step ends."""
    for record in records:
        for memory in record.memory:
            begins: dict[int, list[float]] = {}
            for each in memory.allocation_records:
                moment_s = replicas.common_s(each.alloc_micros * 1e-6, device)
                if each.alloc_bytes > 0:
                    begins.setdefault(each.alloc_bytes, []).append(moment_s)
                elif begins.get(-each.alloc_bytes):
                    begin_s = begins[-each.alloc_bytes].pop(0)
                    yield Held(begin_s, max(begin_s, moment_s), -each.alloc_bytes)
            for size, left in begins.items():
                for begin_s in left:
                    yield Held(begin_s, max(begin_s, end_s), size)
