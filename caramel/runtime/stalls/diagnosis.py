"""What does a late step wait for? Decided from the marks that its groups have left on the workers.

A step is looked into when it is later than expected by a set factor; or when it takes a bit longer
than expected, and the transfer of one of its groups is late by that factor. The first group in the
order of the plan that is late is named, with the op that completes its raw gradients, and the
worker that it waits for: one that does not answer, one that has not computed the gradients, or else
one that it has not reached. Nothing here runs or asks anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from caramel.core.errors import PlanError
from caramel.core.names import server_place
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.core.util.arguments import SECONDS, at_least, check_fields, more_than

_LONG = 1.5  # times longer than expected: in a step that is faster no group is late

Cause = Literal["silent", "producer", "transfer", "rest", "over"]


@dataclass(frozen=True, slots=True)
class StallSettings:
    """When a step or a transfer counts as stalled.

    Attributes:
        factor: how many times longer than expected it takes.
        least_s: and how much longer at least, in seconds.
        unknown_s: after how long, in seconds, a step counts as stalled of which nothing is known,
            such as the first one of a plan.
        answer_s: how long workers have to answer when they are asked how far they are, in seconds.
        kept: how many stalls `Session.metrics` tells of, the latest.

    Raises:
        PlanError: a number is out of range.
    """

    factor: float = 3.0
    least_s: float = 1.0
    unknown_s: float = 60.0
    answer_s: float = 3.0
    kept: int = 50

    def __post_init__(self) -> None:
        check_fields(
            self,
            PlanError,
            factor=more_than(1),
            least_s=SECONDS,
            unknown_s=SECONDS,
            answer_s=SECONDS,
            kept=at_least(1),
        )

    def due_s(self, expected_s: float | None) -> float:
        """After how long something counts as stalled that is expected to take `expected_s`."""
        if expected_s is None:
            return self.unknown_s
        return max(self.factor * expected_s, expected_s + self.least_s)

    def worth_a_look_s(self, expected_s: float | None) -> float:
        """After how long something may be late in a step that is expected to take `expected_s`."""
        if expected_s is None:
            return self.unknown_s
        return min(max(_LONG * expected_s, self.least_s), self.due_s(expected_s))


DEFAULT = StallSettings()


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that waited much longer than expected.

    Attributes:
        step: its number in the session, from 1.
        plan: the name of the plan that did it.
        group: the late group, or the variable that workers wait for; None if there is none.
        producer: the op of the single-device graph that completes the group's raw gradients; None
            of a variable.
        workers: those that are waited for; parameter servers by their places, from -1 down.
        cause: why they are: "silent" (they do not answer), "producer" (they have not computed the
            raw gradients), "transfer" (these are there, but the group has not arrived on them);
            "rest" if all groups have arrived everywhere; "over" if the step ended before anybody
            was asked.
        late_s: how much later than expected it was when that was found, in seconds.
        text: all of that for people, in a line.
    """

    step: int
    plan: str
    group: str | None
    producer: str | None
    workers: tuple[int, ...]
    cause: Cause
    late_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a worker has come in a step.

    Attributes:
        ready: the groups whose raw gradients are complete there.
        arrived: the groups that are there, aggregated; of a deferred group that of the step before
            is meant. With parameter servers, on a worker the variables that it has received.
        is_server: whether they are those of a parameter server.
    """

    ready: frozenset[str] = frozenset()
    arrived: frozenset[str] = frozenset()
    is_server: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is predicted of a plan's steps.

    Attributes:
        step_s: how long one takes.
        ends_s: when each group has arrived on all workers, from the begin of the step in which it
            goes.
    """

    step_s: float
    ends_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Leg:
    """A group on its way, or a variable from a parameter server.

    Attributes:
        group: its name.
        producer: the op of the single-device graph that completes its raw gradients; "" of a
            variable.
        turn: when that runs, as its number in an order of all ops.
        deferred: whether it travels at the start of the next step.
        after: the groups that have to arrive before it sets out.
        server: the task of the parameter server that sends or adds it; "" without servers.
        place: where it has to arrive, if that is a server.
    """

    group: str
    producer: str
    turn: int = 0
    deferred: bool = False
    after: tuple[str, ...] = ()
    server: str = ""
    place: int | None = None

    @property
    def is_pull(self) -> bool:
        """Whether it goes from a server to workers."""
        return bool(self.server) and self.place is None


@dataclass(frozen=True, slots=True)
class Item:
    """Something that has to happen on every worker in a step.

    Attributes:
        leg: of which group.
        arrives: whether it has to arrive; else its raw gradients have to be completed.
        end_s: when that is expected; None if not known.
    """

    leg: Leg
    arrives: bool
    end_s: float | None = None

    def concerns(self, position: int, marks: Marks) -> bool:
        """Whether it has to happen on a worker or server."""
        if self.arrives and self.leg.place is not None:
            return position == self.leg.place
        return not marks.is_server

    def is_done(self, marks: Marks) -> bool:
        """Whether it has happened on a worker."""
        return self.leg.group in (marks.arrived if self.arrives else marks.ready)


