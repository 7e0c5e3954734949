"""When does each task of a step begin and end?

A fluid simulation: between two events every transfer and every computation goes on at a constant
rate. A host computes one task at a time, the most urgent one. Transfers share what their sender's
and their receiver's link carry, each in equal parts. Where a host's processor both computes and
transfers, every byte on the wire slows its computation down. Ties go to the task that was added
first, so the result is the same every time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from caramel.simulation.hardware import Hardware

_LEAST_SHARE = 0.05  # of its speed that a computation keeps, whatever is transferred
_NO_TIME_S = 1e-12


class Kind(IntEnum):
    """What a task needs: nothing but time, a host's device, or the link between two hosts."""

    DELAY = 0
    COMPUTE = 1
    SEND = 2


@dataclass(slots=True)
class TaskGraph:
    """Tasks, each with a number, and what waits for what.

    Attributes:
        names: what they are, for people; empty for those that nobody wants to see.
        kinds: what they need.
        hosts: where they happen; for a transfer the sender.
        targets: receivers.
        amounts: seconds, or bytes of a transfer.
        latencies: seconds before the first byte of a transfer.
        urgencies: computations of the same host go in this order, the least first.
        waits: how many tasks each waits for.
        dependents: which tasks wait for each.
    """

    names: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    amounts: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    urgencies: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    dependents: list[list[int]] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        host: int,
        amount: float,
        after: Iterable[int] = (),
        *,
        name: str = "",
        target: int = -1,
        latency_s: float = 0.0,
        urgency: int = 0,
    ) -> int:
        """Add a task that waits for some others; returns its number."""
        number = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.hosts.append(host)
        self.targets.append(target)
        self.amounts.append(amount)
        self.latencies.append(latency_s)
        self.urgencies.append(urgency)
        self.waits.append(0)
        self.dependents.append([])
        self.wait(number, after)
        return number

    def wait(self, number: int, after: Iterable[int]) -> None:
        """Let a task wait for more tasks."""
        for other in after:
            self.dependents[other].append(number)
            self.waits[number] += 1


@dataclass(slots=True)
class _Link:
    """The transfers from one host to another, which all get the same share.

    `carried` counts the bytes that a transfer would have got that was there from the begin.
    """

    source: int
    target: int
    rate: float
    carried: float = 0.0
    share: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Device:
    """What a host computes."""

    waiting: list[tuple[int, int]] = field(default_factory=list)
    running: int = -1
    left_s: float = 0.0
    speed: float = 1.0


def run(tasks: TaskGraph, hardware: Hardware) -> tuple[list[float], list[float]]:
    """When each task begins and ends, in seconds.

    Raises:
        AssertionError: tasks wait for each other.
    """
    simulation = _Run(tasks, hardware)
    simulation.run()
    return simulation.begins_s, simulation.ends_s


