"""The tasks in which a group gets from where its gradients are complete to where it is aggregated.

Transfers go by the description of the group's pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import permutations

from caramel.core.decision import ALL_GATHER, FACTORS
from caramel.core.patterns import chunk_sizes, schedule
from caramel.simulation.conditions import Conditions, Send
from caramel.simulation.engine import Kind, TaskGraph
from caramel.simulation.loads import Load
from caramel.simulation.rounds import Addition, Message, Round, exchanges_of, rounds_of, sent_by

EXCHANGE = "exchange"
"""The pattern that factors are sent like: everything to everyone, in one round."""

FACTORS_OF_EACH = 2
"""How many tensors stand for a gradient that is sent by its factors."""

URGENT = -1
"""Of what goes before the forward and the backward pass."""


class Transfers:
    """Adds the transfers of groups to the tasks of a step.

    Args:
        tasks: those of the step.
        detailed: whether what takes no time has tasks of its own.
    """

    def __init__(self, tasks: TaskGraph, conditions: Conditions, *, detailed: bool) -> None:
        self._tasks, self._known_sends = tasks, conditions.sends
        self._workload, self._hardware = conditions.workload, conditions.hardware
        self._detailed, self._folded = detailed, self._hardware.is_uniform
        self._rate = self._hardware.bytes_per_s
        self._links = {(each.source, each.target): each for each in self._hardware.links}

    def add(self, load: Load, starts: list[int], complete: Sequence[Sequence[int]]) -> list[int]:
        """The transfers and additions of a group.

        Args:
            starts: for each host the task with which the group may go.
            complete: for each host the task that brings its raw gradients, if there is one.

        Returns:
            For each host the task with which the group is aggregated.
        """
        group = load.group
        self._handle_messages(load, starts)
        if self._hardware.workers == 1 or (load.bytes == 0 and group.pattern != ALL_GATHER):
            return starts
        if group.pattern == ALL_GATHER:
            return self._gathered(starts)
        if group.pattern == FACTORS:
            return self._by_factors(load, starts, complete)
        return self._in_rounds(load, starts) if self._folded else self._in_exchanges(load, starts)

    def work(self, host: int, seconds: float, after: Sequence[int], *, name: str = "") -> int:
        """Copy or add. Where a processor computes, one of its cores does not compute meanwhile."""
        if self._hardware.cores and seconds:
            taken_s = seconds / self._hardware.cores
            self._tasks.add(Kind.COMPUTE, host, taken_s, after, urgency=URGENT)
        return self._tasks.add(Kind.DELAY, host, seconds, after, name=name)

    def messages(self, load: Load) -> float:
        """How many chunks a worker sends, and receives, for a group, on average over the workers;
        of gathered rows that is not known."""
        if load.group.pattern == ALL_GATHER:
            return 0.0
        if load.group.pattern == FACTORS:
            return FACTORS_OF_EACH * (self._hardware.workers - 1)
        return sum([each.chunks for rounds in self._rounds(load) for each in rounds])

    def _handle_messages(self, load: Load, starts: Sequence[int]) -> None:
        """Keep processors that also compute busy with a group's messages, which do not wait for it:
        what it takes where nothing is computed is part of the latency."""
        if not self._hardware.processor_s_per_message or load.group.pattern == ALL_GATHER:
            return
        seconds = self._hardware.processor_s_per_message * self.messages(load)
        for host, start in enumerate(starts):
            self._tasks.add(Kind.COMPUTE, host, seconds, [start], urgency=URGENT)

    def _gathered(self, starts: list[int]) -> list[int]:
        """Rows of a sparse gradient; nothing is known of their number, so only latency counts."""
        latency_s = self._hardware.latency_of(ALL_GATHER)
        return [self._tasks.add(Kind.DELAY, host, latency_s, starts) for host in range(len(starts))]

    def _by_factors(
        self, load: Load, starts: list[int], complete: Sequence[Sequence[int]]
    ) -> list[int]:
        """Factors go from everyone to everyone, who computes and adds up what they stand for."""
        product = self._workload.product(load.parameters[0])
        others = self._hardware.workers - 1
        workers = range(self._hardware.workers)
        arrived: list[list[int]] = [[] for _ in starts]
        pairs, times = list(permutations(workers, 2)), 1
        if self._folded:
            # The one host sends to itself what each of them sends to all others.
            pairs, times = [(0, 0)], others
        size = times * product.bytes
        for source, target in pairs:
            chunks = FACTORS_OF_EACH * times
            pair, handled = (source, target), others * product.bytes
            sent = self._send(load, pair, (size, chunks), handled, [starts[source]])
            arrived[target].append(sent)
        again_s = others * product.seconds
        ends = []
        for host, own in enumerate(arrived):
            # A worker's own factors are not sent, but have to be there.
            after, name = [*own, *complete[host]], load.group.name
            computed = self._tasks.add(
                Kind.COMPUTE, host, again_s, after, name=name, urgency=URGENT
            )
            ends.append(self._add_up(load, host, others * load.bytes, [computed]))
        return ends

    def _chunks(self, load: Load) -> tuple[tuple[int, ...], ...]:
        """The bytes of the chunks, for each of the group's parts."""
        group = load.group
        count = schedule(group.pattern, self._hardware.workers).chunks
        return _part_bytes(
            load.elements, load.element_bytes, count, group.depth, group.smallest_chunk_bytes
        )

    def _rounds(self, load: Load) -> Iterator[tuple[Round, ...]]:
        """The rounds of each of the group's parts that are not empty."""
        for chunks in self._chunks(load):
            if any(chunks):
                yield rounds_of(load.group.pattern, self._hardware.workers, chunks)

    def _in_rounds(self, load: Load, starts: list[int]) -> list[int]:
        """The transfers of a group where one host stands for all.

        Parts go in each round right behind each other, as all that waits for a link does.
        """
        add, name, urgency = self._tasks.add, load.group.name, load.urgency
        ends: list[int] = []
        for sends in self._sends(load):
            last = starts[0]
            for each in sends:
                last = add(
                    Kind.SEND,
                    0,
                    each.bytes,
                    [last],
                    name=name,
                    target=0,
                    worth=each.worth,
                    latency_s=each.latency_s,
                    urgency=urgency,
                )
                if each.added:
                    last = self._add_up(load, 0, each.added, [last])
            ends.append(last)
        # With several parts, one task that waits for all.
        if len(ends) == 1 and not self._detailed:
            return ends
        return [self._tasks.add(Kind.DELAY, 0, 0.0, ends)]

    def _sends(self, load: Load) -> tuple[tuple[Send, ...], ...]:
        """What one host that stands for all sends, for each of the group's parts."""
        group, detailed = load.group, self._detailed
        size = load.elements, load.element_bytes, group.depth, group.smallest_chunk_bytes
        # Searches ask for the same groups again and again.
        key = (group.pattern, detailed, *size)
        if key not in self._known_sends:
            self._known_sends[key] = tuple(self._new_sends(load))
        return self._known_sends[key]

    def _new_sends(self, load: Load) -> Iterator[tuple[Send, ...]]:
        group, hardware = load.group, self._hardware
        latency_s = hardware.latency_of(group.pattern)
        handling_s_per_byte = hardware.handling_of(group.pattern)
        # A sum that only the next round waits for is as good as a later arrival.
        adds_later = self._detailed or group.depth > 1 or bool(hardware.cores)
        for rounds in self._rounds(load):
            yield tuple(
                Send(
                    each.bytes,
                    self._worth(group.pattern, each.bytes, each.chunks, self._rate) * each.busiest,
                    latency_s * each.count
                    + handling_s_per_byte * each.bytes * each.busiest
                    + (0.0 if adds_later else hardware.reduce_s_per_byte * each.added),
                    each.added if adds_later else 0.0,
                )
                for each in rounds
            )

    def _in_exchanges(self, load: Load, starts: list[int]) -> list[int]:
        """The transfers of a group between hosts that differ."""
        group, workers = load.group, range(self._hardware.workers)
        exchanges = exchanges_of(group.pattern, self._hardware.workers, group.shift)
        ends: list[list[int]] = [[] for _ in workers]
        for chunks in self._chunks(load):
            values = _Values(starts, len(chunks))
            for exchange in exchanges:
                sent_bytes = dict(sent_by(exchange, chunks))
                for message in exchange.messages:
                    size = sum(chunks[chunk] for chunk in message.chunks)
                    # A group smaller than its chunks has empty ones.
                    if not size:
                        continue
                    after = values.of(message.source, message.chunks)
                    filled = sum(chunks[chunk] > 0 for chunk in message.chunks)
                    pair, handled = (message.source, message.target), sent_bytes[message.source]
                    values.arrive(message, self._send(load, pair, (size, filled), handled, after))
                for addition in exchange.additions:
                    size = sum(chunks[chunk] for chunk in addition.chunks)
                    if size:
                        added = size * (len(addition.operands) - 1)
                        operands = values.operands(addition)
                        task = self._add_up(load, addition.worker, added, operands)
                        values.added(addition, task)
            for worker in workers:
                ends[worker] += values.of(worker, range(len(chunks)))
        return [self._tasks.add(Kind.DELAY, w, 0.0, sorted(set(ends[w]))) for w in workers]

    def _send(
        self,
        load: Load,
        pair: tuple[int, int],
        size_and_chunks: tuple[int, int],
        handled_bytes: int,
        after: Sequence[int],
    ) -> int:
        """A transfer from one host to another, or to itself where it stands for all.

        Args:
            size_and_chunks: bytes, and in how many tensors.
            handled_bytes: what its sender sends in this round; it handles one after the other.
        """
        source, target = pair
        pattern = EXCHANGE if load.group.pattern == FACTORS else load.group.pattern
        rate, hosts = self._rate, self._hardware.hosts
        latency_s = self._hardware.latency_of(pattern)
        if source != target:
            rate = min(hosts[source].send_bytes_per_s, hosts[target].receive_bytes_per_s)
        if link := self._links.get(pair):
            rate, latency_s = min(rate, link.bytes_per_s), link.latency_s
        return self._tasks.add(
            Kind.SEND,
            source,
            size_and_chunks[0],
            after,
            name=load.group.name,
            target=target,
            worth=self._worth(pattern, *size_and_chunks, rate),
            latency_s=latency_s + self._hardware.handling_of(pattern) * handled_bytes,
            urgency=load.urgency,
        )

    def _worth(self, pattern: str, size: float, chunks: float, bytes_per_s: float) -> float:
        """How many bytes each byte of some chunks takes the time of."""
        excess = self._hardware.excess.get(pattern, 1.0)
        # What a message costs does not depend on its size: it is told as bytes that take as long.
        return excess + self._hardware.message_s * chunks * bytes_per_s / size if size else excess

    def _add_up(self, load: Load, host: int, added: float, after: Sequence[int]) -> int:
        seconds = self._hardware.reduce_s_per_byte * added
        return self.work(host, seconds, after, name=load.group.name)


