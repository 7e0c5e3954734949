"""List scheduling: one vertex after the other gets the device on which it ends first.

Topcuoglu, Hariri and Wu, *Performance-Effective and Low-Complexity Task Scheduling for
Heterogeneous Computing* (2002), of which this has what HEFT, CPOP and PEFT have in common: costs in
the mean of all devices, and the insertion of vertices into the gaps that others have left. As in
the paper (section 5.1), only feasible devices count, and a group's first vertex chooses the device:
the others get their slots there when it is their turn.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from caramel.planning.placement.filling import Filling, Floats, Numbers, seconds_per_byte
from caramel.planning.placement.problem import Problem

Prefer = Callable[[int, Numbers], int | None]
"""From a group and its feasible devices to the one that it must get; None: where it ends first."""


class MeanCosts:
    """Seconds that vertices and transfers take in the mean of all devices, and of all links."""

    def __init__(self, problem: Problem) -> None:
        self._latency_s = problem.latency_s if len(problem.devices) > 1 else 0.0
        self._seconds_per_byte = 1 / mean_rate(problem)
        inverse = float(np.mean([1 / device.speed for device in problem.devices]))
        self.execution = [vertex.operations * inverse for vertex in problem.vertices]

    def transfer(self, size: float) -> float:
        """Seconds of a transfer of some bytes between two devices."""
        return self._latency_s + size * self._seconds_per_byte


def mean_rate(problem: Problem) -> float:
    """Bytes a second between two devices, in the mean of all; infinite with one device."""
    count = len(problem.devices)
    if count == 1:
        return np.inf
    rates = np.array(problem.rates, dtype=float)
    np.fill_diagonal(rates, 0)
    return float(rates.sum() / (count * (count - 1)))


def mean_up_ranks(problem: Problem, *, transfers: float = 1.0) -> list[float]:
    """rank_u: mean seconds from each vertex's begin to the end of the step (their eq. 7).

    Args:
        problem: what is to be placed.
        transfers: how many times the mean seconds of a transfer count; HEFT's are 1.
    """
    costs = MeanCosts(problem)
    ranks = list(costs.execution)
    for vertex in reversed(problem.order):
        ranks[vertex] += max(
            (
                transfers * costs.transfer(size) + ranks[other]
                for other, size in problem.successors[vertex].items()
            ),
            default=0.0,
        )
    return ranks


def mean_down_ranks(problem: Problem) -> list[float]:
    """rank_d: mean seconds from the begin of the step to each vertex's begin (their eq. 8)."""
    costs = MeanCosts(problem)
    ranks = [0.0] * len(problem.vertices)
    for vertex in problem.order:
        ranks[vertex] = max(
            (
                ranks[other] + costs.execution[other] + costs.transfer(size)
                for other, size in problem.predecessors[vertex].items()
            ),
            default=0.0,
        )
    return ranks


def by_priority(problem: Problem, ranks: Sequence[float]) -> Iterator[int]:
    """All vertices, of those that wait for none any more the highest rank first.

    Ties: the lower vertex. If no vertex has a higher rank than one that it waits for, this is the
    order of ranks.
    """
    waits = [len(others) for others in problem.predecessors]
    ready = [(-ranks[vertex], vertex) for vertex, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    while ready:
        vertex = heapq.heappop(ready)[1]
        yield vertex
        for other in problem.successors[vertex]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (-ranks[other], other))


def list_placement(
    problem: Problem,
    ranks: Sequence[float],
    *,
    share: float,
    prefer: Prefer | None = None,
    behind: Floats | None = None,
) -> tuple[int, ...]:
    """Place vertices by their ranks, each where it ends first.

    Args:
        problem: what is to be placed.
        ranks: of the vertices.
        share: of the bytes that a group puts out, how many count.
        prefer: says which groups get a certain device.
        behind: seconds that count besides for each vertex (row) on each device (column).

    Returns:
        The device of each vertex.
    """
    filling = Filling(problem, share)
    slots = _Slots(problem, filling.speeds)
    for vertex in by_priority(problem, ranks):
        device = filling.placement[vertex]
        if device >= 0:
            slots.put_on(vertex, device)
            continue
        group = problem.group_of[vertex]
        feasible = filling.feasible(group)
        preferred = prefer(group, feasible) if prefer else None
        if preferred is not None:
            slots.put_on(vertex, preferred)
            filling.put(group, preferred)
        else:
            more = None if behind is None else behind[vertex]
            filling.put(group, slots.put_first(vertex, feasible, more))
    return tuple(filling.placement)


