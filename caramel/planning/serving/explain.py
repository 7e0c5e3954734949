"""What an order of transfers makes of a worker's step, and why each transfer has its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from caramel.core.devices import task_of
from caramel.core.orders import Orders
from caramel.core.patterns import SERVER
from caramel.core.plan import Plan
from caramel.core.row_split import RowSplits
from caramel.core.timeline import Timeline
from caramel.core.util.sizes import bytes_text
from caramel.planning.ordering.executor import execute
from caramel.planning.ordering.makespan import resource_loads_s
from caramel.planning.ordering.metrics import (
    lower_makespan_s,
    ordering_efficiency,
    upper_makespan_s,
)
from caramel.planning.serving.course import Course, begin_of
from caramel.planning.serving.observed_orders import observed_orders
from caramel.planning.serving.received import WorkerStep, transfer_of, without


@dataclass(frozen=True, slots=True)
class ExplainedTransfer:
    """A variable that workers receive.

    Attributes:
        place: its number in the planned order, from 1 on.
        priority: its number among all that its server sends when a step begins; None if it is sent
            ahead.
        variable: its name.
        server: the task of its server.
        bytes: its size.
        after: what has arrived at a worker before it is sent to it.
        ahead: whether it is sent for the next step, as soon as it was updated.
        arrives_s: when it is predicted to have arrived, from the begin of the step; None if nothing
            is known of times, or if it was sent ahead.
        needed_s: when the first op that reads it is predicted to begin; likewise.
        reason: why it is where it is.
    """

    place: int
    priority: int | None
    variable: str
    server: str
    bytes: int
    after: tuple[str, ...]
    ahead: bool
    arrives_s: float | None
    needed_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class ExplainedGradient:
    """A gradient that workers send.

    Attributes:
        place: its number in the order in which gradients are sent, from 1 on.
        variable: its parameter.
        server: the task of its server.
        bytes: its size; 0 if only rows of it travel, since nobody knows how many.
        after: the parameters whose gradients of the same worker have arrived before it is sent.
        ready_s: when a worker is predicted to have computed it, from the begin of the step; None if
            nothing is known of times.
        arrives_s: when it is predicted to have arrived at its server; likewise.
        reason: why it is not where it would be without an order.
    """

    place: int
    variable: str
    server: str
    bytes: int
    after: tuple[str, ...]
    ready_s: float | None
    arrives_s: float | None
    reason: str


@dataclass(frozen=True)
class ExplainedOrder:
    """What an order makes of a worker's step.

    Attributes:
        source: what the order was made from.
        transfers: in the planned order.
        server_bytes: by the task of each server the bytes that a worker receives from it.
        step_s: the predicted end of the worker's computation and of its last transfer, without what
            it sends; None if nothing is known of times. So are the next three.
        upper_s: U, how long that would take with one resource busy at a time.
        lower_s: L, how long if the busiest resource never waited.
        efficiency: E, from 0 (one thing at a time) to 1 (a perfect order).
        notes: what else is to be known.
        measured: what traced steps tell; None if there are none.
        gradients: in the planned order, or if there is none, as they are ready.
    """

    source: str
    transfers: tuple[ExplainedTransfer, ...]
    server_bytes: tuple[tuple[str, int], ...]
    step_s: float | None
    upper_s: float | None
    lower_s: float | None
    efficiency: float | None
    notes: tuple[str, ...]
    measured: Orders | None = None
    gradients: tuple[ExplainedGradient, ...] = ()


def explain_order(
    plan: Plan,
    source: str,
    worker: WorkerStep | None,
    measured: Sequence[Timeline] = (),
    splits: RowSplits | None = None,
    together: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> ExplainedOrder:
    """Explain the order of a plan.

    Args:
        plan: with parameter servers.
        source: what its order was made from.
        worker: a worker's step, with times; None if nothing is known of these.
        measured: traced steps of the plan, if there are any.
        splits: which parameters are split by rows, and why others are not.
        together: the op that takes several parameters, by these.

    Raises:
        ProfileError: no parameter was seen on its way in these.
    """
    timeline = None
    step_s = upper_s = lower_s = efficiency = None
    if worker is not None:
        ahead = frozenset(pull.variable for pull in plan.decision.pulls if pull.ahead)
        own = [p.variable for p in plan.decision.pulls if not p.ahead]
        graph = without(worker.graph, ahead)
        timeline = execute(graph, worker.times, [transfer_of(name) for name in own])
        loads = list(resource_loads_s(graph, worker.times).values())
        step_s = timeline.step_s
        upper_s, lower_s = upper_makespan_s(loads), lower_makespan_s(loads)
        efficiency = ordering_efficiency(loads, step_s)
    transfers = tuple(_transfers(plan, worker, timeline))
    sizes: dict[str, int] = {}
    for each in transfers:
        sizes[each.server] = sizes.get(each.server, 0) + each.bytes
    return ExplainedOrder(
        source,
        transfers,
        tuple(sorted(sizes.items())),
        step_s,
        upper_s,
        lower_s,
        efficiency,
        (*_notes(plan, splits or RowSplits()), *_joined(plan, together)),
        observed_orders(plan, measured) if measured else None,
        tuple(_gradients(plan, worker)),
    )


def _transfers(
    plan: Plan, worker: WorkerStep | None, timeline: Timeline | None
) -> Iterator[ExplainedTransfer]:
    tasks = [task_of(device) or device for device in plan.job.servers]
    ends, needed = _times(worker, timeline)
    sent = Counter[int]()
    for place, pull in enumerate(plan.decision.pulls, start=1):
        name, server = transfer_of(pull.variable), plan.decision.server_of[pull.variable]
        sent[server] += not pull.ahead
        yield ExplainedTransfer(
            place,
            None if pull.ahead else sent[server],
            pull.variable,
            tasks[server],
            plan.job.variable_of[pull.variable].spec.bytes or 0,
            pull.after,
            pull.ahead,
            ends.get(name),
            needed.get(name),
            pull.reason,
        )


def _gradients(plan: Plan, worker: WorkerStep | None) -> Iterator[ExplainedGradient]:
    tasks = [task_of(device) or device for device in plan.job.servers]
    pulls, groups = plan.decision.pulls, plan.decision.groups
    ready_s: dict[str, float] = {}
    arrives_s: dict[str, float] = {}
    if worker is not None:
        ahead = frozenset(pull.variable for pull in pulls if pull.ahead)
        begin = begin_of(plan, worker, [pull.variable for pull in pulls], ahead)
        ready_s = {name: push.ready_s for push in begin.pushes for name, _ in push.members}
        course = Course.of(begin, plan.decision.gates)
        arrives_s = {each.variable: each.end_s for each in course.sent if each.is_gradient}
    named = [(group, name) for group in groups for name in group.members]
    if not plan.decision.gates:
        named.sort(key=lambda each: ready_s.get(each[1], 0.0))
    after: dict[str, tuple[str, ...]] = {}
    for gate in plan.decision.gates:
        after[gate.group] = (*after.get(gate.group, ()), *plan.group(gate.after).members)
    for place, (group, name) in enumerate(named, start=1):
        is_whole = group.pattern == SERVER
        yield ExplainedGradient(
            place,
            name,
            tasks[plan.decision.server_of[name]],
            plan.job.variable_of[name].spec.bytes or 0 if is_whole else 0,
            after.get(group.name, ()),
            ready_s.get(name),
            arrives_s.get(name),
            group.reason,
        )


def _times(
    worker: WorkerStep | None, timeline: Timeline | None
) -> tuple[dict[str, float], dict[str, float]]:
    """When each transfer ends, and when the first op begins that waits for it."""
    if worker is None or timeline is None:
        return {}, {}
    ends = {span.name: span.end_s for span in timeline.spans if span.resource == "receive"}
    begins = {span.name: span.begin_s for span in timeline.spans if span.resource == "compute"}
    needed: dict[str, float] = {}
    for op in worker.graph.ops:
        for name in op.dependencies:
            if name in ends:
                needed[name] = min(begins[op.name], needed.get(name, begins[op.name]))
    return ends, needed


def _joined(plan: Plan, together: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    """What is on one server for the sake of an op."""
    tasks = [task_of(d) or d for d in plan.job.servers]
    for names, op in together.items() if len(tasks) > 1 else ():
        yield (
            f"'{op}' takes {len(names)} parameters ('{names[0]}', ...), which are all on "
            f"{tasks[plan.decision.server_of[names[0]]]} for that: an op runs on one device, and "
            "what it takes has to be there, also when it is evaluated"
        )


def _notes(plan: Plan, splits: RowSplits) -> Iterator[str]:
    """What is split, what cannot be, and of what only rows travel."""
    server_of, tasks = plan.decision.server_of, [task_of(d) or d for d in plan.job.servers]
    for split in splits.splits:
        parts = split.parts(split.parameter)
        homes = [
            f"{rows} on {tasks[server_of[part.name]]}"
            for part, rows in zip(parts, split.rows, strict=True)
        ]
        yield f"'{split.parameter.name}' is split by rows: {', '.join(homes)}"
    sizes = {v.name: v.spec.bytes or 0 for v in plan.job.variables}
    share = sum(sizes[v.name] for v in plan.job.variables if v.trainable) / len(plan.job.servers)
    for name, reason in splits.reasons.items():
        yield (
            f"'{name}' stays whole, although it has {bytes_text(sizes[name])} and a server's "
            f"share is {bytes_text(share)}: {reason}"
        )
    for remote in dict.fromkeys(each.variable for each in plan.consequences.serving.remote):
        yield f"of '{remote}' workers receive only the rows that their batches need"
