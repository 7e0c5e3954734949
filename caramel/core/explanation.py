"""An explanation: what a plan makes of a step, what bounds it, and what would help, as pure data.

Figures of the step as a whole are those of the Caramel paper, section 3.1.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from caramel.core.errors import PlanError
from caramel.core.orders import Orders
from caramel.core.placed_step import PlacedStep
from caramel.core.timeline import Timeline
from caramel.core.util.json_records import from_json_value, to_json_value

FORMAT = 1
_KIND = "caramel explanation"

LimitedBy = Literal["computation", "wire", "latency", "processor", "a dependency"]


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """When one group is transferred, how, and why so.

    With parameter servers it is a variable that workers receive: it is ready when it is updated.
    What is received when a step begins is deferred, and what is sent ahead is not.

    Times are in seconds from the begin of the step in which something happens: a deferred group is
    ready in one step, and is transferred and needed in the next.

    Attributes:
        name: the group's name in the plan.
        members: its parameters.
        size_bytes: what one worker puts into the aggregation.
        pattern: how it is aggregated.
        depth: into how many parts it is split.
        deferred: whether it is aggregated at the start of the next step.
        ready_s: when its last gradient is complete, if nothing but computation takes time.
        needed_s: when the next step first reads one of its parameters, likewise.
        predicted_begin_s: when the first worker begins to send it.
        predicted_end_s: when the last worker has all of it, aggregated.
        measured_begin_s: the same, as measured; None before training.
        measured_end_s: likewise.
        waits_for: groups that must have arrived before it is sent.
        reason: why it is as it is, for people.
        server: the task of the server that sends it; "" without servers.
        priority: its number among all that this server sends when a step begins, from 1 on; None if
            it is sent ahead, or without servers.
    """

    name: str
    members: tuple[str, ...]
    size_bytes: int
    pattern: str
    depth: int
    deferred: bool
    ready_s: float
    needed_s: float
    predicted_begin_s: float
    predicted_end_s: float
    measured_begin_s: float | None = None
    measured_end_s: float | None = None
    waits_for: tuple[str, ...] = ()
    reason: str = ""
    server: str = ""
    priority: int | None = None

    def __post_init__(self) -> None:
        measured = (self.measured_begin_s, self.measured_end_s)
        if (measured[0] is None) != (measured[1] is None):
            raise PlanError(f"group '{self.name}' needs both measured times, or none of them")
        predicted = (self.predicted_begin_s, self.predicted_end_s)
        for what, (begin_s, end_s) in (("predicted", predicted), ("measured", measured)):
            if begin_s is not None and end_s is not None and not begin_s <= end_s:
                raise PlanError(
                    f"group '{self.name}' is {what} to end at {end_s} s, before it begins at "
                    f"{begin_s} s"
                )

    @property
    def place(self) -> str:
        """In which step it is aggregated: "in-step" or "deferred"."""
        return "deferred" if self.deferred else "in-step"

    @property
    def late_s(self) -> float | None:
        """How much later it arrived than predicted; negative if earlier, None if not measured."""
        if self.measured_end_s is None:
            return None
        return self.measured_end_s - self.predicted_end_s


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that makes the step longer.

    Attributes:
        sentence: what, without a full stop: "global-norm clipping makes every update wait".
        seconds: how much of the step it costs.
    """

    sentence: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a change of the job or the machines would bring.

    Attributes:
        change: "twice the bandwidth".
        step_s: the predicted step with it.
        speedup: how much faster training would be, 1.3 for 1.3 times. Not always the ratio of the
            steps: with more examples in each, a longer step may be the faster one.
        note: what else there is to say: "wire hidden entirely".
    """

    change: str
    step_s: float
    speedup: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a step costs, why, and what would help.

    Attributes:
        job: what is trained, for people.
        workers: how many train it.
        parameters: how many parameters (tensors) are aggregated.
        parameter_bytes: their size together.
        planner: who made the plan.
        step_s: the predicted step with the plan.
        plain_step_s: the predicted step without planning.
        computation_s: C, the computation of one step.
        wire_limit_s: the least time in which the network can carry what must be sent.
        rho: communication / computation.
        alpha: overlap coefficient.
        utilisation: U, computation / step.
        limited_by: what the step is nearest to being bound by.
        why: a sentence that says so, with numbers.
        predicted: what all workers do in a step.
        groups: in order of transfer.
        limits: what makes the step longer than it could be, the most first.
        what_if: what would help.
        measured: what they did in a traced step; None before training.
        measured_step_s: the usual step without a trace; None before training.
        servers: the tasks of the parameter servers, if there are any. In timelines they have the
            places of `names.server_place`.
        efficiency: E, the ordering efficiency of a worker's step, with servers.
        orders: what traced steps tell of the order in which workers received parameters.
        placed: where ops are and why, if one replica is spread over several devices. Then these
            count as workers, there are no groups, parameters are variables, the plain step is that
            of one device alone, and the wire limit what the busiest link takes.
        values: how many numbers all parameters have together; None if that is not known.
        examples: how many a worker has in a step; None if that is not known.
        made: when it was made: day and time of the machine.
    """

    job: str
    workers: int
    parameters: int
    parameter_bytes: int
    planner: str
    step_s: float
    plain_step_s: float
    computation_s: float
    wire_limit_s: float
    rho: float
    alpha: float
    utilisation: float
    limited_by: LimitedBy
    why: str
    predicted: Timeline
    groups: tuple[GroupExplanation, ...] = ()
    limits: tuple[Limit, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    measured: Timeline | None = None
    measured_step_s: float | None = None
    servers: tuple[str, ...] = ()
    efficiency: float | None = None
    orders: Orders | None = None
    placed: PlacedStep | None = None
    values: int | None = None
    examples: int | None = None
    made: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1 or not self.step_s > 0:
            raise PlanError(
                f"an explanation of {self.workers} workers and a step of {self.step_s} s cannot "
                "be: it needs at least 1 worker and a positive time"
            )
        count = Counter(group.name for group in self.groups)
        twice = sorted(name for name, number in count.items() if number > 1)
        if twice:
            raise PlanError(f"two groups of the explanation have the name '{twice[0]}'")
        for group in self.groups:
            for name in group.waits_for:
                if name not in count:
                    raise PlanError(f"group '{group.name}' waits for '{name}', which is no group")

    @property
    def bound_s(self) -> float:
        """The least that any plan could reach: the longer of computation and wire limit."""
        return max(self.computation_s, self.wire_limit_s)

    @property
    def usual_step_s(self) -> float:
        """The step as measured; before that, as predicted."""
        return self.step_s if self.measured_step_s is None else self.measured_step_s

    @property
    def speedup(self) -> float | None:
        """How many times as many examples a second as one worker, which transfers nothing; None
        where one replica is spread over several devices."""
        if self.placed is not None:
            return None
        return self.workers * self.computation_s / self.usual_step_s

    @property
    def shown_alpha(self) -> float | None:
        """alpha, where it means something: a step longer than computation and communication one
        after the other hides nothing."""
        return self.alpha if self.alpha >= 0 else None

    @property
    def misses(self) -> tuple[GroupExplanation, ...]:
        """Groups that were measured, those whose end was predicted worst first."""
        late = [(group, group.late_s) for group in self.groups]
        known = [(group, late_s) for group, late_s in late if late_s is not None]
        return tuple(group for group, _ in sorted(known, key=lambda each: -abs(each[1])))

    def to_json(self) -> str:
        """The explanation as JSON text."""
        header = {"kind": _KIND, "format": FORMAT}
        return json.dumps({**header, **to_json_value(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Explanation:
        """The explanation that `to_json` wrote.

        Raises:
            PlanError: the text is no explanation; says where.
        """
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"an explanation must be JSON: {error}") from error
        if (
            not isinstance(value, dict)
            or value.pop("kind", None) != _KIND
            or value.pop("format", None) != FORMAT
        ):
            raise PlanError(f"not a Caramel explanation of format {FORMAT}")
        try:
            return from_json_value(cls, value)
        except PlanError:
            raise
        except ValueError as error:  # of a span of its timelines
            raise PlanError(f"a damaged explanation: {error}") from None
