"""What traced steps tell of orders: what TicTac and the execution-ordering paper measure.

The formulas are in `planning.ordering.metrics`; here they are filled from timelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from caramel.core.errors import ProfileError
from caramel.core.names import group_of, pull_of, server_at, worker_of
from caramel.core.orders import Orders
from caramel.core.patterns import SERVER
from caramel.core.plan import Plan
from caramel.core.timeline import Span, Timeline
from caramel.planning.ordering.metrics import (
    lower_makespan_s,
    ordering_efficiency,
    out_of_place_share,
    speedup,
    straggler_share,
    unique_orders,
    upper_makespan_s,
)


def observed_orders(plan: Plan, timelines: Sequence[Timeline]) -> Orders:
    """What some traced steps of a plan tell of its order.

    Args:
        plan: that did them, with parameter servers.
        timelines: of steps.

    Raises:
        ProfileError: no variable was seen on its way from a server to a worker.
    """
    workers = range(plan.workers)
    received = [arrivals(timeline, worker) for timeline in timelines for worker in workers]
    if not any(received):
        raise ProfileError("no variable was seen on its way from a server in the traced steps")
    loads = [_loads_s(timeline, worker) for timeline in timelines for worker in workers]
    spans_s = [_span_s(timeline, worker) for timeline in timelines for worker in workers]
    return Orders(
        plan=timelines[0].plan,
        steps=len(timelines),
        unique=unique_orders(received),
        out_of_place=_out_of_place(plan, received),
        upper_s=fmean(map(upper_makespan_s, loads)),
        lower_s=fmean(map(lower_makespan_s, loads)),
        efficiency=fmean(map(ordering_efficiency, loads, spans_s)),
        speedup=fmean(map(speedup, loads)),
        alpha=fmean(timeline.alpha for timeline in timelines),
        rho=fmean(timeline.rho for timeline in timelines),
        stragglers=fmean(_stragglers(timeline, plan.workers) for timeline in timelines),
        gradients_out_of_place=_gradients_out_of_place(plan, timelines),
    )


def arrivals(timeline: Timeline, worker: int) -> tuple[str, ...]:
    """The variables that a worker has received from servers, in the order of their arrival.

    The first step of a plan that sends variables ahead gets these twice: for itself, in no order,
    and for the next step. The last time counts, which is that of all other steps.
    """
    spans = [
        (span.end_s, span.begin_s, pull.variable)
        for span in timeline.spans
        if span.resource == "receive"
        and span.worker == worker
        and (pull := pull_of(span.name)) is not None
    ]
    latest_first = [variable for _, _, variable in sorted(spans, reverse=True)]
    return tuple(dict.fromkeys(latest_first))[::-1]


def sent_gradients(plan: Plan, timeline: Timeline, worker: int) -> tuple[str, ...]:
    """The dense groups that a worker has sent to servers, in the order of their arrival."""
    dense = {g.name for g in plan.decision.groups if g.pattern == SERVER}
    spans = [
        (span.end_s, span.begin_s, group)
        for span in timeline.spans
        if span.resource == "receive"
        and server_at(span.worker) is not None
        and worker_of(span.name) == worker
        and (group := group_of(span.name)) in dense
    ]
    return tuple(dict.fromkeys(group for _, _, group in sorted(spans)))


def _out_of_place(plan: Plan, received: Sequence[Sequence[str]]) -> float | None:
    """The share of variables that came late on their channel."""
    if not any(pull.after for pull in plan.decision.pulls):
        return None
    planned = [pull.variable for pull in plan.decision.pulls]
    return _late_share(planned, plan.decision.server_of, received)


def _gradients_out_of_place(plan: Plan, timelines: Sequence[Timeline]) -> float | None:
    """The share of gradients that came late on their channel."""
    if not plan.decision.gates:
        return None
    server_of = plan.decision.server_of
    homes = {g.name: server_of[plan.parameter(g.members[0])] for g in plan.decision.groups}
    arrived = [sent_gradients(plan, each, w) for each in timelines for w in range(plan.workers)]
    return _late_share([group.name for group in plan.decision.groups], homes, arrived)


def _late_share(
    planned: Sequence[str], server_of: Mapping[str, int], arrived: Sequence[Sequence[str]]
) -> float | None:
    """The share of transfers that came late on their channel, in the mean of some orders."""
    shares: list[float] = []
    for names in arrived:
        late, count = 0.0, 0
        for server in sorted(set(server_of.values())):
            own = [name for name in names if server_of.get(name) == server]
            there = set(own)
            late += out_of_place_share([n for n in planned if n in there], own) * len(own)
            count += len(own)
        if count:
            shares.append(late / count)
    return fmean(shares) if shares else None


def _loads_s(timeline: Timeline, worker: int) -> list[float]:
    """Seconds in which each resource of a worker is busy: its processor, and each channel."""
    own = timeline.of_worker(worker)
    channels: dict[int, list[Span]] = {}
    for span in own.spans:
        pull = pull_of(span.name)
        if span.resource == "receive" and pull is not None:
            channels.setdefault(pull.server, []).append(span)
    busy = [Timeline(tuple(s)).busy_s(worker, "receive") for s in channels.values()]
    return [own.busy_s(worker, "compute"), *busy]


def _span_s(timeline: Timeline, worker: int) -> float:
    """How long a worker's part of a step took: until it has computed all."""
    own = [span for span in timeline.spans if span.worker == worker]
    used = [s for s in own if s.resource == "compute" or pull_of(s.name) is not None]
    if not used:
        return 0.0
    return max(span.end_s for span in used) - min(span.begin_s for span in used)


def _stragglers(timeline: Timeline, workers: int) -> float:
    """The largest wait of a worker until the last one has computed all, as a share of the step."""
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        if span.resource == "compute" and server_at(span.worker) is None:
            ends_s[span.worker] = max(span.end_s, ends_s.get(span.worker, span.end_s))
    if workers < 2 or len(ends_s) < 2 or not timeline.step_s:
        return 0.0
    last_s = max(ends_s.values())
    return straggler_share([last_s - end_s for end_s in ends_s.values()], timeline.step_s)