@dataclass(frozen=True, slots=True)
class Course:
    """What is to happen in a step, and when.

    Attributes:
        step: its number.
        plan: the name of the plan that does it.
        items: in the order in which they should happen. Without marks there are none.
        step_s: how long it should take; None if not known.
    """

    step: int
    plan: str
    items: tuple[Item, ...]
    step_s: float | None

    def is_late(self, elapsed_s: float, settings: StallSettings) -> bool:
        """Whether the whole step is late."""
        return elapsed_s > settings.due_s(self.step_s)

    def due(self, elapsed_s: float, settings: StallSettings) -> Iterator[Item]:
        """What should have happened, in order.

        Of a late step that is everything. Else it is what is late by its own prediction, once the
        step takes so long that this matters.
        """
        step_is_late = self.is_late(elapsed_s, settings)
        if not step_is_late and elapsed_s <= _LONG * (self.step_s or 0.0):
            return
        for item in self.items:
            is_known = item.end_s is not None
            if step_is_late or (is_known and elapsed_s > settings.due_s(item.end_s)):
                yield item


def legs_of(plan: Plan, positions: Mapping[str, int]) -> tuple[Leg, ...]:
    """The groups of a plan that leave marks, in the order of the plan.

    Args:
        positions: of the ops of the single-device graph in a topological order.
    """
    places = {server_place(n): n for n in range(len(plan.job.servers))}
    after: dict[str, list[str]] = {}
    for gate in plan.decision.gates:
        after.setdefault(gate.group, []).append(gate.after)
    legs = []
    marked = {name for own in plan.marked.values() for name in own.arrived}
    for pull in plan.decision.pulls:
        if pull.variable in marked and not pull.ahead:
            server = plan.job.servers[plan.decision.server_of[pull.variable]]
            legs.append(Leg(pull.variable, "", after=pull.after, server=server))
    for group in plan.marked_groups:
        ops = [op for name in group.members for op in _raw_ops(plan.gradient(name))]
        turn, producer = max((positions[op], op) for op in ops)
        gates = tuple(after.get(group.name, ()))
        place = plan.place(group)
        number = None if place is None else places[place]
        server = "" if number is None else plan.job.servers[number]
        at = None if number is None else plan.workers + number
        legs.append(Leg(group.name, producer, turn, group.deferred, gates, server, at))
    return tuple(legs)


def _raw_ops(gradient: AggregatedGradient) -> list[str]:
    return [t.op for t in (gradient.values, gradient.indices) if t is not None]


def course_of(
    step: int,
    plan: str,
    legs: Sequence[Leg],
    forecast: Forecast | None,
    usual_s: float | None,
    *,
    computes: bool = True,
    pending: bool = False,
) -> Course:
    """What is to happen in a step.

    What is left of the step before comes first, in the order of the plan; then what becomes of the
    raw gradients, in the order in which they are completed. Where steps usually take longer than
    predicted, groups may take longer in the same proportion.

    Args:
        legs: the plan's.
        forecast: what is predicted; None if nothing is.
        usual_s: what a step of the plan usually takes; None if not known.
        computes: whether anything is done but what is left of the step before.
        pending: whether deferred groups of the step before travel in this one.
    """
    known = [s for s in (usual_s, forecast.step_s if forecast else None) if s is not None]
    step_s = max(known, default=None)
    ends_s: dict[str, float] = {}
    if forecast is not None and step_s is not None and forecast.step_s > 0:
        stretch = step_s / forecast.step_s
        ends_s = {name: stretch * end_s for name, end_s in forecast.ends_s.items()}
    items = [Item(g, True, ends_s.get(g.group)) for g in legs if g.deferred and pending]
    if computes and any(leg.server for leg in legs):
        items += _served_items(legs)
    elif computes:
        items += [
            Item(g, False) if g.deferred else Item(g, True, ends_s.get(g.group))
            for g in sorted(legs, key=lambda leg: leg.turn)
        ]
    return Course(step, plan, tuple(items), step_s)


def _served_items(legs: Sequence[Leg]) -> Iterator[Item]:
    """Variables arrive on workers; then gradients get ready there, and arrive on their servers."""
    yield from (Item(leg, True) for leg in legs if leg.is_pull)
    for leg in sorted((leg for leg in legs if not leg.is_pull), key=lambda leg: leg.turn):
        yield from (Item(leg, False), Item(leg, True))


