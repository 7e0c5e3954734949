"""What is predicted of a worker's step with parameter servers: what it computes, and what travels.

A worker has a channel to each server and one from it, which carry one transfer at a time. A
gradient takes as long as its parameter, but for what workers have of the link that they share
(`simulation.lead`): a step is that of the last one. Updates take no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.core.decision import Gate
from caramel.core.plan import Plan
from caramel.core.timeline import Span
from caramel.planning.ordering.executor import execute
from caramel.planning.serving.received import WorkerStep, transfer_of, without
from caramel.simulation.lead import LastSender


@dataclass(frozen=True, slots=True)
class Sent:
    """Something that one worker's channel to or from a server carries.

    Attributes:
        variable: the variable, or that of a gradient.
        server: the server.
        is_gradient: whether it goes to the server.
        begin_s: from the begin of the step.
        end_s: likewise.
    """

    variable: str
    server: int
    is_gradient: bool
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Push:
    """A group of gradients that a worker sends to its server.

    Attributes:
        group: its name.
        server: the server.
        ready_s: when all of it is computed.
        members: its parameters, and how many seconds the gradient of each is on its way.
        ahead: those of them that then come back at once, which takes as long.
    """

    group: str
    server: int
    ready_s: float
    members: tuple[tuple[str, float], ...]
    ahead: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        """How long it is on its way."""
        return sum(seconds for _, seconds in self.members)

    @property
    def back_s(self) -> float:
        """How long what comes back at once is on its way."""
        return sum(seconds for name, seconds in self.members if name in self.ahead)


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker's step until all gradients are ready.

    Attributes:
        computed: its ops.
        received: what it receives for them.
        pushes: the gradients, those first that are ready first.
        sharing: how many workers that do the same share the link of each server.
    """

    computed: tuple[Span, ...]
    received: tuple[Sent, ...]
    pushes: tuple[Push, ...]
    sharing: int = 1


@dataclass(frozen=True, slots=True)
class Course:
    """What one worker does in a step, and what its channels carry.

    Attributes:
        computed: its ops.
        sent: what travels.
    """

    computed: tuple[Span, ...]
    sent: tuple[Sent, ...]

    @classmethod
    def of(cls, begin: Begin, gates: Sequence[Gate] = ()) -> Course:
        """The step that begins so, with gradients that wait for others."""
        free_s: dict[int, float] = {}
        for each in begin.received:
            free_s[each.server] = max(free_s.get(each.server, 0.0), each.end_s)
        carried = sent(begin.pushes, gates, free_s, sharing=begin.sharing)
        return cls(begin.computed, (*begin.received, *carried))

    @property
    def step_s(self) -> float:
        """Until all is computed, sent, updated and pulled ahead."""
        ends_s = [*(span.end_s for span in self.computed), *(each.end_s for each in self.sent)]
        return max(ends_s, default=0.0)


def course_of(
    plan: Plan, worker: WorkerStep, order: Sequence[str], ahead: frozenset[str]
) -> Course:
    """What is predicted of a step.

    Args:
        plan: says which gradients there are, and what they wait for.
        order: in which variables are pulled that are not ahead.
        ahead: those that are.
    """
    return Course.of(begin_of(plan, worker, order, ahead), plan.decision.gates)


def begin_of(plan: Plan, worker: WorkerStep, order: Sequence[str], ahead: frozenset[str]) -> Begin:
    """The begin of a step; see `course_of`."""
    graph = without(worker.graph, ahead)
    own = [name for name in order if name not in ahead]
    timeline = execute(graph, worker.times, [transfer_of(name) for name in own])
    server_of = plan.decision.server_of
    spans = {span.name: span for span in timeline.spans}
    received = []
    for name in own:
        span = spans[transfer_of(name)]
        received.append(Sent(name, server_of[name], False, span.begin_s, span.end_s))
    pushes = []
    for group in plan.decision.groups:
        ops = [plan.gradient(name).values.op for name in group.members]
        pushes.append(
            Push(
                group.name,
                server_of[group.members[0]],
                max(spans[op].end_s if op in spans else 0.0 for op in ops),
                tuple(
                    (n, worker.times.transfers_s.get(transfer_of(n), 0.0)) for n in group.members
                ),
                ahead & frozenset(group.members),
            )
        )
    computed = tuple(span for span in timeline.spans if span.resource == "compute")
    numbers = {gradient.parameter: n for n, gradient in enumerate(plan.job.gradients)}
    pushes.sort(key=lambda push: (push.ready_s, numbers[push.members[0][0]]))
    # With as many servers it is the worker's own link that limits it.
    sharing = plan.workers if plan.workers > len(plan.job.servers) else 1
    return Begin(computed, tuple(received), tuple(pushes), sharing)


class Begins:
    """How a step begins, by what is pulled ahead; each is worked out once.

    Args:
        plan: says which gradients there are.
        worker: a worker's step with its times.
        order: in which all variables are pulled when nothing is ahead.
    """

    def __init__(self, plan: Plan, worker: WorkerStep, order: Sequence[str]) -> None:
        self.plan, self.worker, self.order = plan, worker, order
        self._found: dict[frozenset[str], Begin] = {}

    def __call__(self, ahead: frozenset[str] = frozenset()) -> Begin:
        if ahead not in self._found:
            self._found[ahead] = begin_of(self.plan, self.worker, self.order, ahead)
        return self._found[ahead]


def sent(
    pushes: Sequence[Push],
    gates: Sequence[Gate],
    free_s: Mapping[int, float],
    *,
    sharing: int = 1,
) -> list[Sent]:
    """What channels carry of gradients, and of what comes back at once.

    What a channel is given at a time goes in the order of the gradients.

    Args:
        gates: a gradient is given to its channel when what it waits for has arrived.
        free_s: from when on each server's channel to the worker is free.
        sharing: how many workers send the same over a server's link.
    """
    found: list[Sent] = []
    free_up, free_down = dict[int, float](), dict(free_s)
    last = {
        server: LastSender(sum(p.seconds for p in pushes if p.server == server), sharing)
        for server in {push.server for push in pushes}
    }
    opens: dict[str, list[int]] = {}
    numbers = {push.group: number for number, push in enumerate(pushes)}
    waits = [0] * len(pushes)
    for gate in gates:
        opens.setdefault(gate.after, []).append(numbers[gate.group])
        waits[numbers[gate.group]] += 1
    given = [(push.ready_s, n) for n, push in enumerate(pushes) if not waits[n]]
    heapq.heapify(given)
    while given:
        given_s, number = heapq.heappop(given)
        push = pushes[number]
        end_s = max(given_s, free_up.get(push.server, 0.0))
        for name, seconds in push.members:
            begin_s, end_s = end_s, end_s + last[push.server].times(seconds) * seconds
            found.append(Sent(name, push.server, True, begin_s, end_s))
        free_up[push.server] = end_s
        for name, seconds in push.members:
            if name in push.ahead:
                begin_s = max(end_s, free_down.get(push.server, 0.0))
                free_down[push.server] = begin_s + seconds
                found.append(Sent(name, push.server, False, begin_s, begin_s + seconds))
        for other in opens.get(push.group, ()):
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(given, (max(end_s, pushes[other].ready_s), other))
    return found
