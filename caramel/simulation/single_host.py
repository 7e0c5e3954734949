"""The same simulation as `engine` of one host, which sends to itself.

A search spends most of its time here. With one link nothing is shared, and a step takes a third of
the time or less.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from caramel.simulation.engine import NO_TIME_S, Kind, TaskGraph, speed_beside
from caramel.simulation.hardware import Hardware


def run_alone(tasks: TaskGraph, hardware: Hardware) -> tuple[list[float], list[float]]:
    """When each task begins and ends, in seconds.

    Args:
        tasks: all on host 0; transfers go from it to itself.
        hardware: of one host, and without links of their own.

    Raises:
        AssertionError: tasks wait for each other.
    """
    simulation = _Alone(tasks, hardware)
    simulation.run()
    assert all(end >= 0 for end in simulation.ends_s), "tasks wait for each other"
    return simulation.begins_s, simulation.ends_s


class _Alone:
    """Its clock, its device, and what is on its link.

    Of a transfer it keeps when it has begun to wait, its number, and when it ends.
    """

    def __init__(self, tasks: TaskGraph, hardware: Hardware) -> None:
        self._tasks = tasks
        count = len(tasks.names)
        self.begins_s, self.ends_s = [0.0] * count, [-1.0] * count
        self._waits = list(tasks.waits)
        self._clock_s = 0.0
        self._delays: list[tuple[float, int]] = []
        host = hardware.hosts[0]
        rate = min(host.send_bytes_per_s, host.receive_bytes_per_s)
        self._s_per_byte = 1.0 / rate
        # A transfer ends when its bytes have gone behind those before it, so its end is known when
        # it begins to wait.
        self._link: deque[tuple[float, int, float]] = deque()
        # While nothing is transferred, and while something is.
        self._speeds = 1.0 / host.slowdown, speed_beside(rate, host, hardware)
        self._speed = self._speeds[0]
        self._left_s = list(tasks.amounts)
        self._computing: list[tuple[int, int]] = []
        self._running = -1
        self._since_s, self._due_s = 0.0, math.inf

    def run(self) -> None:
        self._start([number for number, count in enumerate(self._waits) if not count])
        delays, link = self._delays, self._link
        while True:
            if self._speeds[bool(link)] != self._speed:
                self._change_speed(self._speeds[bool(link)])
            next_s = self._due_s
            if link and link[0][2] < next_s:
                next_s = link[0][2]
            if delays and delays[0][0] < next_s:
                next_s = delays[0][0]
            if next_s == math.inf:
                return
            if next_s > self._clock_s:
                self._clock_s = next_s
            self._start(self._released(self._ended()))

    def _ended(self) -> list[int]:
        """What has ended by now."""
        tasks, link, delays, clock_s = self._tasks, self._link, self._delays, self._clock_s
        limit_s = clock_s + NO_TIME_S
        ended: list[int] = []
        while self._due_s <= limit_s:
            ended.append(self._running)
            self._running, self._due_s = -1, math.inf
            self._compute_next()
        while link and link[0][2] <= limit_s:
            number = link.popleft()[1]
            if tasks.latencies[number] > 0:
                heapq.heappush(delays, (clock_s + tasks.latencies[number], number))
            else:
                ended.append(number)
            if link:
                self.begins_s[link[0][1]] = clock_s
        while delays and delays[0][0] <= limit_s:
            ended.append(heapq.heappop(delays)[1])
        return ended

    def _released(self, ended: list[int]) -> list[int]:
        """End these tasks; what waits for nothing any more."""
        dependents, waits = self._tasks.dependents, self._waits
        found = []
        for number in ended:
            self.ends_s[number] = self._clock_s
            for other in dependents[number]:
                waits[other] -= 1
                if not waits[other]:
                    found.append(other)
        return found

    def _start(self, numbers: list[int]) -> None:
        """Start tasks that wait for nothing any more; those that take no time end at once."""
        tasks, clock_s = self._tasks, self._clock_s
        while numbers:
            number = numbers.pop()
            self.begins_s[number] = clock_s
            kind, amount = tasks.kinds[number], tasks.amounts[number]
            latency_s = tasks.latencies[number]
            if amount <= 0 and latency_s <= 0:
                numbers += self._released([number])
            elif kind is Kind.COMPUTE:
                heapq.heappush(self._computing, (tasks.urgencies[number], number))
                self._compute_next()
            elif kind is Kind.SEND and amount > 0:
                self._send(number)
            else:
                wait_s = latency_s if kind is Kind.SEND else amount
                heapq.heappush(self._delays, (clock_s + wait_s, number))

    def _send(self, number: int) -> None:
        """Behind those that have begun before; of those that begin now the least urgent first."""
        tasks, link, clock_s = self._tasks, self._link, self._clock_s
        own = [number]
        while link and link[-1][0] >= clock_s - NO_TIME_S:
            own.append(link.pop()[1])
        if len(own) > 1:
            own.sort(key=lambda each: (tasks.urgencies[each], each), reverse=True)
        end_s = link[-1][2] if link else clock_s
        for each in own:
            end_s += tasks.amounts[each] * tasks.worth[each] * self._s_per_byte
            link.append((clock_s, each, end_s))

    def _compute_next(self) -> None:
        """The most urgent task, also in place of another one that runs."""
        waiting, running = self._computing, self._running
        if not waiting:
            return
        if running >= 0:
            own = (self._tasks.urgencies[running], running)
            if waiting[0] > own:
                return
            self._left_s[running] -= (self._clock_s - self._since_s) * self._speed
            self._running = heapq.heapreplace(waiting, own)[1]
        else:
            self._running = heapq.heappop(waiting)[1]
        left_s = self._left_s[self._running]
        if left_s == self._tasks.amounts[self._running]:  # nothing of it has been computed yet
            self.begins_s[self._running] = self._clock_s
        self._since_s = self._clock_s
        self._due_s = self._clock_s + max(0.0, left_s) / self._speed

    def _change_speed(self, speed: float) -> None:
        """The processor has begun to transfer beside what it computes, or has ended it."""
        if self._running >= 0:
            number = self._running
            self._left_s[number] -= (self._clock_s - self._since_s) * self._speed
            self._since_s = self._clock_s
            self._due_s = self._clock_s + max(0.0, self._left_s[number]) / speed
        self._speed = speed
