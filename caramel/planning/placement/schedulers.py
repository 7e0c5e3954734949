"""Which of the vertices that a device could execute does it execute next? (Section 4.)

============ =====================================================================================
`fifo`       the one that has been executable for the longest time
`pct`        the one with the longest path of seconds behind it (section 4.1, equation 12)
`msr`        the one that lets most other devices go on (section 4.2, equation 13)
============ =====================================================================================

Besides, an order can be held: each device executes its vertices in the given one.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from caramel.core.errors import PlanError
from caramel.planning.placement.problem import Problem


class Scheduler(Protocol):
    """Chooses for all devices, while a step is simulated."""

    def executable(self, vertex: int, moment_s: float) -> None:
        """All that a vertex waits for has arrived on its device."""

    def ended(self, vertex: int) -> None:
        """A vertex was executed."""

    def choose(self, device: int, idle: Sequence[bool]) -> int | None:
        """Take what an idle device executes next; None if nothing is executable there.

        Args:
            device: its number.
            idle: whether each device executes nothing now.
        """


class ByKey:
    """Takes the executable vertex with the least key.

    Args:
        placement: the device of each vertex.
        devices: how many there are.
        keys: of each vertex; ties: the lower vertex.
    """

    def __init__(self, placement: Sequence[int], devices: int, keys: Sequence[float]) -> None:
        self._placement, self._keys = placement, keys
        self._queues: list[list[tuple[float, int]]] = [[] for _ in range(devices)]

    def executable(self, vertex: int, moment_s: float) -> None:
        heapq.heappush(self._queues[self._placement[vertex]], (self._keys[vertex], vertex))

    def ended(self, vertex: int) -> None:
        pass

    def choose(self, device: int, idle: Sequence[bool]) -> int | None:
        queue = self._queues[device]
        return heapq.heappop(queue)[1] if queue else None


class Fifo:
    """Takes what has been executable for the longest time.

    Args:
        placement: the device of each vertex.
        devices: how many there are.
        seed: of the random choice among vertices that get executable at the same moment, as in
            section 5.1; None takes the lower vertex.
    """

    def __init__(self, placement: Sequence[int], devices: int, seed: int | None = None) -> None:
        self._placement = placement
        self._ties = list(range(len(placement)))
        if seed is not None:
            random.Random(seed).shuffle(self._ties)
        self._queues: list[list[tuple[float, int, int]]] = [[] for _ in range(devices)]

    def executable(self, vertex: int, moment_s: float) -> None:
        entry = moment_s, self._ties[vertex], vertex
        heapq.heappush(self._queues[self._placement[vertex]], entry)

    def ended(self, vertex: int) -> None:
        pass

    def choose(self, device: int, idle: Sequence[bool]) -> int | None:
        queue = self._queues[device]
        return heapq.heappop(queue)[2] if queue else None


class MaximumSuccessorRank:
    """Takes the vertex with the highest MSR; ties: as PCT.

    Of equation 13, with the weights of section 5.2: each successor counts 1, and 1 more if it is
    elsewhere, and 1 more if the vertex is the only one for which it still waits. If both hold and
    its device is idle, it counts 5 more. (The equation does not ask that it is elsewhere for the
    last of these; but the device of a vertex that is about to be executed is not idle.)
    """

    ONLY_AND_IDLE = 5

    def __init__(self, problem: Problem, placement: Sequence[int]) -> None:
        self._placement = placement
        self._successors = problem.successors
        self._negative_pct = negative_path_times(problem, placement)
        # By the score that each would have if all devices were idle; an entry is out of date if
        # that is another one now.
        self._queues: list[list[tuple[int, float, int]]] = [[] for _ in problem.devices]
        self._is_executable = [False] * len(placement)
        # For each vertex: how many others it waits for, and the exclusive or of their numbers, by
        # which the last of them is known.
        self._left = [len(others) for others in problem.predecessors]
        self._which = [0] * len(placement)
        self._scores = [0] * len(placement)
        self._activates: list[list[int]] = [[] for _ in placement]
        for vertex, successors in enumerate(problem.successors):
            device = placement[vertex]
            self._scores[vertex] = sum(1 + (placement[other] != device) for other in successors)
            for other in successors:
                self._which[other] ^= vertex
        for vertex, count in enumerate(self._left):
            if count == 1:
                self._waits_for_one(vertex)

    def executable(self, vertex: int, moment_s: float) -> None:
        self._is_executable[vertex] = True
        heapq.heappush(self._queues[self._placement[vertex]], self._key(vertex))

    def ended(self, vertex: int) -> None:
        for successor in self._successors[vertex]:
            self._left[successor] -= 1
            self._which[successor] ^= vertex
            if self._left[successor] == 1:
                self._waits_for_one(successor)

    def choose(self, device: int, idle: Sequence[bool]) -> int | None:
        queue = self._queues[device]
        others: list[tuple[int, float, int]] = []
        best: tuple[int, float, int] | None = None
        # No score is higher than that by which the queue is sorted.
        while queue and (best is None or queue[0] < best):
            entry = heapq.heappop(queue)
            vertex = entry[2]
            if self._is_executable[vertex] and entry == self._key(vertex):
                others.append(entry)
                busy = sum(not idle[other] for other in self._activates[vertex])
                own = (entry[0] + self.ONLY_AND_IDLE * busy, *entry[1:])
                best = own if best is None else min(best, own)
        if best is None:
            return None
        self._is_executable[best[2]] = False
        for entry in others:
            if entry[2] != best[2]:
                heapq.heappush(queue, entry)
        return best[2]

    def _key(self, vertex: int) -> tuple[int, float, int]:
        """The negative score if all devices are idle, and what breaks ties; the least is first."""
        score = self._scores[vertex] + self.ONLY_AND_IDLE * len(self._activates[vertex])
        return -score, self._negative_pct[vertex], vertex

    def _waits_for_one(self, vertex: int) -> None:
        last = self._which[vertex]
        self._scores[last] += 1
        if self._placement[last] != self._placement[vertex]:
            self._activates[last].append(self._placement[vertex])
        if self._is_executable[last]:
            heapq.heappush(self._queues[self._placement[last]], self._key(last))


class Held:
    """Takes vertices in a given order on each device, also if another one could be executed.

    Raises:
        PlanError: the order does not have each vertex once.
    """

    def __init__(self, placement: Sequence[int], devices: int, order: Sequence[int]) -> None:
        if sorted(order) != list(range(len(placement))):
            raise PlanError(
                f"an order has each of {len(placement)} vertices once; this one has {len(order)}, "
                f"{len(set(order))} of them different"
            )
        self._queues: list[deque[int]] = [deque() for _ in range(devices)]
        for vertex in order:
            self._queues[placement[vertex]].append(vertex)
        self._executable = [False] * len(placement)

    def executable(self, vertex: int, moment_s: float) -> None:
        self._executable[vertex] = True

    def ended(self, vertex: int) -> None:
        pass

    def choose(self, device: int, idle: Sequence[bool]) -> int | None:
        queue = self._queues[device]
        return queue.popleft() if queue and self._executable[queue[0]] else None


def path_times(problem: Problem, placement: Sequence[int]) -> list[float]:
    """PCT: seconds from each vertex's begin to the end of the longest path behind it (eq. 12)."""
    times = [
        vertex.operations / problem.devices[device].speed
        for vertex, device in zip(problem.vertices, placement, strict=True)
    ]
    latency_s = problem.latency_s
    for vertex in reversed(problem.order):
        device = placement[vertex]
        rates = problem.rates[device]
        longest = 0.0
        for successor, size in problem.successors[vertex].items():
            behind, other = times[successor], placement[successor]
            if other != device:
                behind += latency_s + size / rates[other]
            if behind > longest:
                longest = behind
        times[vertex] += longest
    return times


