"""Why is a step placed as it is, what bounds it, and what does each device need for it?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from caramel.core.errors import PlanError
from caramel.core.explanation import Explanation, Limit, LimitedBy, WhatIf
from caramel.core.memory import Held, MemoryCurve
from caramel.core.names import sent_of, without_prefix
from caramel.core.placed_step import (
    Alone,
    Crossing,
    DeviceUse,
    PlacedDevice,
    PlacedStep,
    Stretch,
)
from caramel.core.timeline import Span, Timeline
from caramel.core.util.sizes import bytes_text
from caramel.planning.placement.bounds import path_bound_s, work_bound_s
from caramel.planning.placement.chain import critical_chain
from caramel.planning.placement.memory import peaks, spans
from caramel.planning.placement.planner import Layout
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.simulate import Schedule, simulate

_CROSSINGS = 20  # that are listed
_WORTH_SAYING = 0.005  # of the step


def explain_placed(
    layout: Layout,
    *,
    job: str = "training job",
    planner: str = "",
    measured: Sequence[Timeline] = (),
    measured_step_s: float | None = None,
) -> Explanation:
    """Explain a step that is spread over several devices.

    Args:
        layout: where everything is, and how a step is predicted to go.
        job: what is trained, for people.
        planner: who placed it.
        measured: traced steps of the plan, if there are any.
        measured_step_s: the usual step without a trace.

    Raises:
        PlanError: nothing is known of times or sizes.
    """
    if not layout.placed.makespan_s > 0:
        raise PlanError(
            "nothing can be explained, because nothing is known of times or of sizes: give "
            "PlacedModel(profile=...) a file that 'caramel profile' wrote"
        )
    return _Explainer(layout).explanation(job, planner, measured, measured_step_s)


class _Explainer:
    def __init__(self, layout: Layout) -> None:
        self._layout, self._problem = layout, layout.graph.problem
        self._placement, self._schedule = layout.placed.placement, layout.placed.schedule
        self._step_s = layout.placed.makespan_s
        self._timeline = predicted_timeline(layout)

    def explanation(
        self,
        job: str,
        planner: str,
        measured: Sequence[Timeline],
        measured_step_s: float | None,
    ) -> Explanation:
        timeline, alone = self._timeline, alone_on_one(self._problem)
        chain, link_s = stretches(self._problem, self._placement, self._schedule), self._link_s()
        shares = _shares(chain)
        residents = [vertex.resident_bytes for vertex in self._problem.vertices]
        return Explanation(
            job=job,
            workers=len(self._problem.devices),
            parameters=sum(size > 0 for size in residents),
            parameter_bytes=round(math.fsum(residents)),
            planner=planner,
            step_s=self._step_s,
            plain_step_s=alone.step_s,
            computation_s=timeline.computation_s,
            wire_limit_s=link_s,
            rho=timeline.rho,
            alpha=timeline.alpha,
            utilisation=timeline.computation_s / self._step_s,
            limited_by=max(shares, key=lambda name: shares[name]),
            why=(
                f"of the chain that bounds the step, ops that wait for each other take "
                f"{_ms(shares['a dependency'])}, ops for whose device others wait "
                f"{_ms(shares['computation'])}, and tensors on their way {_ms(shares['wire'])}"
            ),
            predicted=timeline,
            limits=tuple(_limits(chain, self._step_s)),
            what_if=tuple(self._what_if(alone)),
            measured=_named(measured[len(measured) // 2]) if measured else None,
            measured_step_s=measured_step_s,
            placed=PlacedStep(
                devices=tuple(self._devices(measured)),
                chain=tuple(chain),
                crossings=tuple(self._crossings()[:_CROSSINGS]),
                crossing_count=len(self._crossings()),
                alone=alone,
                path_bound_s=path_bound_s(self._problem),
                work_bound_s=work_bound_s(self._problem),
                knows_times=self._layout.knows_times,
                unknown_sizes=self._layout.unknown_sizes,
            ),
        )

    def _devices(self, measured: Sequence[Timeline]) -> Iterator[PlacedDevice]:
        for number, device in enumerate(self._problem.devices):
            own = [vertex for vertex, on in enumerate(self._placement) if on == number]
            resident = math.fsum(self._problem.vertices[vertex].resident_bytes for vertex in own)
            limit = device.memory_bytes
            yield PlacedDevice(
                name=device.name,
                ops=sum(len(self._layout.graph.ops[vertex]) for vertex in own),
                variable_bytes=round(resident),
                limit_bytes=None if math.isinf(limit) else round(limit),
                predicted=_use([self._timeline], number),
                measured=_use(measured, number) if measured else None,
            )

    def _crossings(self) -> list[Crossing]:
        """What has bytes, the largest first; ties in the order of the graph."""
        begins, found = self._schedule.begins, []
        for number, target, begin_s, end_s in sorted(self._schedule.transfers):
            tensor = self._problem.tensors[number]
            if tensor.bytes:
                readers = (v for v in tensor.readers if self._placement[v] == target)
                found.append(
                    Crossing(
                        str(self._layout.graph.tensors[number]),
                        self._placement[tensor.source],
                        target,
                        round(tensor.bytes),
                        begin_s,
                        end_s,
                        min(begins[reader] for reader in readers),
                    )
                )
        return sorted(found, key=lambda each: -each.bytes)

    def _link_s(self) -> float:
        """How long the busiest link from one device to another carries something."""
        busy: dict[tuple[int, int], float] = {}
        for number, target, begin_s, end_s in self._schedule.transfers:
            link = self._placement[self._problem.tensors[number].source], target
            busy[link] = busy.get(link, 0.0) + end_s - begin_s
        return max(busy.values(), default=0.0)

    def _what_if(self, alone: Alone) -> Iterator[WhatIf]:
        """Other machines, with the same placement and order; and one device with enough memory."""
        problem = self._problem
        faster = tuple(replace(device, speed=2 * device.speed) for device in problem.devices)
        rates = tuple(tuple(2 * rate for rate in row) for row in problem.rates)
        for change, other in (
            ("twice the bandwidth", replace(problem, rates=rates)),
            ("devices twice as fast", replace(problem, devices=faster)),
        ):
            order = self._schedule.order
            schedule = simulate(other, self._placement, links="one", order=order)
            yield WhatIf(change, schedule.makespan_s, self._step_s / schedule.makespan_s)
        if len(problem.devices) > 1:
            note = "" if alone.fits else "which has less memory"
            all_there = f"all on device {alone.device} ({bytes_text(alone.bytes)})"
            yield WhatIf(all_there, alone.step_s, self._step_s / alone.step_s, note)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def predicted_timeline(layout: Layout) -> Timeline:
    """What each device does in the simulated step, and what its tensors take."""
    problem, placed = layout.graph.problem, layout.placed
    schedule, placement = placed.schedule, placed.placement
    found = [
        Span("compute", vertex.name, schedule.begins[number], schedule.ends[number], device)
        for number, (vertex, device) in enumerate(zip(problem.vertices, placement, strict=True))
        if schedule.ends[number] > schedule.begins[number]
    ]
    for number, target, begin_s, end_s in schedule.transfers:
        tensor = problem.tensors[number]
        name, size = problem.vertices[tensor.source].name, round(tensor.bytes)
        found.append(Span("send", name, begin_s, end_s, placement[tensor.source], size))
        found.append(Span("receive", name, begin_s, end_s, target, size))
    held: list[list[Held]] = [[] for _ in problem.devices]
    for (_, device), kept in spans(problem, placement, schedule).items():
        held[device].append(Held(*kept))
    return Timeline(
        tuple(sorted(found, key=lambda s: (s.begin_s, s.end_s, s.worker, s.name))),
        memory=tuple(MemoryCurve.of(device, own) for device, own in enumerate(held)),
    )


def alone_on_one(problem: Problem) -> Alone:
    """What one device would do with the whole step, wherever its ops may be."""
    # What gets executable first is executed first, as TensorFlow does without an order.
    nowhere = (0,) * len(problem.vertices)
    need = peaks(problem, nowhere, simulate(problem, nowhere, "fifo"))[0]
    work = math.fsum(vertex.operations for vertex in problem.vertices)
    fits = [n for n, device in enumerate(problem.devices) if device.memory_bytes >= need]
    if fits:
        device = max(fits, key=lambda n: (problem.devices[n].speed, -n))
    else:
        numbers = range(len(problem.devices))
        device = max(numbers, key=lambda n: (problem.devices[n].memory_bytes, -n))
    return Alone(device, work / problem.devices[device].speed, round(need), bool(fits))


# The chain --------------------------------------------------------------------------------------


def stretches(problem: Problem, placement: Sequence[int], schedule: Schedule) -> list[Stretch]:
    """The chain that bounds a step, from its begin on, in as few pieces as can be."""
    begins, ends = schedule.begins, schedule.ends
    on_way = {(number, target): (begin, end) for number, target, begin, end in schedule.transfers}
    found: list[Stretch] = []
    for vertex, after, is_busy in reversed(critical_chain(problem, placement, schedule)):
        name, device = problem.vertices[vertex].name, placement[vertex]
        if after is not None and is_busy:
            waited_s = found[-1].waiting_s + ends[after] - begins[after]
            found[-1] = replace(found[-1], waiting_s=waited_s)
        elif after is not None and placement[after] != device:
            tensor, begin_s = next(
                (problem.tensors[number], on_way[number, device][0])
                for number in problem.inputs[vertex]
                if on_way.get((number, device), (0.0, None))[1] == begins[vertex]
                and problem.tensors[number].source == after
            )
            names, size = (problem.vertices[after].name,), round(tensor.bytes)
            when = ends[after], begins[vertex]
            found.append(Stretch("transfer", device, names, *when, begin_s - ends[after], size))
        if found and found[-1].kind == "ops":
            found[-1] = replace(found[-1], names=(*found[-1].names, name), end_s=ends[vertex])
        else:
            found.append(Stretch("ops", device, (name,), begins[vertex], ends[vertex]))
    return found


def _shares(chain: Sequence[Stretch]) -> dict[LimitedBy, float]:
    """How many seconds of the chain are bound by what."""
    ops = [each for each in chain if each.kind == "ops"]
    waiting_s = math.fsum(each.waiting_s for each in ops)
    return {
        "a dependency": math.fsum(each.length_s for each in ops) - waiting_s,
        "computation": waiting_s,
        "wire": math.fsum(each.length_s for each in chain if each.kind == "transfer"),
    }


def _limits(chain: Sequence[Stretch], step_s: float) -> Iterator[Limit]:
    """What makes the step longer than its ops one after the other."""
    transfers = [each for each in chain if each.kind == "transfer"]
    queue_s = math.fsum(each.waiting_s for each in transfers)
    found = (
        Limit("tensors are on their way", math.fsum(t.length_s for t in transfers) - queue_s),
        Limit("tensors wait until a link is free", queue_s),
        Limit("ops wait while their device executes others", _shares(chain)["computation"]),
    )
    for limit in sorted(found, key=lambda limit: -limit.seconds):
        if limit.seconds > _WORTH_SAYING * step_s:
            yield limit


# What was measured ------------------------------------------------------------------------------


def _use(timelines: Sequence[Timeline], device: int) -> DeviceUse:
    """What steps needed of a device, in the median."""
    curves = [each for timeline in timelines for each in timeline.memory if each.worker == device]
    peaks_bytes = [curve.peak_bytes for curve in curves]
    return DeviceUse(
        statistics.median(timeline.busy_s(device, "compute") for timeline in timelines),
        round(statistics.median(timeline.sent_bytes(device) for timeline in timelines)),
        round(statistics.median(timeline.received_bytes(device) for timeline in timelines)),
        round(statistics.median(peaks_bytes)) if peaks_bytes else None,
    )


def _named(timeline: Timeline) -> Timeline:
    """A traced timeline, from 0 on, with the user's names."""
    begin_s = timeline.begin_s

    def moved(span: Span) -> Span:
        crossing = sent_of(span.name)
        name = without_prefix(span.name if crossing is None else crossing.op)
        return replace(span, name=name, begin_s=span.begin_s - begin_s, end_s=span.end_s - begin_s)

    return Timeline(
        tuple(map(moved, timeline.spans)),
        timeline.plan,
        tuple(
            replace(curve, times_s=tuple(time_s - begin_s for time_s in curve.times_s))
            for curve in timeline.memory
        ),
    )
