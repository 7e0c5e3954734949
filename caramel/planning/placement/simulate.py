"""When does a step that is placed execute what? A simulation of events (section 5).

A device executes one vertex at a time, and does not interrupt it (section 4). What happens at a
moment precedes the choices of that moment; then idle devices choose, in the order of their numbers.
A transfer begins when its tensor is there, and each tensor goes to each other device once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from caramel.core.errors import PlanError
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.schedulers import Held, Scheduler, scheduler_of

Links = Literal["free", "one"]
"""Whether all transfers between two devices go on at once, each at the full rate, as in the paper;
or one at a time in each direction, in the order in which they could begin."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a simulation found, in seconds from the begin of the step.

    Attributes:
        begins: when each vertex begins.
        ends: when each vertex ends.
        order: all vertices in the order in which they begin.
        transfers: tensor, device to which it goes, begin and end of each transfer.
    """

    begins: Sequence[float]
    ends: Sequence[float]
    order: Sequence[int]
    transfers: Sequence[tuple[int, int, float, float]]

    @property
    def makespan_s(self) -> float:
        """When the last vertex ends."""
        return max(self.ends, default=0.0)


def simulate(
    problem: Problem,
    placement: Sequence[int],
    scheduler: str = "pct",
    *,
    links: Links = "free",
    seed: int | None = None,
    order: Sequence[int] | None = None,
) -> Schedule:
    """Execute a step in thought.

    Args:
        problem: what is executed, and where it could be.
        placement: the device of each vertex.
        scheduler: how devices choose, of `SCHEDULERS`.
        links: whether transfers between two devices share the link.
        seed: of random choices, for "fifo".
        order: an order of all vertices that each device is to hold, instead of a scheduler.

    Raises:
        PlanError: no such scheduler or kind of links; or an order does not have each vertex once,
            or cannot be held as a vertex that it has later on the same device is waited for.
    """
    if links not in get_args(Links):
        raise PlanError(f"links are {' or '.join(get_args(Links))}, not '{links}'")
    chooses: Scheduler
    if order is None:
        chooses = scheduler_of(scheduler, problem, placement, seed)
    else:
        chooses = Held(placement, len(problem.devices), order)
    schedule = _run(problem, placement, chooses, one_at_a_time=links == "one")
    if len(schedule.order) < len(placement):
        missing = set(range(len(placement))) - set(schedule.order)
        raise PlanError(
            f"the order cannot be held: '{problem.vertices[min(missing)].name}' is never executed"
        )
    return schedule


def _run(
    problem: Problem, placement: Sequence[int], chooses: Scheduler, *, one_at_a_time: bool
) -> Schedule:
    """The loop, in one piece since it runs for each event of a step.

    All that is known of a transfer is known when its source ends, so only executions and the
    moments from which vertices are executable are events. Events are numbers of vertices: those
    that end, and counted on from the last of them those that get executable.
    """
    count, devices = len(placement), len(problem.devices)
    rates, latency_s, sends = problem.rates, problem.latency_s, problem.sends
    durations = [
        vertex.operations / problem.devices[device].speed
        for vertex, device in zip(problem.vertices, placement, strict=True)
    ]
    left = [len(inputs) for inputs in problem.inputs]  # tensors that are not there yet
    moments = [0.0] * count  # until which inputs are known to arrive
    begins, ends = [0.0] * count, [0.0] * count
    order: list[int] = []
    transfers: list[tuple[int, int, float, float]] = []
    idle = [True] * devices
    free: dict[tuple[int, int], float] = {}  # when the link between two devices is, if limited
    push, pop = heapq.heappush, heapq.heappop
    executable, ended, choose = chooses.executable, chooses.ended, chooses.choose
    events = [(0.0, count + vertex) for vertex in range(count) if not left[vertex]]
    while events:
        now = events[0][0]
        choosing: set[int] = set()
        while events and events[0][0] == now:
            vertex = pop(events)[1]
            if vertex >= count:
                executable(vertex - count, now)
                choosing.add(placement[vertex - count])
                continue
            device = placement[vertex]
            idle[device] = True
            choosing.add(device)
            ended(vertex)
            row = rates[device]
            for number, size, readers in sends[vertex]:
                arrivals: dict[int, float] = {}
                for reader in readers:
                    target = placement[reader]
                    if target == device:
                        arrival = now
                    elif target in arrivals:
                        arrival = arrivals[target]
                    else:
                        begin = now
                        if one_at_a_time:
                            begin = max(now, free.get((device, target), now))
                        arrival = arrivals[target] = begin + (latency_s + size / row[target])
                        if one_at_a_time:
                            free[device, target] = arrival
                        transfers.append((number, target, begin, arrival))
                    if arrival > moments[reader]:
                        moments[reader] = arrival
                    left[reader] -= 1
                    if not left[reader]:
                        push(events, (moments[reader], count + reader))
        for device in sorted(choosing) if len(choosing) > 1 else choosing:
            if idle[device]:
                chosen = choose(device, idle)
                if chosen is not None:
                    idle[device] = False
                    order.append(chosen)
                    begins[chosen] = now
                    ends[chosen] = now + durations[chosen]
                    push(events, (ends[chosen], chosen))
    return Schedule(begins, ends, order, transfers)