def negative_path_times(problem: Problem, placement: Sequence[int]) -> list[float]:
    """The same as keys: the longest path is the least."""
    return [-time for time in path_times(problem, placement)]


# By name ----------------------------------------------------------------------------------------


def _fifo(problem: Problem, placement: Sequence[int], seed: int | None) -> Scheduler:
    return Fifo(placement, len(problem.devices), seed)


def _pct(problem: Problem, placement: Sequence[int], seed: int | None) -> Scheduler:
    return ByKey(placement, len(problem.devices), negative_path_times(problem, placement))


def _msr(problem: Problem, placement: Sequence[int], seed: int | None) -> Scheduler:
    return MaximumSuccessorRank(problem, placement)


SCHEDULERS: Mapping[str, Callable[[Problem, Sequence[int], int | None], Scheduler]] = {
    "fifo": _fifo,
    "pct": _pct,
    "msr": _msr,
}
"""From a problem, the device of each vertex and a seed for random ties to a scheduler."""


def scheduler_of(
    name: str, problem: Problem, placement: Sequence[int], seed: int | None = None
) -> Scheduler:
    """The scheduler of a name.

    Raises:
        PlanError: there is none.
    """
    if name not in SCHEDULERS:
        raise PlanError(f"there is no scheduler '{name}'; there are {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name](problem, placement, seed)
