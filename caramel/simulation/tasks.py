"""Everything that happens in a step, and what waits for what.

On each host a chain of computation, which begins when everything that will be received has been
asked for; for each group the laying side by side of its members, the transfers and additions of its
pattern, and what waits for its arrival: gates, updates, and parts of the forward pass. Where a
processor computes, what it copies and adds takes a core from that. Where all workers are alike, one
host stands for all, and sends to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, permutations

from caramel.patterns import chunk_sizes, schedule
from caramel.plan import ALL_GATHER, FACTORS, Gate, Group
from caramel.simulation.engine import Kind, TaskGraph
from caramel.simulation.hardware import Hardware
from caramel.simulation.rounds import Addition, Message, Round, exchanges_of, rounds_of, sent_by
from caramel.workload import Piece, Size, Update, Workload

EXCHANGE = "exchange"
"""The pattern that factors are sent like: everything to everyone, in one round."""

FACTORS_OF_EACH = 2
"""How many tensors stand for a gradient that is sent by its factors."""


@dataclass(slots=True)
class StepTasks:
    """The tasks of a step.

    Attributes:
        graph: all of them.
        begins: when a group begins to be transferred: for each group one task on each host.
        arrivals: when it is there, aggregated.
        folded: whether one host stands for all workers.
    """

    graph: TaskGraph = field(default_factory=TaskGraph)
    begins: dict[str, list[int]] = field(default_factory=dict)
    arrivals: dict[str, list[int]] = field(default_factory=dict)
    folded: bool = False


def tasks_of(
    groups: Sequence[Group],
    gates: Sequence[Gate],
    sizes: Mapping[str, Size],
    workload: Workload,
    hardware: Hardware,
    *,
    pending: bool = True,
    detailed: bool = True,
) -> StepTasks:
    """The tasks of one step.

    Args:
        groups: what is aggregated together, and how.
        gates: which of them waits for which.
        sizes: of what is aggregated for each parameter, or part of its gradient.
        workload: what each worker computes.
        hardware: workers and links.
        pending: whether deferred groups of the step before are still to be aggregated.
        detailed: whether every piece of the computation is a task. Else there are as few as the
            step takes the same time with: pieces are one task where no group begins between them
            and none is waited for.
    """
    writer = _Writer(groups, sizes, workload, hardware, pending, detailed)
    writer.compute()
    for group in groups:
        if group.deferred:
            writer.keep(group)
    for group in writer.order(gates):
        writer.transfer(group)
    writer.update()
    return writer.found


_URGENT = -1  # updates go before the forward and backward pass


class _Writer:
    def __init__(
        self,
        groups: Sequence[Group],
        sizes: Mapping[str, Size],
        workload: Workload,
        hardware: Hardware,
        pending: bool,
        detailed: bool,
    ) -> None:
        self._sizes, self._workload, self._hardware = sizes, workload, hardware
        self._pending, self._detailed = pending, detailed or not groups
        self._all_groups = groups
        self._groups = [group for group in groups if pending or not group.deferred]
        self._groups_of: dict[str, dict[str, Group]] = {}
        for group in groups:
            for name in self._parameters(group):
                self._groups_of.setdefault(name, {})[group.name] = group
        self._deferred = {n for g in groups if g.deferred for n in self._parameters(g)}
        self._joined_bytes: dict[str, int] = {}  # of gradients in parts
        for part in (sizes[name] for group in groups for name in group.members):
            if part.parameter is not None:
                joined = self._joined_bytes.get(part.parameter, 0)
                self._joined_bytes[part.parameter] = joined + part.bytes
        self._needed = workload.needed_after
        self.found = StepTasks(folded=hardware.is_uniform)
        self._tasks = self.found.graph
        self._hosts = 1 if self.found.folded else hardware.workers
        self._rate = hardware.bytes_per_s
        self._links = {(each.source, each.target): each for each in hardware.links}
        self._after: dict[str, list[str]] = {}
        self._asked: list[list[int]] = []
        self._chain: list[dict[int, int]] = []  # tasks by the first piece of each
        self._yielded: list[dict[str, int]] = []

    def _urgency(self, group: Group) -> int:
        """Which piece of the chain waits for a group; what is not deferred is needed at the end."""
        last = len(self._workload.chain)
        if not group.deferred:
            return last
        return min(self._needed.get(name, last) for name in self._parameters(group))

    def _parameters(self, group: Group) -> list[str]:
        """The parameters to which the members of a group belong."""
        return [self._sizes[name].parameter or name for name in group.members]

    # Computation

    def compute(self) -> None:
        """The forward and the backward pass of every host."""
        op_s, request_s = self._hardware.op_s, self._hardware.request_s
        asking_s = request_s * sum(map(self._messages, self._groups)) if request_s else 0.0
        stretches = list(self._stretches())
        for host in range(self._hosts):
            asked = [self._tasks.add(Kind.DELAY, host, asking_s, ())] if asking_s else []
            self._asked.append(asked)
            chain: dict[int, int] = {}
            yielded: dict[str, int] = {}
            before = asked
            for number, pieces in stretches:
                task = self._tasks.add(
                    Kind.COMPUTE,
                    host,
                    sum(piece.seconds + op_s * piece.ops for piece in pieces),
                    before,
                    name=pieces[-1].name,
                    urgency=number,
                )
                chain[number], before = task, [task]
                yielded.update(dict.fromkeys((n for p in pieces for n in p.yields), task))
            self._chain.append(chain)
            self._yielded.append(yielded)

    def _stretches(self) -> Iterator[tuple[int, Sequence[Piece]]]:
        """The chain in tasks: pieces that are computed one after the other, and the first's number.

        A task ends where a group is complete, and begins where what is updated in this step is
        first needed.
        """
        chain = self._workload.chain
        if self._detailed:
            yield from ((number, (piece,)) for number, piece in enumerate(chain))
            return
        position = self._workload.yielded_at
        members = (self._parameters(group) for group in self._all_groups)
        ends = {max((position.get(name, 0) for name in each), default=0) for each in members}
        needed_at = self._workload.needed_at
        waiting = {needed_at[name] for name in self._moved_variables() if name in needed_at}
        cuts = sorted({0, len(chain), *waiting, *(end + 1 for end in ends if chain)})
        yield from ((begin, chain[begin:end]) for begin, end in pairwise(cuts))

    def _moved_variables(self) -> Iterator[str]:
        """What is updated in this step with what is left of the one before."""
        for update in self._workload.updates if self._pending else ():
            if not self._deferred.isdisjoint(update.moves_with):
                yield from update.writes

    def update(self) -> None:
        """What is computed from aggregated gradients, and what waits for it."""
        for host in range(self._hosts):
            for variable, tasks in self._updated(host).items():
                if variable in self._workload.needed_at:
                    piece = self._workload.needed_at[variable]
                    self._tasks.wait(self._chain[host][piece], tasks)

    def _updated(self, host: int) -> dict[str, list[int]]:
        """The tasks that write each variable with what is left of the step before."""
        written: dict[str, list[int]] = {}
        arrived = {name: self._arrived(name, host) for name in self._groups_of}
        at_the_end: dict[tuple[int, ...], float] = {}  # nothing of this step waits for these
        for each in self._workload.updates:
            moved = not self._deferred.isdisjoint(each.moves_with)
            if moved and not self._pending:
                continue
            seconds = each.seconds + (self._hardware.op_s if each.seconds else 0.0)
            if not (seconds or moved or self._detailed):
                continue
            after = self._needed_by(each, moved, host, arrived)
            if not self._detailed and not moved:
                at_the_end[tuple(after)] = at_the_end.get(tuple(after), 0.0) + seconds
                continue
            done = after
            if seconds or self._detailed:
                done = [self._update_task(host, seconds, after, each.name)]
            if moved:
                for variable in each.writes:
                    written.setdefault(variable, []).extend(done)
        for waits, total_s in at_the_end.items():
            self._update_task(host, total_s, waits, "")
        return written

    def _update_task(self, host: int, seconds: float, after: Sequence[int], name: str) -> int:
        return self._tasks.add(Kind.COMPUTE, host, seconds, after, name=name, urgency=_URGENT)

    def _needed_by(
        self, update: Update, moved: bool, host: int, arrived: Mapping[str, Sequence[int]]
    ) -> list[int]:
        """The arrivals that an update waits for, or the raw gradients if nothing is sent."""
        own = sorted(update.gradients)
        if self._groups_of or moved:
            of_step = (name for name in own if (name in self._deferred) == moved)
            return list(dict.fromkeys(t for name in of_step for t in arrived.get(name, ())))
        return sorted({self._yielded[host][n] for n in own if n in self._yielded[host]})

    def _arrived(self, parameter: str, host: int) -> list[int]:
        """The task with which a parameter's aggregated gradient is there.

        If it is in parts, they are joined. If any of them is deferred, the others are there from
        the step before.
        """
        moved = parameter in self._deferred
        if moved and not self._pending:
            return []
        groups = self._groups_of[parameter].values()
        own = [self.found.arrivals[g.name][host] for g in groups if g.deferred == moved]
        joined = self._joined_bytes.get(parameter)
        if joined is None:
            return own
        return [self._work(host, self._hardware.copy_s_per_byte * joined, own)]

    # Transfers

    def order(self, gates: Sequence[Gate]) -> list[Group]:
        """The groups, each after those it waits for."""
        known = {group.name: group for group in self._groups}
        for gate in gates:
            if gate.group in known and gate.after in known:
                self._after.setdefault(gate.group, []).append(gate.after)
        ordered: dict[str, Group] = {}
        for first in self._groups:
            stack = [first.name]
            while stack:
                name = stack[-1]
                missing = [n for n in self._after.get(name, ()) if n not in ordered]
                if missing:
                    stack += missing
                    continue
                ordered[stack.pop()] = known[name]
        return list(ordered.values())

    def keep(self, group: Group) -> None:
        """A group is laid side by side for the next step."""
        for host in range(self._hosts):
            self._work(host, self._copy_s(group), self._ready(group, host))

    def transfer(self, group: Group) -> None:
        """A group: from its raw gradients to its arrival on every host."""
        size_bytes = self._bytes(group)
        starts = []
        for host in range(self._hosts):
            after = [self.found.arrivals[name][host] for name in self._after.get(group.name, ())]
            if not group.deferred:
                after += self._ready(group, host)
            copy_s = 0.0 if group.deferred else self._copy_s(group)
            after = after or self._asked[host]
            at_once = not self._detailed and not copy_s and len(after) == 1
            starts.append(after[0] if at_once else self._work(host, copy_s, after))
        self.found.begins[group.name] = starts
        self._handle_messages(group, starts)
        if self._hardware.workers == 1 or (size_bytes == 0 and group.pattern != ALL_GATHER):
            self.found.arrivals[group.name] = starts
        elif group.pattern == ALL_GATHER:
            self.found.arrivals[group.name] = self._gathered(group, starts)
        elif group.pattern == FACTORS:
            self.found.arrivals[group.name] = self._by_factors(group, starts)
        elif self.found.folded:
            self.found.arrivals[group.name] = self._in_rounds(group, starts)
        else:
            self.found.arrivals[group.name] = self._in_exchanges(group, starts)

    def _bytes(self, group: Group) -> int:
        return sum(self._sizes[name].bytes for name in group.members)

    def _copy_s(self, group: Group) -> float:
        """What it takes to lay the members of a group side by side."""
        if len(group.members) < 2:
            return 0.0
        return self._hardware.copy_s_per_byte * self._bytes(group)

    def _ready(self, group: Group, host: int) -> list[int]:
        """The tasks that bring the raw gradients of a group."""
        yielded = self._yielded[host]
        return sorted({yielded[name] for name in self._parameters(group) if name in yielded})

    def _work(self, host: int, seconds: float, after: Sequence[int], *, name: str = "") -> int:
        """Copy or add. Where a processor computes, one of its cores does not compute meanwhile."""
        if self._hardware.cores and seconds:
            taken_s = seconds / self._hardware.cores
            self._tasks.add(Kind.COMPUTE, host, taken_s, after, urgency=_URGENT)
        return self._tasks.add(Kind.DELAY, host, seconds, after, name=name)

    def _handle_messages(self, group: Group, starts: Sequence[int]) -> None:
        """Keep processors that also compute busy with a group's messages, which do not wait for it:
        what it takes where nothing is computed is part of the latency."""
        if not self._hardware.processor_s_per_message or group.pattern == ALL_GATHER:
            return
        seconds = self._hardware.processor_s_per_message * self._messages(group)
        for host, start in enumerate(starts):
            self._tasks.add(Kind.COMPUTE, host, seconds, [start], urgency=_URGENT)

    def _messages(self, group: Group) -> float:
        """How many chunks a worker sends, and receives, for a group, on average over the workers;
        of gathered rows that is not known."""
        if group.pattern == ALL_GATHER:
            return 0.0
        if group.pattern == FACTORS:
            return FACTORS_OF_EACH * (self._hardware.workers - 1)
        return sum(each.chunks for rounds in self._rounds(group) for each in rounds)

    def _gathered(self, group: Group, starts: list[int]) -> list[int]:
        """Rows of a sparse gradient; nothing is known of their number, so only latency counts."""
        latency_s = self._hardware.latency_of(ALL_GATHER)
        return [self._tasks.add(Kind.DELAY, host, latency_s, starts) for host in range(self._hosts)]

    def _by_factors(self, group: Group, starts: list[int]) -> list[int]:
        """Factors go from everyone to everyone, who computes and adds up what they stand for."""
        size, product = self._sizes[group.members[0]], self._workload.product(group.members[0])
        others = self._hardware.workers - 1
        workers = range(self._hardware.workers)
        arrived: list[list[int]] = [[] for _ in starts]
        if self.found.folded:
            arrived[0].append(self._factors(group, (0, 0), others * product.bytes, others, starts))
        else:
            for source, target in permutations(workers, 2):
                after = [starts[source]]
                sent = self._factors(group, (source, target), product.bytes, 1, after)
                arrived[target].append(sent)
        again_s = others * product.seconds
        ends = []
        for host, own in enumerate(arrived):
            after = [*own, *self._ready(group, host)]
            computed = self._tasks.add(
                Kind.COMPUTE, host, again_s, after, name=group.name, urgency=_URGENT
            )
            ends.append(self._add_up(group, host, others * size.bytes, [computed]))
        return ends

    def _factors(
        self, group: Group, pair: tuple[int, int], size: int, times: int, after: Sequence[int]
    ) -> int:
        """The transfer of factors, which go as what is exchanged does."""
        source, target = pair
        rate, hosts = self._rate, self._hardware.hosts
        latency_s = self._hardware.latency_of(EXCHANGE)
        if source != target:
            rate = min(hosts[source].send_bytes_per_s, hosts[target].receive_bytes_per_s)
        if link := self._links.get(pair):
            rate, latency_s = min(rate, link.bytes_per_s), link.latency_s
        chunks = FACTORS_OF_EACH * times
        handling_s = self._hardware.handling_of(EXCHANGE) * size
        return self._tasks.add(
            Kind.SEND,
            source,
            size,
            after,
            name=group.name,
            target=target,
            worth=self._worth(EXCHANGE, size, chunks, rate),
            latency_s=latency_s + handling_s,
            urgency=self._urgency(group),
        )

    def _chunks(self, group: Group) -> tuple[tuple[int, ...], ...]:
        """The bytes of the chunks, for each of the group's parts."""
        first = self._sizes[group.members[0]]
        elements = sum(self._sizes[name].elements for name in group.members)
        count = schedule(group.pattern, self._hardware.workers).chunks
        return _part_bytes(
            elements, first.element_bytes, count, group.depth, group.smallest_chunk_bytes
        )

    def _rounds(self, group: Group) -> Iterator[tuple[Round, ...]]:
        """The rounds of each of the group's parts that are not empty."""
        for chunks in self._chunks(group):
            if any(chunks):
                yield rounds_of(group.pattern, self._hardware.workers, chunks)

    def _in_rounds(self, group: Group, starts: list[int]) -> list[int]:
        """The transfers of a group where one host stands for all.

        A part goes in each round behind the part before it.
        """
        hardware, add = self._hardware, self._tasks.add
        latency_s, urgency = hardware.latency_of(group.pattern), self._urgency(group)
        handling_s_per_byte = hardware.handling_of(group.pattern)
        ends: list[int] = []
        before: dict[int, int] = {}
        # A sum that only the next round waits for is as good as a later arrival.
        adds_later = self._detailed or group.depth > 1 or bool(hardware.cores)
        for rounds in self._rounds(group):
            last = starts[0]
            for number, each in enumerate(rounds):
                last = before[number] = add(
                    Kind.SEND,
                    0,
                    each.bytes,
                    [last, before[number]] if number in before else [last],
                    name=group.name,
                    target=0,
                    worth=self._worth(group.pattern, each.bytes, each.chunks, self._rate)
                    * each.busiest,
                    latency_s=latency_s * each.count
                    + handling_s_per_byte * each.bytes * each.busiest
                    + (0.0 if adds_later else hardware.reduce_s_per_byte * each.added),
                    urgency=urgency,
                )
                if each.added and adds_later:
                    last = self._add_up(group, 0, each.added, [last])
            ends.append(last)
        if len(ends) == 1 and not self._detailed:
            return ends
        return [self._tasks.add(Kind.DELAY, 0, 0.0, ends)]

    def _in_exchanges(self, group: Group, starts: list[int]) -> list[int]:
        """The transfers of a group between hosts that differ."""
        workers = range(self._hardware.workers)
        exchanges = exchanges_of(group.pattern, self._hardware.workers, group.shift)
        ends: list[list[int]] = [[] for _ in workers]
        before: dict[tuple[int, int], int] = {}
        for chunks in self._chunks(group):
            values = _Values(starts, len(chunks))
            for number, exchange in enumerate(exchanges):
                sent_bytes = dict(sent_by(exchange, chunks))
                for position, message in enumerate(exchange.messages):
                    size = sum(chunks[chunk] for chunk in message.chunks)
                    if not size:
                        continue
                    after = values.of(message.source, message.chunks)
                    if (number, position) in before:
                        after.append(before[number, position])
                    handling_s = self._handling_s(group, sent_bytes[message.source])
                    filled = sum(chunks[chunk] > 0 for chunk in message.chunks)
                    sent = self._message(group, message, (size, filled), handling_s, after)
                    before[number, position] = sent
                    values.arrive(message, sent)
                for addition in exchange.additions:
                    size = sum(chunks[chunk] for chunk in addition.chunks)
                    if size:
                        added = size * (len(addition.operands) - 1)
                        operands = values.operands(addition)
                        task = self._add_up(group, addition.worker, added, operands)
                        values.added(addition, task)
            for worker in workers:
                ends[worker] += values.of(worker, range(len(chunks)))
        return [self._tasks.add(Kind.DELAY, w, 0.0, sorted(set(ends[w]))) for w in workers]

    def _message(
        self,
        group: Group,
        message: Message,
        size_and_chunks: tuple[int, int],
        handling_s: float,
        after: list[int],
    ) -> int:
        source, target = message.source, message.target
        hosts = self._hardware.hosts
        rate = min(hosts[source].send_bytes_per_s, hosts[target].receive_bytes_per_s)
        size = size_and_chunks[0]
        latency_s = self._hardware.latency_of(group.pattern)
        link = self._links.get((source, target))
        if link is not None:
            rate, latency_s = min(rate, link.bytes_per_s), link.latency_s
        return self._tasks.add(
            Kind.SEND,
            source,
            size,
            after,
            name=group.name,
            target=target,
            worth=self._worth(group.pattern, *size_and_chunks, rate),
            latency_s=latency_s + handling_s,
            urgency=self._urgency(group),
        )

    def _worth(self, pattern: str, size: float, chunks: float, bytes_per_s: float) -> float:
        """How many bytes each byte of some chunks takes the time of."""
        excess = self._hardware.excess.get(pattern, 1.0)
        return excess + self._hardware.message_s * chunks * bytes_per_s / size if size else excess

    def _handling_s(self, group: Group, size_bytes: float) -> float:
        """What a worker's messages of one round take besides; it handles one after the other."""
        return self._hardware.handling_of(group.pattern) * size_bytes

    def _add_up(self, group: Group, host: int, added: float, after: Sequence[int]) -> int:
        seconds = self._hardware.reduce_s_per_byte * added
        return self._work(host, seconds, after, name=group.name)


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