class _Slots:
    """What each device executes when, as far as vertices have slots."""

    def __init__(self, problem: Problem, speeds: Floats) -> None:
        self._problem, self._speeds = problem, speeds
        devices = len(problem.devices)
        self._seconds_per_byte = seconds_per_byte(problem)
        self._latency_s = problem.latency_s * (1 - np.eye(devices))
        self._device = [-1] * len(problem.vertices)
        self._end = [0.0] * len(problem.vertices)
        # The gaps of each device in ascending order, as their ends and begins; the last is open.
        self._ends: list[list[float]] = [[np.inf] for _ in range(devices)]
        self._begins: list[list[float]] = [[0.0] for _ in range(devices)]

    def put_on(self, vertex: int, device: int) -> None:
        """Give a vertex the first slot on a device."""
        moment = float(self._arrivals(vertex)[device])
        self._put(vertex, device, moment, self._problem.vertices[vertex].operations)

    def put_first(self, vertex: int, devices: Numbers, more: Floats | None) -> int:
        """Give a vertex the slot, of all those on some devices, in which it ends first.

        Ties: the lower device. Returns the device.

        Args:
            vertex: its number.
            devices: numbers of devices.
            more: seconds by which its end counts as later, by device; None if by none.
        """
        operations = self._problem.vertices[vertex].operations
        arrivals = self._arrivals(vertex)
        # No slot ends before that: devices are looked at until none can be better.
        earliest = arrivals + operations / self._speeds
        if more is not None:
            earliest = earliest + more
        earliest = earliest[devices]
        found: tuple[float, int] | None = None
        for place in np.argsort(earliest, kind="stable").tolist():
            if found is not None and earliest[place] > found[0]:
                break
            device = int(devices[place])
            moment = float(arrivals[device])
            duration = operations / float(self._speeds[device])
            _, begin = self._gap(device, moment, duration)
            end = begin + duration + (0.0 if more is None else float(more[device]))
            if found is None or (end, device) < found:
                found = end, device
        assert found is not None, "there is a device"
        self._put(vertex, found[1], float(arrivals[found[1]]), operations)
        return found[1]

    def _arrivals(self, vertex: int) -> Floats:
        """When all that a vertex waits for is on each device."""
        found: Floats = np.zeros(len(self._speeds))
        for number in self._problem.inputs[vertex]:
            tensor = self._problem.tensors[number]
            device = self._device[tensor.source]
            arrival = tensor.bytes * self._seconds_per_byte[device]
            arrival += self._latency_s[device]
            arrival += self._end[tensor.source]
            np.maximum(found, arrival, out=found)
        return found

    def _gap(self, device: int, moment: float, duration: float) -> tuple[int, float]:
        """The first gap of a device with room from a moment on, and when that begins."""
        ends, begins = self._ends[device], self._begins[device]
        place = bisect_left(ends, moment)
        while True:
            begin = begins[place]
            if begin < moment:
                begin = moment
            if begin + duration <= ends[place]:
                return place, begin
            place += 1

    def _put(self, vertex: int, device: int, moment: float, operations: float) -> None:
        duration = operations / float(self._speeds[device])
        place, begin = self._gap(device, moment, duration)
        end = begin + duration
        ends, begins = self._ends[device], self._begins[device]
        before, after = begins[place], ends[place]
        # Gaps without length are of no use, but for the open one.
        if end < after:
            begins[place] = end
            if before < begin:
                begins.insert(place, before)
                ends.insert(place, begin)
        elif before < begin:
            ends[place] = begin
        else:
            del ends[place], begins[place]
        self._device[vertex], self._end[vertex] = device, end