def find_stall(
    course: Course,
    marks: Sequence[Marks | None],
    elapsed_s: float,
    settings: StallSettings,
    workers: Sequence[str],
    *,
    driver: int = 0,
    servers: int = 0,
) -> Stall | None:
    """What a step waits for.

    Args:
        course: what is to happen in it.
        marks: of each worker, and behind them of each parameter server; None of one that does not
            answer.
        elapsed_s: since when it runs.
        settings: when something is late.
        workers: what to call each of them in the text.
        driver: the worker that the others are asked through.
        servers: how many of them are servers.

    Returns:
        None if nothing is late.
    """
    asked = {worker: each for worker, each in enumerate(marks) if each is not None}
    silent = tuple(worker for worker, each in enumerate(marks) if each is None)
    late = (i for i in course.due(elapsed_s, settings) if _missing(i, asked))
    item = next(late, None)
    if item is None and not course.is_late(elapsed_s, settings):
        return None
    cause: Cause = "rest"
    waited: tuple[int, ...] = ()
    if silent:
        cause, waited = "silent", silent if asked else (driver,)
    elif item is not None:
        item, cause, waited = _culprit(item, course, asked)
    return _stall(course, item, cause, waited, elapsed_s, workers, servers)


def _missing(item: Item, asked: Mapping[int, Marks]) -> tuple[int, ...]:
    """The workers on which it has not happened, of those that have answered."""
    return tuple(
        worker
        for worker, marks in asked.items()
        if item.concerns(worker, marks) and not item.is_done(marks)
    )


def _culprit(
    item: Item, course: Course, asked: Mapping[int, Marks]
) -> tuple[Item, Cause, tuple[int, ...]]:
    """What a late item waits for: another one that it is gated by, gradients, or a transfer."""
    arrivals = {each.leg.group: each for each in course.items if each.arrives}
    while True:
        if not item.arrives:
            return item, "producer", _missing(item, asked)
        unready = _missing(Item(item.leg, False), asked)
        if unready and not item.leg.deferred and not item.leg.is_pull:
            return item, "producer", unready
        missing = _missing(item, asked)
        there = {worker: asked[worker] for worker in missing}
        before = (arrivals[name] for name in item.leg.after if name in arrivals)
        gate = next((each for each in before if _missing(each, there)), None)
        if gate is None:
            return item, "transfer", missing
        item = gate


def over(course: Course, elapsed_s: float) -> Stall:
    """A step that was late and ended before anybody was asked."""
    return _stall(course, None, "over", (), elapsed_s, ())


def _stall(
    course: Course,
    item: Item | None,
    cause: Cause,
    waited: tuple[int, ...],
    elapsed_s: float,
    workers: Sequence[str],
    servers: int = 0,
) -> Stall:
    expected_s = course.step_s
    if item is not None and item.end_s is not None:
        expected_s = item.end_s
    late_s = elapsed_s - (expected_s or 0.0)
    what = f"step {course.step} of plan '{course.plan}'"
    if item is not None:
        what += f": {_told(item.leg)}"
    if expected_s is None:
        what += f" is not there after {elapsed_s:.1f} s"
    else:
        what += f" is {late_s:.1f} s late (expected after {expected_s:.2f} s)"
    why = _why(course, item, cause, " and ".join(workers[worker] for worker in waited))
    first_server = len(workers) - servers
    if cause == "silent" and any(worker >= first_server for worker in waited):
        why += (
            "; should it not come back, the variables that it holds are lost: open a new session "
            "and restore the last checkpoint"
        )
    places = (w if w < first_server else server_place(w - first_server) for w in waited)
    return Stall(
        step=course.step,
        plan=course.plan,
        group=item.leg.group if item else None,
        producer=(item.leg.producer or None) if item else None,
        workers=tuple(places),
        cause=cause,
        late_s=late_s,
        text=f"{what}; {why}",
    )


def _why(course: Course, item: Item | None, cause: Cause, names: str) -> str:
    if cause == "silent":
        return f"it waits for {names}: no answer from there"
    if cause == "over":
        return "it ended before the workers were asked"
    if item is None and not course.items:
        return "its groups leave no marks, so it is not known what it waits for"
    if item is None and any(each.leg.server for each in course.items):
        return (
            "all gradients have arrived on the servers; it waits for updates, or for what is sent"
        )
    if item is None:
        return "all groups have arrived on all workers; it waits for something else"
    if cause == "producer":
        return f"it waits for its gradients from {names}"
    there = "" if item is not None and item.leg.is_pull else "its gradients are there, but "
    return f"{there}it has not arrived on {names}"


def _told(leg: Leg) -> str:
    if leg.is_pull:
        return f"variable '{leg.group}' from {leg.server}"
    to = f", for {leg.server}" if leg.server else ""
    return f"group '{leg.group}' (completed by '{leg.producer}'{to})"