@lru_cache(maxsize=4096)
def _part_bytes(
    elements: int, element_bytes: int, chunks: int, depth: int, smallest_bytes: int
) -> tuple[tuple[int, ...], ...]:
    """The bytes of the chunks of each of `depth` parts."""
    sizes = chunk_sizes(elements, chunks * depth, element_bytes, smallest_bytes=smallest_bytes)
    in_bytes = [size * element_bytes for size in sizes]
    return tuple(tuple(in_bytes[n * chunks : (n + 1) * chunks]) for n in range(depth))


class _Values:
    """Which task brought what each worker has of each chunk."""

    def __init__(self, starts: Sequence[int], chunks: int) -> None:
        self._own = {(w, chunk): task for w, task in enumerate(starts) for chunk in range(chunks)}
        self._apart: dict[tuple[int, int, int], int] = {}

    def of(self, worker: int, chunks: Iterable[int]) -> list[int]:
        """The tasks that brought these chunks."""
        return sorted({self._own[worker, chunk] for chunk in chunks})

    def arrive(self, message: Message, task: int) -> None:
        """A message arrives with this task."""
        for chunk in message.chunks:
            if message.finished:
                self._own[message.target, chunk] = task
            else:
                self._apart[message.target, message.source, chunk] = task

    def operands(self, addition: Addition) -> list[int]:
        """The tasks that brought what is added."""
        worker, chunks = addition.worker, addition.chunks
        others = (w for w in addition.operands if w != worker)
        apart = {
            self._apart[worker, other, chunk]
            for other in others
            for chunk in chunks
            if (worker, other, chunk) in self._apart  # not of empty chunks
        }
        return sorted(apart.union(self.of(worker, chunks)))

    def added(self, addition: Addition, task: int) -> None:
        """The sum is there with this task."""
        self._own.update(((addition.worker, chunk), task) for chunk in addition.chunks)
