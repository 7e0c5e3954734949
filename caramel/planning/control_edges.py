"""Control edges that let gradients get ready in one order. Caramel paper, section 4.1, stage 2.

The *set* of a parameter is what its gradient needs and no earlier one did. Its *end set* are the
ops that put out the gradient, its *free set* the ops that wait for nothing else of the set. With
edges from every end set to the next free set, only what the next gradient needs can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from caramel.analyzers.preparing import preparing
from caramel.analyzers.units import Units, targets_in_order, units_of_step
from caramel.core import op_types
from caramel.core.decision import Edge
from caramel.core.errors import PlanError
from caramel.core.facts import GradientFrontier, LoopFrames, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.time_facts import ActivationOrder

_INPUTS = op_types.PLACEHOLDERS | op_types.INPUTS
_CONSTANT = frozenset({op_types.VARIABLE, "Const"})


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
    # The last part is what no gradient needs (updates, metrics, averages): it is not ordered.
    parts = units.by_target(list(targets.values()))[:-1]
    free = units_never_held(graph, job, units, parts)
    sets = [_set_of(graph, units, [unit for unit in part if unit not in free]) for part in parts]
    # Gradients that one op puts out, as TensorFlow computes it, get ready together.
    together = _put_out_together(units, targets)
    end_sets = [
        _sinks(graph, [each for name in own for each in together.get(name, (name,))], part.names)
        for own, part in zip(targets.values(), sets, strict=True)
    ]
    _refuse_impossible(targets, sets, end_sets)
    edges: list[Edge] = []
    before: list[str] = []
    for part, end_set in zip(sets, end_sets, strict=True):
        for name in part.free_set:
            edges += [Edge(end, name) for end in before if end not in graph[name].sources]
        is_held = any(name in part.held for name in end_set)
        # A gradient that nothing holds back may be ready before those before it: the next set waits
        # for all.
        before = end_set if is_held else [*before, *end_set]
    return tuple(edges)


def units_never_held(
    graph: OpGraph, job: TrainingJob, units: Units, parts: Sequence[Sequence[int]]
) -> frozenset[int]:
    """The units that must not wait for the backward pass, of the sets of all parameters.

    Something beside the backward pass needs them early, or they compute nothing: the forward pass,
    inputs and what they come from, constants and handles of variables, and what initialises and
    reads variables. Held back, they would draw the backward pass into programs that have nothing to
    do with it.
    """
    programs = [job.loss.op, *preparing(graph, job)]
    early = [name for name in graph.ancestors(programs) if name in units.of_op]
    names = [name for part in parts for unit in part for name in units.ops[unit]]
    early += [name for name in names if graph[name].kind in _INPUTS]
    early += [n for n in names if graph[n].kind in _CONSTANT and not any(graph[n].sources)]
    return frozenset(units.ancestors(early))


@dataclass(slots=True)
class _Set:
    """The set of a parameter: its ops, with which it begins, and all that waits for these."""

    names: set[str]
    free_set: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)


def _set_of(graph: OpGraph, units: Units, part: Sequence[int]) -> _Set:
    """The set that consists of some units, which are given in an order in which they can run.

    What comes out of a loop of an earlier set cannot be held back; it counts as computed.
    """
    waiting = {name for unit in part for name in units.ops[unit]}
    found = _Set(set(waiting))
    for unit in part:
        own = units.ops[unit]
        before = {name: waiting.intersection(graph[name].sources) for name in own}
        free_set = [name for name in own if not before[name]]
        if free_set and unit in units.fused:
            # Ops that TensorFlow may compute as one wait for the same, so that no edge keeps them
            # apart.
            free_set = list(own)
        if free_set and graph[own[0]].kind == "Exit":
            waiting.remove(own[0])
            continue
        found.free_set += free_set
        if free_set or any(not found.held.isdisjoint(names) for names in before.values()):
            found.held.update(own)
    return found


def _put_out_together(
    units: Units, targets: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Of each target that may be computed together with others, all of these."""
    of_unit: dict[int, dict[str, None]] = {}
    for name in (name for own in targets.values() for name in own):
        if units.of_op[name] in units.fused:
            of_unit.setdefault(units.of_op[name], {})[name] = None
    return {name: tuple(names) for names in of_unit.values() for name in names}


def _refuse_impossible(
    targets: Mapping[str, Sequence[str]], sets: Sequence[_Set], end_sets: Sequence[Sequence[str]]
) -> None:
    """Raise if a gradient has to be ready before one that stands before it in the order.

    Gradients that are one tensor get ready together, wherever they stand.
    """
    rank = {name: number for number, part in enumerate(sets) for name in part.names}
    parameters = list(targets)
    for number, (parameter, own) in enumerate(targets.items()):
        held = [name for name in own if name in rank]
        latest = max((rank[name] for name in held), default=number)
        if latest < number and not set(held) & set(end_sets[latest]):
            raise PlanError(
                f"the gradient of '{parameter}' cannot get ready after that of "
                f"'{parameters[latest]}', which is computed from it"
            )


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
