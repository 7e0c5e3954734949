"""Small training steps to simulate, and a second simulator to compare with.

The second one knows no tasks, folds no workers, keeps no heaps and puts nothing off: at every event
it goes through everything that there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import strategies as st

from caramel.core.decision import Gate, Group
from caramel.core.patterns import Gather, Reduce, Schedule, Send, chunk_sizes, schedule
from caramel.core.time_facts import Link
from caramel.core.workload import Piece, Size, Update, Workload
from caramel.planning.gates import gates_of
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.simulate import Prediction, simulate_groups

PATTERNS = ("shuffle", "ring", "halving_doubling", "exchange")
FLOAT = 4  # bytes
ELEMENTS = 1536  # in chunks that are all alike, for up to 4 parts and 2, 3, 4, 6 or 8 workers
FREE = {
    "reduce_s_per_byte": 0.0,
    "handling_s_per_byte": 0.0,
    "copy_s_per_byte": 0.0,
}
"""Nothing but computation and wires takes time."""


def hosts(number, bytes_per_s=1000.0, **costs):
    """Workers that are alike, with links that carry so much in each direction."""
    free = {"latency_s": dict.fromkeys(PATTERNS, 0.0)} | FREE
    return Hardware((Host(bytes_per_s, bytes_per_s),) * number, **free | costs)


def unfolded(hardware):
    """The same hardware, each worker simulated: every link is as fast as its hosts."""
    workers = range(hardware.workers)
    links = tuple(
        Link(s, t, hardware.hosts[s].send_bytes_per_s, max(hardware.latency_s.values()))
        for s in workers
        for t in workers
        if s != t
    )
    return replace(hardware, links=links)


@dataclass(frozen=True)
class Case:
    """A step: what is simulated."""

    groups: tuple[Group, ...]
    gates: tuple[Gate, ...]
    sizes: Mapping[str, Size]
    workload: Workload
    hardware: Hardware
    pending: bool = True

    def predict(self, hardware: Hardware | None = None, *, detailed: bool = True) -> Prediction:
        return simulate_groups(
            self.groups,
            self.gates,
            Conditions(self.sizes, self.workload, hardware or self.hardware),
            pending=self.pending,
            detailed=detailed,
        )

    def bytes(self, group):
        return sum(self.sizes[name].bytes for name in group.members)

    @property
    def travelling(self):
        """The groups that are sent in this step."""
        return [group for group in self.groups if self.pending or not group.deferred]


# Random steps -----------------------------------------------------------------------------------

EIGHTHS = st.integers(0, 24).map(lambda number: number / 8)


@st.composite
def cases(draw, *, workers=(2, 3, 4), patterns=PATTERNS, depths=(1, 2, 4), updates=EIGHTHS):
    """A chain of layers, their gradients in groups, some deferred, some gated."""
    count = draw(st.integers(1, 4))
    names = [f"p{number}" for number in range(count)]
    forward = [Piece(f"f_{n}", draw(EIGHTHS), needs=frozenset([n])) for n in names]
    backward = [Piece(f"b_{n}", draw(EIGHTHS), yields=(n,)) for n in reversed(names)]
    applied = [
        Update(f"u_{n}", draw(updates), frozenset([n]), frozenset([n]), frozenset([n]))
        for n in names
    ]
    if draw(st.booleans()):
        applied.append(Update("counter", draw(updates), frozenset(names)))
    sizes = {n: Size(draw(st.integers(1, 4)) * ELEMENTS, FLOAT) for n in names}
    groups = tuple(draw(_groups(names[::-1], draw(st.sampled_from(patterns)), depths)))
    return Case(
        groups=groups,
        gates=draw(_gates(groups, sizes)),
        sizes=sizes,
        workload=Workload((*forward, *backward), tuple(applied)),
        hardware=hosts(draw(st.sampled_from(workers)), draw(st.sampled_from([1000.0, 7000.0]))),
        pending=draw(st.booleans()),
    )


@st.composite
def _groups(draw, names, pattern, depths):
    cuts = sorted({0, len(names), *draw(st.lists(st.integers(0, len(names)), max_size=3))})
    parts = [names[a:b] for a, b in pairwise(cuts)]
    for number, members in enumerate(parts):
        yield Group(
            f"group_{number}",
            tuple(members),
            pattern,
            depth=draw(st.sampled_from(depths)),
            deferred=draw(st.booleans()),
        )


@st.composite
def _gates(draw, groups, sizes):
    if draw(st.booleans()):
        return ()
    return gated(groups, sizes, in_flight_bytes=draw(st.sampled_from([0, 10_000])))


def gated(groups, sizes, *, in_flight_bytes=0):
    """Deferred groups first, the last one of them first; the others behind them."""
    deferred = [group for group in reversed(groups) if group.deferred]
    order = [*deferred, *(group for group in groups if not group.deferred)]
    sized = [(group.name, sum(sizes[n].bytes for n in group.members)) for group in order]
    return gates_of(sized, in_flight_bytes=in_flight_bytes)


@st.composite
def costly(draw, of=None):
    """Cases with all that can take time besides."""
    case = draw(cases() if of is None else of)
    extra = replace(
        case.hardware,
        latency_s=dict.fromkeys(PATTERNS, draw(EIGHTHS)),
        reduce_s_per_byte=draw(st.sampled_from([0.0, 1e-4])),
        handling_s_per_byte=draw(st.sampled_from([0.0, 2e-4])),
        copy_s_per_byte=draw(st.sampled_from([0.0, 1e-4])),
        excess=dict.fromkeys(PATTERNS, draw(st.sampled_from([1.0, 1.5]))),
        cores=draw(st.sampled_from([None, 1, 2])),
        processor_s_per_byte=5e-4,
        processor_s_per_message=draw(st.sampled_from([0.0, 0.125])),
        message_s=draw(st.sampled_from([0.0, 0.25])),
        op_s=draw(st.sampled_from([0.0, 0.25])),
        step_s=draw(st.sampled_from([0.0, 0.5])),
        gaps_s_per_byte={"ring": draw(st.sampled_from([0.0, 3e-4]))},
        request_s=draw(st.sampled_from([0.0, 0.125])),
    )
    return replace(case, hardware=extra)


@st.composite
def uneven(draw, of=None):
    """Cases with hosts that differ, and perhaps with links that do."""
    case = draw(costly() if of is None else of)
    rates = st.sampled_from([500.0, 1000.0, 3000.0])
    slowdowns = st.sampled_from([1.0, 1.0, 1.5])
    own = [Host(draw(rates), draw(rates), draw(slowdowns)) for _ in case.hardware.hosts]
    links = ()
    if draw(st.booleans()):
        latency_s = max(case.hardware.latency_s.values())
        workers = range(case.hardware.workers)
        pairs = [(s, t) for s in workers for t in workers if s != t]
        links = tuple(Link(s, t, draw(rates), latency_s) for s, t in pairs)
    return replace(case, hardware=replace(case.hardware, hosts=tuple(own), links=links))


# The second simulator ---------------------------------------------------------------------------


@dataclass(eq=False)
class Thing:
    """Something that happens when all events of `needs` have: it makes `event` happen.

    What is left of it are seconds of nothing, then seconds on a host; or bytes on a link, then
    seconds of nothing.
    """

    event: tuple
    needs: set
    wait_s: float = 0.0
    left: float = 0.0
    host: int = 0
    target: int | None = None
    urgency: tuple = ()
    share: float = 0.0
    ready_s: float | None = None
    needed: int = 0


@dataclass
class Reference:
    """The step time of a case."""

    case: Case
    things: list[Thing] = field(default_factory=list)

    def step_s(self) -> float:
        for host in range(self.case.hardware.workers):
            self._ask(host)
            self._compute(host)
        for group in self.case.travelling:
            self._transfer(group)
        for group in self.case.groups:
            if group.deferred:
                self._keep(group)
        clock_s, happened = 0.0, set()
        waiting = list(self.things)
        while waiting:
            ready = [thing for thing in waiting if thing.needs <= happened]
            assert ready, f"at {clock_s}: {waiting}"
            for thing in ready:
                thing.ready_s = clock_s if thing.ready_s is None else thing.ready_s
            self._share(ready)
            step_s = min(self._next_s(thing) for thing in ready)
            if step_s > 0:
                clock_s += step_s
                for thing in ready:
                    self._advance(thing, step_s)
            done = [thing for thing in ready if thing.wait_s <= 0 and thing.left <= 0]
            happened.update(thing.event for thing in done)
            waiting = [thing for thing in waiting if thing not in done]
        return clock_s + self.case.hardware.step_s

    # What there is

    def _ask(self, host: int) -> None:
        """For everything that the host will receive, before anything else."""
        received = sum(
            step.target == host
            for group in self.case.travelling
            for step in self._steps(group).steps * group.depth
            if not isinstance(step, Reduce)
        )
        self._add(("asked", host), set(), wait_s=self.case.hardware.request_s * received)

    def _compute(self, host: int) -> None:
        case, chain = self.case, self.case.workload.chain
        hardware = case.hardware
        deferred = {n for g in case.groups if g.deferred for n in g.members}
        moved = [u for u in case.workload.updates if u.moves_with & deferred]
        for number, piece in enumerate(chain):
            needs = {("piece", number - 1, host)} if number else {("asked", host)}
            if case.pending:
                needs |= {("update", u.name, host) for u in moved if u.writes & piece.needs}
            seconds = piece.seconds + hardware.op_s * piece.ops
            self._add(("piece", number, host), needs, left=seconds, host=host, urgency=(1, number))
        for number, update in enumerate(case.workload.updates):
            if update in moved and not case.pending:
                continue
            own = [
                g.name
                for g in case.groups
                if update.gradients & set(g.members) and g.deferred == (update in moved)
            ]
            self._add(
                ("update", update.name, host),
                {("arrived", name, host) for name in own},
                left=update.seconds + (hardware.op_s if update.seconds else 0.0),
                host=host,
                urgency=(0, number),
            )

    def _transfer(self, group: Group) -> None:
        case, hardware = self.case, self.case.hardware
        sent = {g.name for g in case.travelling}
        size = case.bytes(group)
        for host in range(hardware.workers):
            needs = {
                ("arrived", g.after, host)
                for g in case.gates
                if g.group == group.name and g.after in sent
            }
            copied = len(group.members) > 1 and not group.deferred
            needs.add(("asked", host))
            if not group.deferred:
                needs |= self._yields(group, host)
            seconds = hardware.copy_s_per_byte * size * copied
            self._work(("begun", group.name, host), needs, seconds, host)
            messages = [s for s in self._steps(group).steps if not isinstance(s, Reduce)]
            own = sum(step.source == host for step in messages) * group.depth
            self._add(
                ("handled", group.name, host),
                {("begun", group.name, host)},
                left=hardware.processor_s_per_message * own,
                host=host,
                urgency=(-1, 0),
            )
        ends = [self._part(group, part) for part in range(group.depth)]
        for host in range(hardware.workers):
            self._add(("arrived", group.name, host), {event for end in ends for event in end[host]})

    def _keep(self, group: Group) -> None:
        """What is deferred is laid side by side before its step ends."""
        copied = self.case.bytes(group) if len(group.members) > 1 else 0
        for host in range(self.case.hardware.workers):
            seconds = self.case.hardware.copy_s_per_byte * copied
            self._work(("kept", group.name, host), self._yields(group, host), seconds, host)

    def _yields(self, group: Group, host: int) -> set:
        chain = enumerate(self.case.workload.chain)
        own = set(group.members)
        return {("piece", number, host) for number, piece in chain if own & set(piece.yields)}

    def _work(self, event: tuple, needs: set, seconds: float, host: int) -> None:
        """Something done beside the computation, by a core that computes otherwise."""
        self._add(event, needs, wait_s=seconds)
        cores = self.case.hardware.cores
        if cores:
            busy = seconds / cores
            self._add((*event, "core"), needs, left=busy, host=host, urgency=(-1, 0))

    def _part(self, group: Group, part: int) -> list[set]:
        """What each host waits for: its value of each chunk."""
        hardware, workers = self.case.hardware, range(self.case.hardware.workers)
        pattern = self._steps(group)
        elements = self.case.bytes(group) // FLOAT
        sizes = chunk_sizes(elements, pattern.chunks * group.depth, FLOAT)
        sizes = [n * FLOAT for n in sizes[part * pattern.chunks :][: pattern.chunks]]
        has = {(w, c): ("begun", group.name, w) for w in workers for c in range(len(sizes))}
        apart = {}
        for number, step in enumerate(pattern.steps):
            event, size = (group.name, part, number), sizes[step.chunk]
            if isinstance(step, Reduce):
                own = (step.worker, step.chunk)
                needs = {has[own] if w == step.worker else apart[(*own, w)] for w in step.order}
                seconds = hardware.reduce_s_per_byte * size * (len(step.order) - 1)
                self._work(event, needs, seconds, step.worker)
                has[own] = event
                continue
            needs = {has[step.source, step.chunk]}
            together = self._together(pattern.steps, step)
            self._add(
                event,
                needs,
                wait_s=hardware.latency_s[group.pattern]
                + (hardware.handling_s_per_byte + hardware.gaps_s_per_byte.get(group.pattern, 0.0))
                * sum(sizes[s.chunk] for s in together),
                left=size * hardware.excess.get(group.pattern, 1.0)
                + hardware.message_s * self._rate(step.source, step.target),
                host=step.source,
                target=step.target,
                needed=self._needed(group),
            )
            if isinstance(step, Gather):
                has[step.target, step.chunk] = event
            else:
                apart[(step.target, step.chunk, step.source)] = event
        return [{has[w, c] for c in range(len(sizes))} for w in workers]

    def _steps(self, group: Group) -> Schedule:
        return schedule(group.pattern, self.case.hardware.workers, shift=group.shift)

    def _rate(self, source: int, target: int) -> float:
        hardware = self.case.hardware
        rates = [k.bytes_per_s for k in hardware.links if (k.source, k.target) == (source, target)]
        own = hardware.hosts[source].send_bytes_per_s
        return min(own, hardware.hosts[target].receive_bytes_per_s, *rates)

    def _needed(self, group: Group) -> int:
        """The first piece that waits for a deferred group; a large number if none does."""
        chain, members = self.case.workload.chain, set(group.members)
        written = {
            v for u in self.case.workload.updates if u.moves_with & members for v in u.writes
        }
        waiting = [number for number, piece in enumerate(chain) if piece.needs & written]
        return waiting[0] if waiting and group.deferred else 1000

    def _together(self, steps: Iterable[Send | Reduce | Gather], step: Send | Gather) -> list:
        """What the source hands over at the same time (`shuffle` and `ring` only)."""
        same = [s for s in steps if type(s) is type(step) and s.source == step.source]
        return [s for s in same if s.chunk == step.chunk or self._is_shuffle(same)]

    def _is_shuffle(self, same: list) -> bool:
        return len({s.target for s in same}) == len(same)

    def _add(self, event: tuple, needs: set, **amounts: object) -> None:
        self.things.append(Thing(event, needs, **amounts))

    # Time

    def _share(self, ready: list[Thing]) -> None:
        hardware = self.case.hardware
        flows = [t for t in ready if t.target is not None and t.left > 0]
        links = {(flow.host, flow.target) for flow in flows}
        for flow in flows:
            own = hardware.hosts[flow.host].send_bytes_per_s
            others = hardware.hosts[flow.target].receive_bytes_per_s
            rate = min(
                own / sum(source == flow.host for source, _ in links),
                others / sum(target == flow.target for _, target in links),
                self._rate(flow.host, flow.target),
            )
            queue = [f for f in flows if (f.host, f.target) == (flow.host, flow.target)]
            first_s = min(f.ready_s for f in queue) + 1e-9
            together = [f for f in queue if f.ready_s <= first_s]
            latest = max(f.needed for f in together)
            first = [f for f in together if f.needed == latest][-1]
            flow.share = rate if flow is first else 0.0
        for host, each in enumerate(hardware.hosts):
            own = [t for t in ready if t.urgency and t.host == host and t.left > 0]
            sent = sum(f.share for f in flows if f.host == host)
            received = sum(f.share for f in flows if f.target == host)
            taken = 0.0
            if hardware.cores:
                taken = hardware.processor_s_per_byte * max(sent, received) / hardware.cores
            for thing in own:
                first = thing is min(own, key=lambda t: t.urgency)
                thing.share = max(0.05, 1 - taken) / each.slowdown if first else 0.0

    def _next_s(self, thing: Thing) -> float:
        if self._waits(thing):
            return thing.wait_s
        if thing.left > 0:
            return thing.left / thing.share if thing.share else math.inf
        return 0.0

    def _advance(self, thing: Thing, step_s: float) -> None:
        if self._waits(thing):
            thing.wait_s = 0.0 if thing.wait_s - step_s < 1e-9 else thing.wait_s - step_s
        else:
            thing.left -= thing.share * step_s
            if thing.left < (1e-9 if thing.target is None else 1e-5):
                thing.left = 0.0

    def _waits(self, thing: Thing) -> bool:
        is_on_the_way = thing.target is not None and thing.left > 0
        return thing.wait_s > 0 and not is_on_the_way
