"""Control edges that let gradients get ready in one order. Caramel paper, section 4.1, stage 2.

The *set* of a parameter is what its gradient needs and no earlier one did. Its *end set* are the
ops that put out the gradient, its *free set* the ops that wait for nothing else of the set. With
edges from every end set to the next free set, only what the next gradient needs can run.

Some ops wait for nothing, because something beside the backward pass needs them early, or because
they compute nothing: the forward pass, inputs and what they come from, constants and handles of
variables, and what initialises and reads variables. Held back, they would draw the backward pass
into programs that have nothing to do with it. What no gradient needs (updates, metrics, moving
averages) is not ordered either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from caramel import kinds
from caramel.analyzers.units import Units, targets_in_order, units_of_step
from caramel.errors import PlanError
from caramel.facts import ActivationOrder, GradientFrontier, LoopFrames, TrainingJob
from caramel.graph import OpGraph
from caramel.plan import Edge

_INPUTS = kinds.PLACEHOLDERS | kinds.INPUTS
_CONSTANT = frozenset({kinds.VARIABLE, "Const"})


def serialize(
    graph: OpGraph,
    job: TrainingJob,
    frontier: GradientFrontier,
    frames: LoopFrames,
    order: ActivationOrder,
) -> tuple[Edge, ...]:
    """The edges that enforce `order`, without those that a single edge of the graph implies.

    All edges begin at a raw gradient. None leads into a loop but to what enters it from outside,
    and a loop is held back as a whole, by the first gradient that needs a part of it: of several
    gradients that come out of one loop, the order can be enforced only where more is to be computed
    behind it.

    Raises:
        PlanError: the order cannot be: a gradient is computed from a later one, or it is not an
            order of the aggregated parameters.
    """
    targets = targets_in_order(frontier, order)
    units = units_of_step(graph, job, frames)
    parts = units.by_target(list(targets.values()))[:-1]
    free = units_never_held(graph, job, units, parts)
    _refuse_impossible(units, free, targets, parts)
    edges: list[Edge] = []
    ends: list[str] = []
    for own, part in zip(targets.values(), parts, strict=True):
        front = _front(graph, units, [unit for unit in part if unit not in free])
        for name in front.roots:
            edges += [Edge(end, name) for end in ends if end not in graph[name].sources]
        new_ends = _sinks(graph, own, front.names)
        is_held = any(name in front.held for name in new_ends)
        ends = new_ends if is_held else [*ends, *new_ends]
    return tuple(edges)


def units_never_held(
    graph: OpGraph, job: TrainingJob, units: Units, parts: Sequence[Sequence[int]]
) -> frozenset[int]:
    """The units that must not wait for the backward pass, of the sets of all parameters."""
    programs = [job.loss.op, *job.table_initializers]
    programs += [name for v in job.variables for name in (v.initializer, v.read)]
    programs += [op.name for op in graph if op.kind == "MakeIterator"]
    early = [name for name in graph.ancestors(programs) if name in units.of_op]
    names = [name for part in parts for unit in part for name in units.ops[unit]]
    early += [name for name in names if graph[name].kind in _INPUTS]
    early += [n for n in names if graph[n].kind in _CONSTANT and not any(graph[n].sources)]
    return frozenset(units.ancestors(early))


def _refuse_impossible(
    units: Units,
    free: Set[int],
    targets: Mapping[str, Sequence[str]],
    parts: Sequence[Sequence[int]],
) -> None:
    rank = {unit: number for number, part in enumerate(parts) for unit in part}
    parameters = list(targets)
    for number, (parameter, own) in enumerate(targets.items()):
        held = [name for name in own if units.of_op[name] not in free]
        latest = max((rank[units.of_op[name]] for name in held), default=number)
        if latest < number and not set(held) & set(targets[parameters[latest]]):
            raise PlanError(
                f"the gradient of '{parameter}' cannot get ready after that of "
                f"'{parameters[latest]}', which is computed from it"
            )


@dataclass(slots=True)
class _Front:
    """A set: its ops, those with which it begins, and those that wait for one of these."""

    names: set[str] = field(default_factory=set)
    roots: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)


def _front(graph: OpGraph, units: Units, part: Sequence[int]) -> _Front:
    """The front of a set of units, which are given in an order in which they can run.

    What comes out of a loop of an earlier set cannot be held back; it counts as computed.
    """
    names = {name for unit in part for name in units.ops[unit]}
    front = _Front(set(names))
    for unit in part:
        own = units.ops[unit]
        before = {name: names.intersection(graph[name].sources) for name in own}
        roots = [name for name in own if not before[name]]
        if roots and graph[own[0]].kind == "Exit":
            names.remove(own[0])
            continue
        front.roots += roots
        if roots or any(not front.held.isdisjoint(sources) for sources in before.values()):
            front.held.update(own)
    return front


def _sinks(graph: OpGraph, targets: Sequence[str], names: Set[str]) -> list[str]:
    """The targets among `names` that no other one waits for."""
    own = [name for name in targets if name in names]
    if len(own) < 2:
        return own
    outside = frozenset(graph.ops) - names
    return [
        name
        for name in own
        if not any(name in graph.ancestors([other], stop=outside) - {other} for other in own)
    ]
