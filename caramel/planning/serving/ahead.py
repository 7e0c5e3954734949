"""Which variables are sent to workers as soon as they were updated, for the next step?

What is pulled when a step begins travels beside its forward pass, in the order in which it is
needed. What is pulled ahead travels beside the backward pass, and beside gradients that still go
the other way. Gradients of the last layers are ready first, so their variables are the first that
can be pulled ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caramel.core.plan import Plan
from caramel.core.timeline import Span
from caramel.planning.ordering.executor import execute
from caramel.planning.serving.received import WorkerStep, transfer_of, without

SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""Of all bytes, that are tried to be pulled ahead."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is pulled ahead, and how long a step is predicted to take then, in seconds."""

    variables: frozenset[str]
    step_s: float


def choose_ahead(plan: Plan, worker: WorkerStep, order: Sequence[str], may: Sequence[str]) -> Ahead:
    """What to pull ahead so that the step is the shortest.

    Args:
        plan: says which gradients there are.
        worker: a worker's step with its times.
        order: in which all variables are pulled when nothing is ahead.
        may: the variables that may be pulled ahead.
    """
    by_readiness = _in_order_of_gradients(plan, worker, order, frozenset(may))
    sizes = {name: plan.job.variable_of[name].spec.bytes or 0 for name in by_readiness}
    return shortest(sizes, lambda ahead: step_seconds(plan, worker, order, ahead))


def shortest(sizes: Mapping[str, int], step_s: Callable[[frozenset[str]], float]) -> Ahead:
    """What to pull ahead of some variables: the shares of them with which a step is the shortest,
    and of these the least.

    Args:
        sizes: bytes of each variable, those first that are to go ahead first.
        step_s: how long a step takes with some of them ahead, in seconds.
    """
    tried: list[Ahead] = []
    for share in SHARES:
        left, chosen = share * sum(sizes.values()), set[str]()
        for name, size in sizes.items():
            if left <= 0:
                break
            chosen.add(name)
            left -= size
        ahead = frozenset(chosen)
        if not any(each.variables == ahead for each in tried):
            tried.append(Ahead(ahead, step_s(ahead)))
    return min(tried, key=lambda each: (each.step_s, len(each.variables)))


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
class Course:
    """What one worker does in a step, and what its channels carry.

    Attributes:
        computed: its ops.
        sent: what travels.
    """

    computed: tuple[Span, ...]
    sent: tuple[Sent, ...]

    @property
    def step_s(self) -> float:
        """Until all is computed, sent, updated and pulled ahead."""
        ends_s = [*(span.end_s for span in self.computed), *(each.end_s for each in self.sent)]
        return max(ends_s, default=0.0)


def step_seconds(
    plan: Plan, worker: WorkerStep, order: Sequence[str], ahead: frozenset[str]
) -> float:
    """How long a step is predicted to take; see `course_of`."""
    return course_of(plan, worker, order, ahead).step_s


def course_of(
    plan: Plan, worker: WorkerStep, order: Sequence[str], ahead: frozenset[str]
) -> Course:
    """What is predicted of a step.

    A worker has a channel to each server and one from it, which carry one transfer at a time.
    Gradients are sent in the order in which they get ready, and take as long as their parameters.
    Updates take no time.

    Args:
        order: in which variables are pulled that are not ahead.
    """
    graph = without(worker.graph, ahead)
    own = [name for name in order if name not in ahead]
    timeline = execute(graph, worker.times, [transfer_of(name) for name in own])
    server_of = plan.decision.server_of
    spans = {span.name: span for span in timeline.spans}
    sent: list[Sent] = []
    free_down: dict[int, float] = {}
    for name in own:
        span, server = spans[transfer_of(name)], server_of[name]
        sent.append(Sent(name, server, False, span.begin_s, span.end_s))
        free_down[server] = max(free_down.get(server, 0.0), span.end_s)
    free_up: dict[int, float] = {}
    ready = sorted(
        (
            spans[op].end_s if (op := gradient.values.op) in spans else 0.0,
            number,
            gradient.parameter,
        )
        for number, gradient in enumerate(plan.job.gradients)
    )
    for ready_s, _, name in ready:
        took_s = worker.times.transfers_s.get(transfer_of(name), 0.0)
        server = server_of[name]
        begin_s = max(ready_s, free_up.get(server, 0.0))
        free_up[server] = begin_s + took_s
        sent.append(Sent(name, server, True, begin_s, free_up[server]))
        if name in ahead:
            begin_s = max(free_up[server], free_down.get(server, 0.0))
            free_down[server] = begin_s + took_s
            sent.append(Sent(name, server, False, begin_s, free_down[server]))
    computed = tuple(span for span in timeline.spans if span.resource == "compute")
    return Course(computed, tuple(sent))


def _in_order_of_gradients(
    plan: Plan, worker: WorkerStep, order: Sequence[str], may: frozenset[str]
) -> list[str]:
    """The variables that may be pulled ahead, those first whose gradients are ready first; before
    them those that no step writes."""
    timeline = execute(worker.graph, worker.times, [transfer_of(name) for name in order])
    ends = {span.name: span.end_s for span in timeline.spans}
    ready = {g.parameter: ends.get(g.values.op, 0.0) for g in plan.job.gradients}
    own = [name for name in order if name in may]
    return sorted(own, key=lambda name: ready.get(name, -1.0))
