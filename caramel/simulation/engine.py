"""When does each task of a step begin and end?

A fluid simulation: between two events every transfer and every computation goes on at a constant
rate.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from caramel.simulation.hardware import Hardware, Host

_LEAST_SHARE = 0.05  # of its speed that a computation keeps, whatever is transferred
NO_TIME_S = 1e-12
"""What happens within it happens at once."""
_SAME_SPEED = 1e-12


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
        worth: how many bytes on the wire each byte of a transfer takes the time of.
        latencies: seconds from the last byte of a transfer to its arrival.
        urgencies: computations of the same host go in this order, the least first; transfers that
            begin together the other way round.
        waits: how many tasks each waits for.
        dependents: which tasks wait for each.
    """

    names: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    amounts: list[float] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    urgencies: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    dependents: list[list[int]] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        host: int,
        amount: float,
        after: Sequence[int] = (),
        *,
        name: str = "",
        target: int = -1,
        worth: float = 1.0,
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
        self.worth.append(worth)
        self.latencies.append(latency_s)
        self.urgencies.append(urgency)
        self.waits.append(len(after))
        dependents = self.dependents
        dependents.append([])
        for other in after:
            dependents[other].append(number)
        return number

    def add_chain(
        self,
        host: int,
        amounts: Sequence[float],
        names: Sequence[str],
        urgencies: Sequence[int],
        after: Sequence[int] = (),
    ) -> range:
        """Add computations, each after the one before, and the first after some other tasks."""
        first, count = len(self.names), len(amounts)
        if not count:
            return range(first, first)
        self.names += names
        self.kinds += [Kind.COMPUTE] * count
        self.hosts += [host] * count
        self.targets += [-1] * count
        self.amounts += amounts
        self.worth += [1.0] * count
        self.latencies += [0.0] * count
        self.urgencies += urgencies
        self.waits += [len(after)] + [1] * (count - 1)
        self.dependents += [[number] for number in range(first + 1, first + count)]
        self.dependents.append([])
        for other in after:
            self.dependents[other].append(first)
        return range(first, first + count)

    def wait(self, number: int, after: Iterable[int]) -> None:
        """Let a task wait for more tasks."""
        for other in after:
            self.dependents[other].append(number)
            self.waits[number] += 1


@dataclass(slots=True)
class _Waiting:
    """A transfer on a link.

    Attributes:
        number: of the task.
        begin_s: when it has begun to wait.
        size: in bytes on the wire.
        end: the `carried` of the link with which it ends.
    """

    number: int
    begin_s: float
    size: float
    end: float = 0.0


@dataclass(slots=True)
class _Link:
    """The connection from one host to another.

    Its transfers go one after the other, in the order in which they begin, as gRPC sends them.

    Attributes:
        number: of the resource.
        rate: what the link carries, besides what its hosts send and receive.
        waiting: its transfers, in order.
        carried: bytes since the link got busy.
        share: bytes per second.
        since_s: up to when that has been followed.
        due_s: when the first of them ends.
        first: with which `carried` that is.
    """

    number: int
    source: int
    target: int
    rate: float
    waiting: deque[_Waiting] = field(default_factory=deque)
    carried: float = 0.0
    share: float = 0.0
    since_s: float = 0.0
    due_s: float = math.inf
    first: float = -1.0

    def follow(self, clock_s: float) -> None:
        """Up to this moment."""
        self.carried += (clock_s - self.since_s) * self.share
        self.since_s = clock_s


@dataclass(slots=True)
class _Device:
    """What a host computes: one task at a time, the most urgent one.

    Attributes:
        number: of the resource.
        waiting: urgency and number of what does not run.
        running: what runs, -1 if nothing.
        left_s: what it still takes, on an idle processor as fast as that of the timed ops.
        speed: how fast it is computed.
        since_s: up to when that has been followed.
        due_s: when it ends.
    """

    number: int
    speed: float
    waiting: list[tuple[int, int]] = field(default_factory=list)
    running: int = -1
    left_s: float = 0.0
    since_s: float = 0.0
    due_s: float = math.inf

    def follow(self, clock_s: float) -> None:
        """Up to this moment."""
        self.left_s -= (clock_s - self.since_s) * self.speed
        self.since_s = clock_s


def run(tasks: TaskGraph, hardware: Hardware) -> tuple[list[float], list[float]]:
    """When each task begins and ends, in seconds.

    Raises:
        AssertionError: tasks wait for each other.
    """
    simulation = _Run(tasks, hardware)
    simulation.run()
    return simulation.begins_s, simulation.ends_s


def speed_beside(bytes_per_s: float, host: Host, hardware: Hardware) -> float:
    """How fast a host computes while it sends, or receives, so much."""
    if hardware.cores is None:
        return 1.0 / host.slowdown
    taken = hardware.processor_s_per_byte * bytes_per_s / hardware.cores
    return max(_LEAST_SHARE, 1.0 - taken) / host.slowdown


