"""Why does a step take as long as it does, and what would help? Answered by simulating variations.

What a resource costs is what the step would be shorter if there were any amount of it. What a
dependency costs is what it would be shorter without it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property

from caramel.analyzers.windows import group_window
from caramel.core.decision import ALL_GATHER, FACTORS, Group
from caramel.core.explanation import Explanation, GroupExplanation, Limit, LimitedBy, WhatIf
from caramel.core.names import group_of
from caramel.core.plan import Plan
from caramel.core.time_facts import TransferWindows, Window
from caramel.core.timeline import Span, Timeline, wire_limit_s
from caramel.core.util.sizes import seconds_told
from caramel.core.workload import Product, Workload
from caramel.planning.candidate import Candidate, Outlook, sent_bytes
from caramel.planning.options import Options
from caramel.planning.search.factoring import by_factors
from caramel.planning.search.search import search
from caramel.planning.what_if.limits import saved_by
from caramel.simulation.simulate import Prediction, simulate

QUICK = Options(budget_tasks=60_000)
"""How a variation finds its own plan."""

_WORTH_SAYING = 0.005  # of the step
_UNPLANNED = "goes in its step as soon as its gradients are complete: nothing is planned for it"
_EXAMPLES = (2, 4, 8, 16)  # times as many, until they hide the wire


def explain(
    plan: Plan,
    outlook: Outlook,
    *,
    job: str = "training job",
    planner: str = "",
    deferrable: Callable[[frozenset[str]], str | None] = lambda parameters: None,
    measured: Sequence[Timeline] = (),
    measured_step_s: float | None = None,
) -> Explanation:
    """Explain the step of a plan.

    Args:
        plan: what is carried out.
        outlook: what is known of the job and the cluster.
        job: what is trained, for people.
        planner: who made the plan.
        deferrable: why the gradients of these parameters cannot be deferred together, or None.
        measured: traced steps of the plan, if there are any.
        measured_step_s: the usual step without a trace.
    """
    own = _Explainer(plan, outlook, deferrable)
    prediction = own.prediction
    limited_by, saved_s = own.limited_by()
    workload = own.workload
    step_s = prediction.step_s
    timeline = prediction.timeline
    computation_s = workload.computation_s * outlook.hardware.hosts[0].slowdown
    wire_s = own.wire_limit_s()
    return Explanation(
        job=job,
        workers=plan.workers,
        parameters=len(plan.job.gradients),
        parameter_bytes=sum(plan.bytes(g) for g in plan.decision.groups if g.pattern != ALL_GATHER),
        planner=planner,
        step_s=step_s,
        plain_step_s=outlook.predict(
            Candidate("plain", outlook.plain.decision.groups, (), False)
        ).step_s,
        computation_s=computation_s,
        wire_limit_s=wire_s,
        rho=wire_s / computation_s if computation_s else 0.0,
        alpha=_alpha(step_s, computation_s, wire_s),
        utilisation=computation_s / step_s if step_s else 0.0,
        limited_by=limited_by,
        why=_why(limited_by, saved_s, step_s, computation_s, wire_s),
        predicted=timeline,
        groups=tuple(own.groups(measured)),
        limits=own.limits(),
        what_if=tuple(own.what_if()),
        measured=_by_group(measured[len(measured) // 2]) if measured else None,
        measured_step_s=measured_step_s,
        values=sum(gradient.elements for gradient in plan.job.gradients),
    )


def _alpha(step_s: float, computation_s: float, wire_s: float) -> float:
    least_s = min(computation_s, wire_s)
    return (wire_s + computation_s - step_s) / least_s if least_s else 0.0


def _why(by: LimitedBy, saved_s: float, step_s: float, computation_s: float, wire_s: float) -> str:
    """What the step is bound by, in a sentence."""
    bound_s, saved = max(computation_s, wire_s), seconds_told(saved_s)
    over = f"the step takes {step_s / bound_s:.2f} times the longer of computation and wire limit"
    match by:
        case "computation":
            return f"an infinitely fast device would save {saved}; {over}"
        case "wire":
            return f"an infinitely fast network would save {saved}; {over}"
        case "latency":
            return f"transfers without latency would save {saved}; {over}"
        case "processor":
            return f"a processor that need not copy what is sent would save {saved}; {over}"
        case _:
            return f"what waits for aggregated gradients costs {saved}; {over}"


class _Explainer:
    def __init__(
        self, plan: Plan, outlook: Outlook, deferrable: Callable[[frozenset[str]], str | None]
    ) -> None:
        chosen = [group.members[0] for group in plan.factored]
        # Variations are planned with the factors of the given plan.
        alike = dataclasses.replace(outlook, plain=by_factors(outlook.plain, chosen))
        self._plan, self._outlook, self._deferrable = plan, alike, deferrable
        self._unfactored = outlook.plain
        self.workload: Workload = outlook.workload(bool(plan.decision.edges))
        self.prediction: Prediction = simulate(plan, self.workload, outlook.hardware)
        self._step_s = self.prediction.step_s
        self._candidate = Candidate.of(plan, "given")

    @cached_property
    def _planned_s(self) -> float:
        """The step with the best plan that is found quickly, with which variations are compared.

        Their plans are found likewise; so what planning itself would bring is not taken for what a
        variation brings.
        """
        return self._replanned(self._outlook)

    def wire_limit_s(self) -> float:
        """The least time in which a worker can send what it must."""
        return wire_limit_s(self._sent_bytes(), self._outlook.hardware.bytes_per_s)

    def _sent_bytes(self) -> float:
        """What a worker must send."""
        return sent_bytes(self._plan, self.workload)

    # What bounds it

    def limited_by(self) -> tuple[LimitedBy, float]:
        """What the step would be shortened most by, and by how much."""
        saved = saved_by(
            self._step_s,
            lambda hardware: simulate(self._plan, self.workload, hardware).step_s,
            self._outlook.hardware,
            computation_s=self.workload.computation_s,
            sent_bytes=self._sent_bytes(),
        )
        found: dict[LimitedBy, float] = {
            **saved,
            "a dependency": self._saved(workload=_independent(self.workload)),
        }
        name = max(found, key=lambda each: found[each])
        return name, found[name]

    def _saved(self, **changes: object) -> float:
        """How much shorter the step is with another hardware or workload, with the same plan."""
        workload = changes.get("workload", self.workload)
        hardware = changes.get("hardware", self._outlook.hardware)
        predicted = simulate(self._plan, workload, hardware)  # type: ignore[arg-type]
        return max(0.0, self._step_s - predicted.step_s)

    def limits(self) -> tuple[Limit, ...]:
        """What makes the step longer than it could be, the most first."""
        found = [*self._waiting_updates(), *self._refused(), *self._idle(), *self._costs()]
        worth = [each for each in found if each.seconds >= _WORTH_SAYING * self._step_s]
        return tuple(sorted(worth, key=lambda each: -each.seconds))

    def _waiting_updates(self) -> Iterator[Limit]:
        """Updates of parameters that wait for the gradients of others."""
        everything = len(self._plan.job.gradients)
        trained = {gradient.parameter for gradient in self._plan.job.gradients}
        waiting = [
            update
            for update in self.workload.updates
            if len(update.gradients) == everything > 1 and not trained.isdisjoint(update.writes)
        ]
        if waiting:
            free = _independent(self.workload)
            outlook = dataclasses.replace(self._outlook, free=free, ordered=free)
            saved_s = self._planned_s - self._replanned(outlook, deferrable=lambda _: None)
            yield Limit(
                f"every update waits for every gradient, as '{waiting[0].name}' does: global-norm "
                "clipping, or a check of all gradients",
                max(0.0, saved_s),
            )

    def _refused(self) -> Iterator[Limit]:
        """Gradients that could not be deferred."""
        refused = {
            name: reason
            for name in (gradient.parameter for gradient in self._plan.job.gradients)
            if (reason := self._deferrable(frozenset([name]))) is not None
        }
        if refused:
            free_s = self._replanned(self._outlook, deferrable=lambda _: None)
            saved_s = self._planned_s - free_s
            name, reason = next(iter(refused.items()))
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            yield Limit(f"'{name}'{more} cannot be deferred: {reason}", max(0.0, saved_s))

    def _idle(self) -> Iterator[Limit]:
        """When the wire or the device stands still."""
        spans = self.prediction.timeline.spans
        sends = [span for span in spans if span.resource == "send" and span.worker == 0]
        computes = [span for span in spans if span.resource == "compute" and span.worker == 0]
        if not sends or not computes:
            return
        first_s = min(span.begin_s for span in sends)
        yield Limit("nothing is on the wire before the first gradient is complete", first_s)
        backward_s = max(
            (s.end_s for s in computes if s.name in {p.name for p in self.workload.chain}),
            default=0.0,
        )
        last_s = max(span.end_s for span in sends)
        yield Limit("transfers go on after the backward pass", max(0.0, last_s - backward_s))
        waited_s = (
            backward_s
            - sum(piece.seconds for piece in self.workload.chain)
            * self._outlook.hardware.hosts[0].slowdown
        )
        yield Limit("the forward pass waits, or shares its processor with transfers", waited_s)

    def _costs(self) -> Iterator[Limit]:
        hardware = self._outlook.hardware
        yield Limit("latency of transfers", self._saved(hardware=hardware.with_latency(0.0)))
        handled = dataclasses.replace(
            hardware, handling_s_per_byte=0.0, copy_s_per_byte=0.0, reduce_s_per_byte=0.0
        )
        yield Limit("copies and additions of gradients", self._saved(hardware=handled))
        if hardware.cores is not None:
            free = dataclasses.replace(hardware, cores=None)
            yield Limit("the processor copies what is sent", self._saved(hardware=free))

    # What would help

    def what_if(self) -> Iterator[WhatIf]:
        """Changes of the machines or the job, each with a plan of its own."""
        hardware, outlook = self._outlook.hardware, self._outlook
        for factor, text in ((2, "twice the bandwidth"), (10, "ten times the bandwidth")):
            faster = hardware.with_rates(factor)
            yield self._if(text, dataclasses.replace(outlook, hardware=faster))
        quick = [dataclasses.replace(h, slowdown=h.slowdown / 2) for h in hardware.hosts]
        faster = dataclasses.replace(hardware, hosts=tuple(quick))
        yield self._if(
            "a device that computes twice as fast", dataclasses.replace(outlook, hardware=faster)
        )
        for factor in _EXAMPLES:
            larger = dataclasses.replace(
                outlook,
                free=_longer(outlook.free, factor),
                ordered=_longer(outlook.ordered, factor),
            )
            text = f"{factor} times as many examples in a batch"
            effect = self._if(text, larger, examples=factor)
            yield effect
            if effect.note:
                break

    def _if(self, change: str, outlook: Outlook, *, examples: int = 1) -> WhatIf:
        step_s = self._replanned(outlook)
        busy_s = outlook.free.computation_s * outlook.hardware.hosts[0].slowdown
        hidden = "the wire is hidden entirely" if step_s <= 1.02 * busy_s else ""
        return WhatIf(change, step_s, examples * self._planned_s / step_s, hidden)

    def _replanned(
        self,
        outlook: Outlook,
        *,
        deferrable: Callable[[frozenset[str]], str | None] | None = None,
    ) -> float:
        """The step with the best plan that is found quickly, or with the given one."""
        kinds = {outlook.plain.decision.groups: outlook}
        if self._unfactored != self._outlook.plain:  # its factors may not be worth it any more
            kinds[self._unfactored.decision.groups] = dataclasses.replace(
                outlook, plain=self._unfactored
            )
        found = (
            search(
                each,
                [self._candidate],
                deferrable=deferrable or self._deferrable,
                options=QUICK,
            )
            for each in kinds.values()
        )
        return min(each.best.step_s for each in found)

    # Groups

    def groups(self, measured: Sequence[Timeline]) -> Iterator[GroupExplanation]:
        """Every group of the plan."""
        waits: dict[str, list[str]] = {}
        for gate in self._plan.decision.gates:
            waits.setdefault(gate.group, []).append(gate.after)
        windows = _windows(self.workload)
        seen = _measured_groups(measured, {group.name for group in self._plan.factored})
        predicted = self.prediction.groups
        order = sorted(
            self._plan.decision.groups, key=lambda g: (not g.deferred, predicted[g.name].begin_s)
        )
        for group in order:
            times = predicted[group.name]
            window = group_window(windows, map(self._plan.parameter, group.members))
            begin_s, end_s = seen.get(group.name, (None, None))
            yield GroupExplanation(
                name=group.name,
                members=group.members,
                size_bytes=self._size_bytes(group),
                pattern=group.pattern,
                depth=group.depth,
                deferred=group.deferred,
                ready_s=window.ready_s,
                needed_s=window.needed_s,
                predicted_begin_s=times.begin_s,
                predicted_end_s=times.end_s,
                measured_begin_s=begin_s,
                measured_end_s=end_s,
                waits_for=tuple(waits.get(group.name, ())),
                reason=group.reason or self._reason(group, waits),
            )

    def _reason(self, group: Group, waits: Container[str]) -> str:
        """Why a group is as it is that no planner has given a reason for."""
        is_planned = group.deferred or group.depth > 1 or group.name in waits
        return "" if is_planned else _UNPLANNED

    def _size_bytes(self, group: Group) -> int:
        """What is aggregated, or is sent in its place; 0 if that is not known."""
        if group.is_summed:
            return self._plan.bytes(group)
        if group.pattern != FACTORS:
            return 0
        return self.workload.product(group.members[0]).bytes


def _windows(workload: Workload) -> TransferWindows:
    """When each parameter can be aggregated."""
    ready, needed = workload.ready_s, workload.needed_s
    end_s = workload.computation_s
    windows = {name: Window(ready_s, needed.get(name, end_s)) for name, ready_s in ready.items()}
    return TransferWindows(windows, end_s, end_s)


def _independent(workload: Workload) -> Workload:
    """The workload if each update waited for the gradient of its own parameter only."""
    updates = []
    for update in workload.updates:
        own = frozenset(update.writes) & update.gradients
        alone = own or frozenset(sorted(update.gradients)[:1])
        updates.append(dataclasses.replace(update, gradients=alone, moves_with=alone))
    return dataclasses.replace(workload, updates=tuple(updates))


def _longer(workload: Workload, factor: float) -> Workload:
    """The workload with longer forward and backward passes."""
    chain = tuple(dataclasses.replace(p, seconds=p.seconds * factor) for p in workload.chain)
    products = {
        name: Product(round(each.bytes * factor), each.seconds * factor)
        for name, each in workload.products.items()
    }
    return dataclasses.replace(workload, chain=chain, products=products)


def _by_group(timeline: Timeline) -> Timeline:
    """A traced timeline whose transfers and additions have the names of their groups."""
    spans = [
        dataclasses.replace(span, name=group_of(span.name) or span.name)
        if span.resource != "compute"
        else span
        for span in timeline.spans
    ]
    begin_s = timeline.begin_s
    return Timeline(
        tuple(
            Span(s.resource, s.name, s.begin_s - begin_s, s.end_s - begin_s, s.worker, s.bytes)
            for s in spans
        )
    )


def _measured_groups(
    timelines: Sequence[Timeline], factored: Container[str]
) -> Mapping[str, tuple[float, float]]:
    """When each group was aggregated, in the median of the traced steps.

    Of a factored group that is when what the factors stand for is computed and added up, too.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    for timeline in timelines:
        own: dict[str, tuple[float, float]] = {}
        spans = _by_group(timeline).spans
        for span in spans:
            if span.resource in ("send", "receive"):
                begin_s, end_s = own.get(span.name, (span.begin_s, span.end_s))
                own[span.name] = (min(begin_s, span.begin_s), max(end_s, span.end_s))
        for span in spans:
            if span.resource == "reduce" and span.name in factored and span.name in own:
                begin_s, end_s = own[span.name]
                own[span.name] = (begin_s, max(end_s, span.end_s))
        for name, pair in own.items():
            times.setdefault(name, []).append(pair)
    return {
        name: (statistics.median(b for b, _ in own), statistics.median(e for _, e in own))
        for name, own in times.items()
    }
