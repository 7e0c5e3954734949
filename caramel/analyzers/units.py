"""What can a worker compute piece by piece, and which pieces does each gradient need?"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caramel.analyzers.frames import ROOT
from caramel.analyzers.fusions import fusions_among, opened
from caramel.core.errors import PlanError
from caramel.core.facts import GradientFrontier, LoopFrames, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.time_facts import ActivationOrder


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a training step: an op, a loop, or what TensorFlow may compute as one.

    A v1 loop is a unit as a whole, with all loops inside it: its iterations need all of its
    variables, so that no part of it may wait for what comes out of another. What it puts out
    (``Exit``) is a unit of its own, and so the units have no cycles.

    Attributes:
        ops: names of each unit's ops, in the order of the graph.
        sources: of each unit, the units it waits for.
        order: all units, each after its sources; ties in the order of the graph.
        of_op: the unit of each op.
        fused: the units that TensorFlow may compute as one op.
    """

    ops: tuple[tuple[str, ...], ...]
    sources: tuple[frozenset[int], ...]
    order: tuple[int, ...]
    of_op: dict[str, int]
    fused: frozenset[int] = frozenset()

    def needed_by(self, targets: Sequence[Iterable[str]]) -> list[int]:
        """For each unit a number whose bit `n` says whether ``targets[n]`` need it."""
        needed = [0] * len(self.ops)
        for number, names in enumerate(targets):
            for name in names:
                needed[self.of_op[name]] |= 1 << number
        for unit in reversed(self.order):
            if needed[unit]:
                for source in self.sources[unit]:
                    needed[source] |= needed[unit]
        return needed

    def ancestors(self, names: Iterable[str]) -> set[int]:
        """The units of some ops of the step, and everything they wait for."""
        needed = self.needed_by([[name for name in names if name in self.of_op]])
        return {unit for unit, bits in enumerate(needed) if bits}

    def by_target(self, targets: Sequence[Iterable[str]]) -> list[list[int]]:
        """In which order units run if what the first target needs runs first, and so on.

        Returns:
            For each target the units that it needs and no earlier one, and last the units that
            none needs; each in `order`.
        """
        needed = self.needed_by(targets)
        parts: list[list[int]] = [[] for _ in range(len(targets) + 1)]
        for unit in self.order:
            bits = needed[unit]
            parts[(bits & -bits).bit_length() - 1 if bits else len(targets)].append(unit)
        return parts


def units_of_step(graph: OpGraph, job: TrainingJob, frames: LoopFrames) -> Units:
    """The units of one training step.

    Ops that TensorFlow may compute as one are apart if a loop as a whole lies between them.
    """
    step = graph.ancestors([job.train_op, job.loss.op])
    loops = loops_of(graph, frames, step)
    # Only fused ops of which several are waited for (`fusions`): the others close no cycle.
    fusions = opened(graph, fusions_among(graph, step), among=step).groups
    groups = [group for group in fusions if not any(name in loops for name in group)]
    units = _units(graph, step, loops, groups)
    # A loop between two ops of a group, which is a unit, makes units wait for each other.
    if len(units.order) < len(units.ops):
        units = _units(graph, step, loops, [])
    assert len(units.order) == len(units.ops), "units wait for each other"
    return units


def units_with_loops(graph: OpGraph, step: set[str], frames: LoopFrames) -> Units:
    """The ops of a step, and its loops, of which each is one unit; nothing is fused."""
    return _units(graph, step, loops_of(graph, frames, step), [])


def _units(
    graph: OpGraph, step: set[str], loops: dict[str, str], groups: Sequence[tuple[str, ...]]
) -> Units:
    """The units, of which only those are in order that do not wait for themselves."""
    joined = loops | {name: group[0] for group in groups for name in group}
    of_op: dict[str, int] = {}
    of_joined: dict[str, int] = {}
    ops: list[list[str]] = []
    for name in graph.ops:
        if name not in step:
            continue
        unit = of_joined.setdefault(joined[name], len(ops)) if name in joined else len(ops)
        if unit == len(ops):
            ops.append([])
        ops[unit].append(name)
        of_op[name] = unit
    sources = tuple(
        frozenset(of_op[source] for name in names for source in graph[name].sources) - {unit}
        for unit, names in enumerate(ops)
    )
    fused = frozenset(of_op[group[0]] for group in groups)
    return Units(tuple(map(tuple, ops)), sources, _ordered(sources), of_op, fused)


def targets_of(frontier: GradientFrontier) -> dict[str, tuple[str, ...]]:
    """For each parameter the ops that put out its raw gradient."""
    return {
        cut.gradient.parameter: tuple(dict.fromkeys(t.op for t in cut.gradient.tensors))
        for cut in frontier.cuts
    }


def targets_in_order(
    frontier: GradientFrontier, order: ActivationOrder
) -> dict[str, tuple[str, ...]]:
    """The same, parameter by parameter in the given order.

    Raises:
        PlanError: the order is not one of the aggregated parameters.
    """
    targets = targets_of(frontier)
    for name in order.parameters:
        if name not in targets:
            raise PlanError(f"the activation order has '{name}', which has no raw gradient")
    if len(order.parameters) != len(targets) or len(set(order.parameters)) != len(targets):
        missing = [name for name in targets if name not in order.parameters]
        which = f"lacks '{missing[0]}'" if missing else "has a parameter twice"
        raise PlanError(f"the activation order {which}")
    return {name: targets[name] for name in order.parameters}


def loops_of(graph: OpGraph, frames: LoopFrames, step: set[str]) -> dict[str, str]:
    """One op of the outermost loop around each op that is in a loop."""
    inside = {name for name in step if frames.frame[name] != ROOT}
    loop: dict[str, str] = {}
    for first in graph.ops:
        if first not in inside or first in loop:
            continue
        loop[first] = first
        waiting = [first]
        while waiting:
            name = waiting.pop()
            for near in (*graph[name].sources, *graph.consumers[name]):
                if near in inside and near not in loop:
                    loop[near] = first
                    waiting.append(near)
    return loop


def _ordered(sources: Sequence[frozenset[int]]) -> tuple[int, ...]:
    consumers: list[list[int]] = [[] for _ in sources]
    for unit, before in enumerate(sources):
        for source in before:
            consumers[source].append(unit)
    waits = [len(before) for before in sources]
    ready = [unit for unit, count in enumerate(waits) if count == 0]
    order: list[int] = []
    while ready:
        unit = heapq.heappop(ready)
        order.append(unit)
        for consumer in consumers[unit]:
            waits[consumer] -= 1
            if waits[consumer] == 0:
                heapq.heappush(ready, consumer)
    return tuple(order)