class _Run:
    def __init__(self, tasks: TaskGraph, hardware: Hardware) -> None:
        self._tasks, self._hardware = tasks, hardware
        self._clock_s = 0.0
        self.begins_s = [0.0] * len(tasks.names)
        self.ends_s = [-1.0] * len(tasks.names)
        self._waits = list(tasks.waits)
        self._left = list(tasks.amounts)  # of computations, in seconds
        self._delays: list[tuple[float, int]] = []  # ends of delays and of latencies
        self._flowing: set[int] = set()  # transfers whose latency is over
        hosts = len(hardware.hosts)
        self._devices = [_Device() for _ in range(hosts)]
        self._rates = {(each.source, each.target): each.bytes_per_s for each in hardware.links}
        self._links: dict[tuple[int, int], _Link] = {}
        self._busy: dict[tuple[int, int], _Link] = {}
        self._sending, self._receiving = [0] * hosts, [0] * hosts
        self._changed = True

    def run(self) -> None:
        tasks = self._tasks
        self._start([number for number, count in enumerate(tasks.waits) if not count])
        while True:
            if self._changed:
                self._share()
            step_s = self._until_next()
            if step_s == math.inf:
                break
            self._finish(self._advance(step_s))
        assert all(end >= 0 for end in self.ends_s), "tasks wait for each other"

    # Starting and ending

    def _start(self, numbers: Sequence[int]) -> None:
        """Start tasks that wait for nothing any more; those that take no time end at once."""
        tasks, clock_s = self._tasks, self._clock_s
        stack = list(reversed(numbers))
        while stack:
            number = stack.pop()
            self.begins_s[number] = clock_s
            kind, amount = tasks.kinds[number], tasks.amounts[number]
            if amount <= 0 and tasks.latencies[number] <= 0:
                self.ends_s[number] = clock_s
                stack += reversed(self._released(number))
            elif kind is Kind.COMPUTE:
                self._enqueue(number)
            elif kind is Kind.SEND and tasks.latencies[number] <= 0:
                self._flow(number)
            else:
                wait_s = tasks.latencies[number] if kind is Kind.SEND else amount
                heapq.heappush(self._delays, (clock_s + wait_s, number))

    def _released(self, number: int) -> list[int]:
        found = []
        for other in self._tasks.dependents[number]:
            self._waits[other] -= 1
            if not self._waits[other]:
                found.append(other)
        return found

    def _finish(self, numbers: Sequence[int]) -> None:
        ready: list[int] = []
        for number in numbers:
            self.ends_s[number] = self._clock_s
            ready += self._released(number)
        self._start(ready)

    def _enqueue(self, number: int) -> None:
        """Compute a task, at once if it is more urgent than what runs."""
        device = self._devices[self._tasks.hosts[number]]
        heapq.heappush(device.waiting, (self._tasks.urgencies[number], number))
        running = device.running
        if running < 0 or device.waiting[0] < (self._tasks.urgencies[running], running):
            if running >= 0:
                self._left[running] = device.left_s
                heapq.heappush(device.waiting, (self._tasks.urgencies[running], running))
            self._compute_next(device)

    def _compute_next(self, device: _Device) -> None:
        device.running = heapq.heappop(device.waiting)[1] if device.waiting else -1
        device.left_s = self._left[device.running] if device.running >= 0 else 0.0

    def _flow(self, number: int) -> None:
        """The first byte of a transfer goes."""
        tasks = self._tasks
        source, target = tasks.hosts[number], tasks.targets[number]
        link = self._links.get((source, target))
        if link is None:
            rate = self._rates.get((source, target), math.inf)
            link = self._links[source, target] = _Link(source, target, rate)
        heapq.heappush(link.ends, (link.carried + tasks.amounts[number], number))
        self._busy[source, target] = link
        self._sending[source] += 1
        self._receiving[target] += 1
        self._changed = True

    # Rates

    def _share(self) -> None:
        """What every transfer and every computation gets from now on."""
        hosts = self._hardware.hosts
        sent, received = [0.0] * len(hosts), [0.0] * len(hosts)
        for link in self._busy.values():
            count = len(link.ends)
            link.share = min(
                hosts[link.source].send_bytes_per_s / self._sending[link.source],
                hosts[link.target].receive_bytes_per_s / self._receiving[link.target],
                link.rate / count,
            )
            sent[link.source] += link.share * count
            received[link.target] += link.share * count
        cores, cost = self._hardware.cores, self._hardware.processor_s_per_byte
        for host, device in enumerate(self._devices):
            taken = cost * max(sent[host], received[host]) / cores if cores else 0.0
            device.speed = max(_LEAST_SHARE, 1.0 - taken) / hosts[host].slowdown
        self._changed = False

    # Time

    def _advance(self, step_s: float) -> list[int]:
        """Let time pass; returns what has ended, which is nothing if only a latency is over."""
        self._clock_s += step_s
        finished = []
        for key in list(self._busy):
            finished += self._carry(self._busy[key], step_s)
        for device in self._devices:
            if device.running < 0:
                continue
            device.left_s -= step_s * device.speed
            if device.left_s <= _NO_TIME_S:
                finished.append(device.running)
                self._compute_next(device)
        while self._delays and self._delays[0][0] <= self._clock_s + _NO_TIME_S:
            number = heapq.heappop(self._delays)[1]
            if self._tasks.kinds[number] is Kind.SEND and number not in self._flowing:
                self._flowing.add(number)
                if self._tasks.amounts[number] > 0:
                    self._flow(number)
                    continue
            finished.append(number)
        return sorted(finished)

    def _until_next(self) -> float:
        least_s = self._delays[0][0] - self._clock_s if self._delays else math.inf
        for link in self._busy.values():
            least_s = min(least_s, (link.ends[0][0] - link.carried) / link.share)
        for device in self._devices:
            if device.running >= 0:
                least_s = min(least_s, device.left_s / device.speed)
        return max(0.0, least_s)

    def _carry(self, link: _Link, step_s: float) -> list[int]:
        """The transfers of a link that end now."""
        link.carried += step_s * link.share
        finished = []
        slack = max(1e-6, 1e-12 * link.carried)  # bytes
        while link.ends and link.ends[0][0] <= link.carried + slack:
            finished.append(heapq.heappop(link.ends)[1])
            self._sending[link.source] -= 1
            self._receiving[link.target] -= 1
            self._changed = True
        if not link.ends:
            del self._busy[link.source, link.target]
        return finished
