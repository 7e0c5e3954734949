"""How much memory does each device need at most during a step, and does it have it? (Equation 2.)

The paper counts inputs of what is not executed yet. Here a tensor has memory on its own device from
the begin of its source until its last reader there has ended and it has been sent to all others;
elsewhere from the begin of its transfer until its last reader there has ended. What only hands on
the memory of another tensor has none of its own where it is put out, and keeps the other's.
Resident bytes count all the time. What is executed aside, as updates are, reads its inputs when
they are there, whenever the schedule has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from caramel.core.errors import PlanError
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.simulate import Schedule, simulate

_NAMED = 3  # vertices in an error

Kept = tuple[float, float, float]
"""Begin and end in seconds, and bytes."""


def peaks(problem: Problem, placement: Sequence[int], schedule: Schedule) -> list[float]:
    """The most bytes that each device needs at any moment of a step."""
    kept: list[list[Kept]] = [[] for _ in problem.devices]
    for (_, device), span in spans(problem, placement, schedule).items():
        kept[device].append(span)
    found = [_peak(own)[0] for own in kept]
    for vertex, device in zip(problem.vertices, placement, strict=True):
        found[device] += vertex.resident_bytes
    return found


def spans(
    problem: Problem, placement: Sequence[int], schedule: Schedule
) -> dict[tuple[int, int], Kept]:
    """When each tensor has memory, by the numbers of the tensor and of the device."""
    homes = [placement[tensor.source] for tensor in problem.tensors]
    begins: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    for number, tensor in enumerate(problem.tensors):
        begins[number, homes[number]] = schedule.begins[tensor.source]
        ends[number, homes[number]] = schedule.ends[tensor.source]
    for number, target, begin, end in schedule.transfers:
        begins[number, target] = begin
        ends[number, target] = end
    read_until = schedule.ends
    if problem.aside:
        read_until = _with_aside(problem, placement, schedule, ends)
    for number, _, _, end in schedule.transfers:
        ends[number, homes[number]] = max(ends[number, homes[number]], end)
    for number, tensor in enumerate(problem.tensors):
        for reader in tensor.readers:
            copy = number, placement[reader]
            ends[copy] = max(ends[copy], read_until[reader])
    sizes = dict.fromkeys(begins, -1.0)
    # What hands on comes after what it hands on: from the last one back, each keeps what is before.
    for vertex in reversed(problem.order):
        for number in problem.outputs[vertex]:
            handed = problem.tensors[number].hands_on
            if handed is not None:
                own, kept = (number, homes[number]), (handed, homes[number])
                ends[kept] = max(ends[kept], ends[own])
                sizes[own] = 0.0
    return {
        copy: (begins[copy], ends[copy], problem.tensors[copy[0]].bytes if size else 0.0)
        for copy, size in sizes.items()
    }


def _with_aside(
    problem: Problem,
    placement: Sequence[int],
    schedule: Schedule,
    there: Mapping[tuple[int, int], float],
) -> list[float]:
    """When each vertex has read its inputs, by when each tensor is there on which device."""
    found = list(schedule.ends)
    for vertex in problem.aside:
        device, takes_s = placement[vertex], schedule.ends[vertex] - schedule.begins[vertex]
        ready_s = max((there[number, device] for number in problem.inputs[vertex]), default=0.0)
        found[vertex] = min(found[vertex], ready_s + takes_s)
    return found


def at_peak(
    problem: Problem, placement: Sequence[int], schedule: Schedule, device: int
) -> dict[int, float]:
    """Bytes that groups have on a device at the moment at which it needs the most.

    A tensor counts for the group that puts it out or, elsewhere, for those that read it.
    """
    copies = {
        number: span
        for (number, on), span in spans(problem, placement, schedule).items()
        if on == device
    }
    moment_s = _peak(list(copies.values()))[1]
    found: dict[int, float] = {}
    for vertex, on in enumerate(placement):
        if on == device and problem.vertices[vertex].resident_bytes:
            group = problem.group_of[vertex]
            found[group] = found.get(group, 0.0) + problem.vertices[vertex].resident_bytes
    for number, (begin, end, size) in copies.items():
        if size and begin <= moment_s <= end:
            tensor = problem.tensors[number]
            at_home = placement[tensor.source] == device
            vertices = (tensor.source,) if at_home else tensor.readers
            for group in {problem.group_of[each] for each in vertices if placement[each] == device}:
                found[group] = found.get(group, 0.0) + size
    return found


def _peak(kept: Sequence[Kept]) -> tuple[float, float]:
    """The most bytes of spans that are there at once, and the first moment of that.

    What ends at a moment makes room for what begins at it; but a span without length counts.
    """
    changes = []
    for begin, end, size in kept:
        if size:
            changes.append((begin, 1, size))
            changes.append((end, 0 if end > begin else 2, -size))
    most = now = moment_s = 0.0
    for change_s, _, size in sorted(changes):
        now += size
        if now > most:
            most, moment_s = now, change_s
    return most, moment_s


def tensor_share(problem: Problem) -> float:
    """The most bytes of tensors that are there at once, by all of them, of a step on one device.

    What partitioners are to count of the bytes that a group puts out. 1 if there are no tensors.
    The device executes what gets executable first, as TensorFlow does without an order: by the
    longest path, updates of variables would come last, and all gradients would be kept until then.
    """
    alone = (0,) * len(problem.vertices)
    most = peaks(problem, alone, simulate(problem, alone, "fifo"))[0]
    most -= math.fsum(vertex.resident_bytes for vertex in problem.vertices)
    own = (tensor.bytes for tensor in problem.tensors if tensor.hands_on is None)
    everything = math.fsum(own)
    return most / everything if everything else 1.0


# Whether it fits --------------------------------------------------------------------------------


def check_each_fits(problem: Problem) -> None:
    """Check that each group has a device with enough memory for it alone.

    It needs its resident bytes, and what one of its members reads and puts out.

    Raises:
        PlanError: one has none; names its member that needs the most, and the largest device.
    """
    for members, allowed in zip(problem.groups, problem.allowed, strict=True):
        capacity, largest = max((problem.devices[d].memory_bytes, -d) for d in allowed)
        if math.isinf(capacity):
            continue
        resident, around, vertex = _needed(problem, members)
        if resident + around > capacity:
            raise PlanError(
                f"'{problem.vertices[vertex].name}' needs {resident + around:,.0f} bytes "
                f"({resident:,.0f} stay there{_held(problem, members)}; {around:,.0f} are read or "
                "put out), but of the devices on which it may be the largest, "
                f"'{problem.devices[-largest].name}', has {capacity:,.0f}: give a device more "
                "memory, take fewer examples, or make variables smaller"
            )


def _held(problem: Problem, members: Sequence[int]) -> str:
    """Which members of a group hold memory all the time, in words."""
    held = [problem.vertices[vertex] for vertex in members]
    held = sorted((v for v in held if v.resident_bytes), key=lambda v: -v.resident_bytes)
    names = ", ".join(f"'{vertex.name}'" for vertex in held[:_NAMED])
    more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
    return f", of {names}{more}, which must be on one device" if held else ""


def least_memory(problem: Problem) -> float:
    """Bytes without which no device can have the group that needs the most."""
    found = (_needed(problem, members) for members in problem.groups)
    return max((resident + around for resident, around, _ in found), default=0.0)


def _needed(problem: Problem, members: Sequence[int]) -> tuple[float, float, int]:
    """Bytes of a group that stay, the most that a member reads and puts out, and that member."""
    resident = math.fsum(problem.vertices[vertex].resident_bytes for vertex in members)
    around, vertex = max((_around(problem, vertex), -vertex) for vertex in members)
    return resident, around, -vertex


def _around(problem: Problem, vertex: int) -> float:
    """Bytes that executing a vertex reads and puts out, at least."""
    numbers = {
        _memory_of(problem, number)
        for number in (*problem.inputs[vertex], *problem.outputs[vertex])
    }
    return math.fsum(problem.tensors[number].bytes for number in numbers)


def _memory_of(problem: Problem, number: int) -> int:
    """The tensor whose memory a tensor has where it is put out."""
    handed = problem.tensors[number].hands_on
    return number if handed is None else _memory_of(problem, handed)


def overruns(problem: Problem, needs: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Bytes that devices lack, with their numbers; `needs` are the peaks of all devices."""
    for number, (device, need) in enumerate(zip(problem.devices, needs, strict=True)):
        if need > device.memory_bytes:
            yield need - device.memory_bytes, number
