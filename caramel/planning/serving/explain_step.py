"""A step with parameter servers as an `Explanation`: what it costs and why, and what would help.

A group of it is a variable that workers receive. Times are those of `course.course_of`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence

from caramel.core.decision import Pull
from caramel.core.explanation import Explanation, GroupExplanation, Limit, LimitedBy, WhatIf
from caramel.core.names import group_of, pull_of, pushed_of, server_at, server_place
from caramel.core.plan import Plan
from caramel.core.timeline import Resource, Span, Timeline
from caramel.core.util.sizes import seconds_told
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.serving.course import Course, Sent, course_of
from caramel.planning.serving.explain import ExplainedOrder
from caramel.planning.serving.received import WorkerStep, transfer_of
from caramel.planning.serving.unordered import random_orders

_WORTH_SAYING = 0.005  # of the step


def explain_step(
    plan: Plan,
    worker: WorkerStep,
    order: ExplainedOrder,
    *,
    job: str = "training job",
    measured: Sequence[Timeline] = (),
    measured_step_s: float | None = None,
) -> Explanation:
    """Explain the step of a plan with parameter servers.

    Args:
        plan: what is carried out.
        worker: a worker's step, with its times.
        order: what is explained of its transfers.
        job: what is trained, for people.
        measured: traced steps of the plan, if there are any.
        measured_step_s: the usual step without a trace.
    """
    own = _Explainer(plan, worker, order)
    step_s, computation_s, wire_s = own.step_s, own.computation_s, own.wire_s
    limited_by, saved_s = own.limited_by()
    over = f"the step takes {step_s / max(computation_s, wire_s):.2f} times the longer of both"
    return Explanation(
        job=job,
        workers=plan.workers,
        parameters=len(plan.job.gradients) or len(plan.decision.pulls),
        parameter_bytes=sum(each.bytes for each in order.transfers),
        planner=order.source,
        step_s=step_s,
        plain_step_s=own.unordered_s(),
        computation_s=computation_s,
        wire_limit_s=wire_s,
        rho=wire_s / computation_s if computation_s else 0.0,
        alpha=_overlap(step_s, computation_s, wire_s),
        utilisation=computation_s / step_s,
        limited_by=limited_by,
        why=f"an infinitely fast {own.fast[limited_by]} would save {seconds_told(saved_s)}; {over}",
        predicted=own.timeline(),
        groups=tuple(own.groups(measured)),
        limits=tuple(own.limits()),
        what_if=tuple(own.what_if()),
        measured=_named(plan, measured[len(measured) // 2]) if measured else None,
        measured_step_s=measured_step_s,
        servers=tuple(server for server, _ in order.server_bytes),
        efficiency=order.efficiency,
        orders=order.measured,
    )


def _overlap(step_s: float, computation_s: float, wire_s: float) -> float:
    least_s = min(computation_s, wire_s)
    return (wire_s + computation_s - step_s) / least_s if least_s else 0.0


class _Explainer:
    fast: Mapping[LimitedBy, str] = {"computation": "device", "wire": "network"}

    def __init__(self, plan: Plan, worker: WorkerStep, order: ExplainedOrder) -> None:
        self._plan, self._worker, self._transfers = plan, worker, order.transfers
        pulls = plan.decision.pulls
        self._order = [pull.variable for pull in pulls]
        self._ahead = frozenset(pull.variable for pull in pulls if pull.ahead)
        self._course: Course = course_of(plan, worker, self._order, self._ahead)
        self.step_s = self._course.step_s
        self.computation_s = sum(span.end_s - span.begin_s for span in self._course.computed)
        busy: dict[tuple[int, bool], float] = {}
        for each in self._course.sent:
            key = each.server, each.is_gradient
            busy[key] = busy.get(key, 0.0) + each.end_s - each.begin_s
        self.wire_s = max(busy.values(), default=0.0)

    def _step_s(self, ops: float, transfers: float) -> float:
        """The step if ops and transfers took so many times as long."""
        times = self._worker.times
        scaled = TimeOracle(
            {name: ops * time_s for name, time_s in times.ops_s.items()},
            {name: transfers * time_s for name, time_s in times.transfers_s.items()},
        )
        worker = dataclasses.replace(self._worker, times=scaled)
        return course_of(self._plan, worker, self._order, self._ahead).step_s

    def unordered_s(self) -> float:
        """The step if everything came in any order, and nothing ahead."""
        plain = self._plan.deciding(gates=())
        return statistics.fmean(
            course_of(plain, self._worker, order, frozenset()).step_s
            for order in random_orders(self._order)
        )

    def limited_by(self) -> tuple[LimitedBy, float]:
        """The resource without whose limits the step would be the shortest, and by how much."""
        saved: dict[LimitedBy, float] = {
            "wire": self.step_s - self._step_s(1.0, 0.0),
            "computation": self.step_s - self._step_s(0.0, 1.0),
        }
        found = max(saved, key=lambda name: saved[name])
        return found, saved[found]

    def limits(self) -> Iterator[Limit]:
        """When the device has nothing to do."""
        computed = self._course.computed
        end_s = max((span.end_s for span in computed), default=0.0)
        found = (
            Limit("the worker waits for parameters", end_s - self.computation_s),
            Limit("gradients and updates are on their way", self.step_s - end_s),
        )
        for limit in sorted(found, key=lambda limit: -limit.seconds):
            if limit.seconds > _WORTH_SAYING * self.step_s:
                yield limit

    def what_if(self) -> Iterator[WhatIf]:
        """Other machines, with the same order."""
        for change, ops, transfers in (
            ("twice the bandwidth", 1.0, 0.5),
            ("a processor twice as fast", 0.5, 1.0),
        ):
            step_s = self._step_s(ops, transfers)
            yield WhatIf(change, step_s, self.step_s / step_s if step_s else 1.0)

    def timeline(self) -> Timeline:
        """What workers do, all alike, and what each server's link carries for all of them."""
        workers = range(self._plan.workers)
        spans = [
            dataclasses.replace(span, worker=worker)
            for span in self._course.computed
            for worker in workers
        ]
        for each in self._course.sent:
            spans += self._spans(each)
        return Timeline(tuple(sorted(spans, key=lambda s: (s.begin_s, s.end_s, s.worker, s.name))))

    def _spans(self, sent: Sent) -> Iterator[Span]:
        count, size = self._plan.workers, self._size(sent.variable)
        name = gradient_name(sent.variable) if sent.is_gradient else sent.variable
        directions: tuple[Resource, Resource] = ("receive", "send")
        at_worker, at_server = reversed(directions) if sent.is_gradient else directions
        when, place = (sent.begin_s, sent.end_s), server_place(sent.server)
        for worker in range(count):
            yield Span(at_worker, name, *when, worker, size)
        yield Span(at_server, name, *when, place, count * size)

    def _size(self, variable: str) -> int:
        return self._plan.job.variable_of[variable].spec.bytes or 0

    def groups(self, measured: Sequence[Timeline]) -> Iterator[GroupExplanation]:
        """What workers receive, in the planned order."""
        times = _measured_pulls(self._plan, measured)
        updated = {each.variable: each.end_s for each in self._course.sent if each.is_gradient}
        arrives = {
            each.variable: (each.begin_s, each.end_s)
            for each in self._course.sent
            if not each.is_gradient
        }
        begins = {span.name: span.begin_s for span in self._course.computed}
        needed: dict[str, float] = {}
        for op in self._worker.graph.ops:
            for name in op.dependencies:
                needed[name] = min(begins[op.name], needed.get(name, self.step_s))
        for each, pull in zip(self._transfers, self._plan.decision.pulls, strict=True):
            # What goes ahead and is not written has come in an earlier step, and stays.
            sent_s = arrives.get(pull.variable)
            predicted_begin_s, predicted_end_s = sent_s or (0.0, 0.0)
            begin_s, end_s = times.get(pull.variable, (None, None))
            yield GroupExplanation(
                name=pull.variable,
                members=(),
                size_bytes=each.bytes,
                pattern="server",
                depth=1,
                deferred=not pull.ahead,
                ready_s=updated.get(pull.variable, 0.0),
                needed_s=needed.get(transfer_of(pull.variable), self.step_s),
                predicted_begin_s=predicted_begin_s,
                predicted_end_s=predicted_end_s,
                measured_begin_s=begin_s,
                measured_end_s=end_s,
                waits_for=pull.after,
                reason=_reason(pull, is_sent=sent_s is not None),
                server=each.server,
                priority=each.priority,
            )