class _Run:
    """The state at one moment.

    Every link and device keeps in mind up to when it has been followed.
    """

    def __init__(self, tasks: TaskGraph, hardware: Hardware) -> None:
        self._tasks, self._hardware = tasks, hardware
        self._clock_s = 0.0
        self.begins_s = [0.0] * len(tasks.names)
        self.ends_s = [-1.0] * len(tasks.names)
        self._waits = list(tasks.waits)
        self._left_s = list(tasks.amounts)  # of computations
        self._delays: list[tuple[float, int]] = []  # ends of delays and of latencies
        hosts = range(len(hardware.hosts))
        self._devices = [_Device(n, 1.0 / hardware.hosts[n].slowdown) for n in hosts]
        self._rates = {(each.source, each.target): each.bytes_per_s for each in hardware.links}
        self._links: dict[tuple[int, int], _Link] = {}
        self._resources: list[_Device | _Link] = [*self._devices]
        self._due: list[tuple[float, int]] = []  # also what is due no more at that time
        # Busy links by their sender and by their receiver.
        self._outgoing: list[dict[int, _Link]] = [{} for _ in hosts]
        self._incoming: list[dict[int, _Link]] = [{} for _ in hosts]
        self._sent, self._received = [0.0] * len(hosts), [0.0] * len(hosts)  # bytes per second
        # What each link of a host would get if the other end allowed it.
        self._send_shares, self._receive_shares = [0.0] * len(hosts), [0.0] * len(hosts)
        # Hosts at which a transfer has begun or ended now. What a connection gets depends on its
        # two hosts only, so when one gets busy or idle, only those of its hosts are looked at.
        self._senders: dict[int, None] = {}
        self._receivers: dict[int, None] = {}

    def run(self) -> None:
        tasks = self._tasks
        self._start([number for number, count in enumerate(tasks.waits) if not count])
        while True:
            if self._senders:
                self._share()
            next_s = self._next_s()
            if next_s == math.inf:
                break
            self._clock_s = max(self._clock_s, next_s)
            self._finish(self._ended())
        assert all(end >= 0 for end in self.ends_s), "tasks wait for each other"

    # Starting and ending

    def _start(self, numbers: Sequence[int]) -> None:
        """Start tasks that wait for nothing any more; those that take no time end at once."""
        tasks, clock_s = self._tasks, self._clock_s
        # In place of recursion: many tasks that take no time follow each other.
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
            elif kind is Kind.SEND and amount > 0:
                self._send(number)
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
        urgencies = self._tasks.urgencies
        device = self._devices[self._tasks.hosts[number]]
        heapq.heappush(device.waiting, (urgencies[number], number))
        running = device.running
        if running >= 0:
            # Ties go to the task that was added first, so the result is the same every time.
            if device.waiting[0] > (urgencies[running], running):
                return
            device.follow(self._clock_s)
            self._left_s[running] = device.left_s
            heapq.heappush(device.waiting, (urgencies[running], running))
        self._compute_next(device)

    def _compute_next(self, device: _Device) -> None:
        if not device.waiting:
            device.running, device.due_s = -1, math.inf
            return
        device.running = number = heapq.heappop(device.waiting)[1]
        device.left_s, device.since_s = self._left_s[number], self._clock_s
        if device.left_s == self._tasks.amounts[number]:  # nothing of it has been computed yet
            self.begins_s[number] = self._clock_s
        self._set_due(device, device.left_s / device.speed)

    def _send(self, number: int) -> None:
        """Let a transfer go behind those that have begun before."""
        tasks, clock_s = self._tasks, self._clock_s
        source, target = tasks.hosts[number], tasks.targets[number]
        link = self._links.get((source, target))
        if link is None:
            rate = self._rates.get((source, target), math.inf)
            link = _Link(len(self._resources), source, target, rate)
            self._links[source, target] = link
            self._resources.append(link)
        if not link.waiting:
            link.carried, link.share, link.since_s, link.first = 0.0, 0.0, clock_s, -1.0
            self._outgoing[source][target] = self._incoming[target][source] = link
        link.follow(clock_s)
        own = [_Waiting(number, clock_s, tasks.amounts[number] * tasks.worth[number])]
        # Transfers that begin together may go in any order, and no plan should count on a good one:
        # so the least urgent goes first.
        while link.waiting and link.waiting[-1].begin_s >= clock_s - NO_TIME_S:
            own.append(link.waiting.pop())
        end = link.waiting[-1].end if link.waiting else link.carried
        urgencies = tasks.urgencies
        for each in sorted(own, key=lambda w: (urgencies[w.number], w.number), reverse=True):
            end += each.size
            each.end = end
            link.waiting.append(each)
        self._senders[source] = self._receivers[target] = None

    # Rates

    def _share(self) -> None:
        """What the links of these hosts get from now on."""
        clock_s, due = self._clock_s, self._due
        send_shares, receive_shares = self._send_shares, self._receive_shares
        sent, received = self._sent, self._received
        for number, link in self._concerned().items():
            end = link.waiting[0].end
            share = min(send_shares[link.source], receive_shares[link.target], link.rate)
            # Nothing has changed for this link: what it waits for is due as before.
            if share == link.share and end == link.first:
                continue
            link.carried += (clock_s - link.since_s) * link.share  # as `follow` does
            sent[link.source] += share - link.share
            received[link.target] += share - link.share
            link.since_s, link.share, link.first = clock_s, share, end
            left = end - link.carried
            link.due_s = clock_s + left / share if left > 0.0 else clock_s
            heapq.heappush(due, (link.due_s, number))
        if self._hardware.cores is not None:
            for host in range(len(self._devices)):
                self._slow_down(host)
        self._senders.clear()
        self._receivers.clear()

    def _concerned(self) -> dict[int, _Link]:
        """The busy links of these hosts, whose own shares are worked out in passing.

        A host's busy links have equal shares of its rate. What one of them leaves of that, because
        its other end gives less, goes to none of the others.
        """
        hosts = self._hardware.hosts
        links: dict[int, _Link] = {}
        for host in self._senders:
            links.update((link.number, link) for link in self._outgoing[host].values())
            count = max(1, len(self._outgoing[host]))
            self._send_shares[host] = hosts[host].send_bytes_per_s / count
        for host in self._receivers:
            links.update((link.number, link) for link in self._incoming[host].values())
            count = max(1, len(self._incoming[host]))
            self._receive_shares[host] = hosts[host].receive_bytes_per_s / count
        return links

    def _slow_down(self, host: int) -> None:
        """How fast a host computes while its processor transfers."""
        hardware, device = self._hardware, self._devices[host]
        # Where a host's processor both computes and transfers, every byte on the wire slows its
        # computation down.
        carried = max(self._sent[host], self._received[host])
        speed = speed_beside(carried, hardware.hosts[host], hardware)
        if abs(speed - device.speed) > _SAME_SPEED:
            if device.running >= 0:
                device.follow(self._clock_s)
                self._set_due(device, device.left_s / speed)
            device.speed = speed

    # Time

    def _set_due(self, resource: _Device | _Link, after_s: float) -> None:
        resource.due_s = self._clock_s + max(0.0, after_s)
        heapq.heappush(self._due, (resource.due_s, resource.number))

    def _next_s(self) -> float:
        due = self._due
        # Entries of the heap that are out of date are dropped when they come up.
        while due and self._resources[due[0][1]].due_s != due[0][0]:
            heapq.heappop(due)
        first_s = due[0][0] if due else math.inf
        return min(first_s, self._delays[0][0]) if self._delays else first_s

    def _ended(self) -> list[int]:
        """What has ended by now, which is nothing if all of it has still to arrive."""
        limit_s = self._clock_s + NO_TIME_S
        finished: list[int] = []
        while self._due and self._due[0][0] <= limit_s:
            due_s, number = heapq.heappop(self._due)
            resource = self._resources[number]
            if resource.due_s != due_s:
                continue
            if isinstance(resource, _Link):
                finished += self._carried(resource)
            else:
                finished.append(resource.running)
                self._compute_next(resource)
        while self._delays and self._delays[0][0] <= limit_s:
            finished.append(heapq.heappop(self._delays)[1])
        # In a fixed order, whichever heap they came from.
        return sorted(finished)

    def _carried(self, link: _Link) -> list[int]:
        """The transfers of a link that end now; those that are still to arrive are put off."""
        link.follow(self._clock_s)
        link.due_s, link.first = math.inf, -1.0
        # What is left only because of rounding counts as carried.
        enough = link.carried + max(1e-6, 1e-12 * link.carried, 2 * NO_TIME_S * link.share)
        enough = max(enough, link.waiting[0].end)
        finished = []
        while link.waiting and link.waiting[0].end <= enough:
            number = link.waiting.popleft().number
            latency_s = self._tasks.latencies[number]
            if latency_s > 0:
                heapq.heappush(self._delays, (self._clock_s + latency_s, number))
            else:
                finished.append(number)
        self._senders[link.source] = self._receivers[link.target] = None
        if link.waiting:
            self.begins_s[link.waiting[0].number] = self._clock_s
        else:
            self._rest(link)
        return finished

    def _rest(self, link: _Link) -> None:
        """Nothing is on a link any more."""
        source, target = link.source, link.target
        del self._outgoing[source][target]
        del self._incoming[target][source]
        # Nothing is left of rounding where a host is at rest.
        self._sent[source] = self._sent[source] - link.share if self._outgoing[source] else 0.0
        left = self._received[target] - link.share
        self._received[target] = left if self._incoming[target] else 0.0
        link.share = 0.0
