"""The timeline of a step, predicted from a plan, what workers compute, and what they can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caramel.core.decision import Gate, Group, Part
from caramel.core.dtypes import dtype_bytes
from caramel.core.plan import Plan
from caramel.core.timeline import Resource, Span, Timeline
from caramel.core.workload import Size, Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.engine import Kind, TaskGraph, run
from caramel.simulation.hardware import Hardware
from caramel.simulation.single_host import run_alone
from caramel.simulation.tasks import StepTasks, tasks_of


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """When a group is aggregated: from when the first worker could send until the last one has it.

    In seconds from the begin of the step in which it goes.
    """

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Prediction:
    """A predicted step.

    Attributes:
        step_s: how long it takes, with the client's call.
    """

    step_s: float
    _tasks: StepTasks
    _begins_s: Sequence[float]
    _ends_s: Sequence[float]
    _workers: int

    @property
    def tasks(self) -> int:
        """How many tasks were simulated."""
        return len(self._tasks.graph.names)

    @cached_property
    def groups(self) -> Mapping[str, GroupTimes]:
        """When each group is aggregated, by name."""
        return {
            name: GroupTimes(
                min(self._ends_s[task] for task in self._tasks.begins[name]),
                max(self._ends_s[task] for task in arrivals),
            )
            for name, arrivals in self._tasks.arrivals.items()
        }

    @cached_property
    def timeline(self) -> Timeline:
        """The spans of every worker; transfers and additions have the names of their groups."""
        graph = self._tasks.graph
        spans = [
            span
            for number, name in enumerate(graph.names)
            if name and self._ends_s[number] > self._begins_s[number]
            for span in self._spans(graph, number, name)
        ]
        return Timeline(tuple(sorted(spans, key=lambda s: (s.begin_s, s.end_s, s.worker, s.name))))

    def _spans(self, graph: TaskGraph, number: int, name: str) -> Iterator[Span]:
        begin_s, end_s = self._begins_s[number], self._ends_s[number]
        kind, host, target = graph.kinds[number], graph.hosts[number], graph.targets[number]
        size = round(graph.amounts[number]) if kind is Kind.SEND else None
        # What one host stands for happens on all workers alike.
        for worker in range(self._workers) if self._tasks.folded else (host,):
            if kind is not Kind.SEND:
                # What is computed for a group, as products of factors are, belongs to it.
                is_own = kind is Kind.COMPUTE and name not in self._tasks.arrivals
                resource: Resource = "compute" if is_own else "reduce"
                yield Span(resource, name, begin_s, end_s, worker)
                continue
            yield Span("send", name, begin_s, end_s, worker, size)
            receiver = worker if self._tasks.folded else target
            yield Span("receive", name, begin_s, end_s, receiver, size)


def simulate(
    plan: Plan, workload: Workload, hardware: Hardware, *, pending: bool = True
) -> Prediction:
    """Predict a step of a plan.

    Args:
        workload: with the control edges of the plan.
        hardware: of as many workers as the plan has.
        pending: whether something is left of the step before; False for the first step.
    """
    assert plan.workers == hardware.workers, "the plan is for another number of workers"
    conditions = Conditions(sizes_of(plan), workload, hardware)
    return simulate_groups(plan.decision.groups, plan.decision.gates, conditions, pending=pending)


def simulate_groups(
    groups: Sequence[Group],
    gates: Sequence[Gate],
    conditions: Conditions,
    *,
    pending: bool = True,
    detailed: bool = True,
) -> Prediction:
    """The same without the rest of a plan; see `tasks.tasks_of`."""
    hardware = conditions.hardware
    tasks = tasks_of(groups, gates, conditions, pending=pending, detailed=detailed)
    if tasks.folded:
        alone = dataclasses.replace(hardware, hosts=hardware.hosts[:1])
        begins_s, ends_s = run_alone(tasks.graph, alone)
    else:
        begins_s, ends_s = run(tasks.graph, hardware)
    # The client's call comes on top.
    step_s = max(ends_s, default=0.0) + hardware.step_s
    return Prediction(step_s, tasks, begins_s, ends_s, hardware.workers)


def sizes_of(plan: Plan, further: Sequence[Part] = ()) -> dict[str, Size]:
    """What is aggregated for each parameter of a plan, and for its parts and some further ones."""
    sizes = {
        gradient.parameter: Size(gradient.elements, dtype_bytes(gradient.spec.dtype) or 0)
        for gradient in plan.job.gradients
    }
    for part in (*plan.decision.parts, *further):
        size = sizes[part.parameter].element_bytes
        sizes[part.name] = Size(part.elements, size, part.parameter)
    return sizes