def gradient_name(variable: str) -> str:
    """What the transfer of a gradient is called, for people."""
    return f"gradient of {variable}"


def _reason(pull: Pull, *, is_sent: bool) -> str:
    if not pull.ahead:
        return pull.reason
    first = "stays on the workers, since the step does not write it"
    if is_sent:
        first = "sent when it is updated, beside gradients that go the other way"
    return f"{first}; {pull.reason}" if pull.reason else first


# Measured ---------------------------------------------------------------------------------------


def _named(plan: Plan, timeline: Timeline) -> Timeline:
    """A traced timeline, from 0 on, whose transfers have the names of what they carry."""
    members = {group.name: group.members for group in plan.decision.groups}

    def name_of(span: Span) -> str:
        pull, group = pull_of(span.name), group_of(span.name)
        if pushed_of(span.name) is not None:  # it tells a worker that a gradient has arrived
            return span.name
        if pull is not None:
            return pull.variable
        if span.resource == "compute" or group not in members:
            return span.name
        own = members[group]
        return gradient_name(own[0] if len(own) == 1 else f"{own[0]} and {len(own) - 1} more")

    begin_s = timeline.begin_s
    return Timeline(
        tuple(
            dataclasses.replace(
                span, name=name_of(span), begin_s=span.begin_s - begin_s, end_s=span.end_s - begin_s
            )
            for span in timeline.spans
        )
    )


def _measured_pulls(plan: Plan, timelines: Sequence[Timeline]) -> dict[str, tuple[float, float]]:
    """When each variable was on its way to any worker, in the median of the traced steps."""
    times: dict[str, list[tuple[float, float]]] = {}
    for timeline in timelines:
        own: dict[str, tuple[float, float]] = {}
        for span in timeline.spans:
            pull = pull_of(span.name)
            if span.resource == "receive" and pull is not None and server_at(span.worker) is None:
                begin_s, end_s = own.get(pull.variable, (span.begin_s, span.end_s))
                own[pull.variable] = min(begin_s, span.begin_s), max(end_s, span.end_s)
        for name, (begin_s, end_s) in own.items():
            when = begin_s - timeline.begin_s, end_s - timeline.begin_s
            times.setdefault(name, []).append(when)
    return {
        name: (statistics.median(b for b, _ in own), statistics.median(e for _, e in own))
        for name, own in times.items()
    }
