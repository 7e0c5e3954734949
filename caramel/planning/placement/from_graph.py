"""The placement problem of a training step, from its graph.

A vertex is an op, or a v1 loop as a whole, which cannot be spread. These are placed as one: what
hands on a resource or a variant, so all that touches one variable, iterator or table; the ops of a
v1 conditional, of which only one branch has values; and what the caller says. Placeholders are on
the first device, where feeds arrive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.frames import loop_frames
from caramel.analyzers.units import Units, units_with_loops
from caramel.core import op_types
from caramel.core.dtypes import STAYS
from caramel.core.errors import PlanError
from caramel.core.facts import TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.planning.placement.problem import Device, Problem, Tensor, Vertex


@dataclass(frozen=True)
class PlacedGraph:
    """A problem, and which ops its vertices are.

    Attributes:
        problem: with a vertex for each op or loop of the step, in the order of the graph.
        ops: names of the ops of each vertex.
        tensors: which tensors of the graph the first ones of the problem are; the others are
            control edges.
    """

    problem: Problem
    ops: tuple[tuple[str, ...], ...]
    tensors: tuple[TensorRef, ...]

    def numbers_of(self, placement: Sequence[int]) -> dict[str, int]:
        """The number of the device of each op of the step."""
        return {
            name: device
            for names, device in zip(self.ops, placement, strict=True)
            for name in names
        }

    def devices_of(self, placement: Sequence[int]) -> dict[str, str]:
        """The name of the device of each op of the step."""
        return {
            name: self.problem.devices[device].name
            for names, device in zip(self.ops, placement, strict=True)
            for name in names
        }


def problem_of(
    graph: OpGraph,
    job: TrainingJob,
    devices: Sequence[Device],
    rates: Sequence[Sequence[float]],
    *,
    latency_s: float = 0.0,
    seconds: Mapping[str, float] | None = None,
    traced_bytes: Mapping[str, int] | None = None,
    together: Iterable[Sequence[str]] = (),
    constraints: Mapping[str, Sequence[str]] | None = None,
    targets: Iterable[str] = (),
) -> PlacedGraph:
    """The placement problem of one training step.

    Args:
        graph: the single-device graph.
        job: what a step of it runs.
        devices: where ops may be.
        rates: bytes a second from each device to each other.
        latency_s: what each transfer takes besides.
        seconds: what ops take on a device of speed 1, by name; others take none. None if nothing
            is known: then an op costs the bytes that it puts out.
        traced_bytes: sizes of tensors that the graph does not know, by name.
        together: names of ops that must be on one device, in sets; those outside the step do not
            count.
        constraints: names of devices by regular expressions of ops' whole names; a loop has that
            of its first op.
        targets: further ops that are run, as by other steps of the job.

    Raises:
        PlanError: as `Problem` does.
    """
    step = graph.ancestors([job.train_op, job.loss.op, *targets])
    units = units_with_loops(graph, step, loop_frames(graph))
    sizes = _Sizes(graph, traced_bytes or {})
    readers = _readers(graph, units)
    tensors = _tensors(graph, units, sizes, readers)
    resident = {
        variable.handle: float(variable.spec.bytes or 0)
        for variable in job.variables
        if variable.handle in units.of_op
    }
    read = {units.of_op[tensor.op] for tensor in readers}
    vertices = []
    for unit, names in enumerate(units.ops):
        costs = seconds if seconds is not None else {name: sizes.put_out(name) for name in names}
        vertices.append(
            Vertex(
                names[0],
                math.fsum(costs.get(name, 0.0) for name in names),
                math.fsum(resident.get(name, 0.0) for name in names),
                is_aside=unit not in read,
            )
        )
    problem = Problem(
        tuple(vertices),
        tensors,
        tuple(devices),
        tuple(map(tuple, rates)),
        latency_s=latency_s,
        together=tuple(_together(graph, units, together)),
        constraints=_constraints(graph, units, devices, constraints or {}),
    )
    return PlacedGraph(problem, units.ops, tuple(readers))


def unknown_sizes(graph: OpGraph, placed: PlacedGraph, traced_bytes: Mapping[str, int]) -> int:
    """How many tensors that are read in a step have a size that nobody knows."""
    step = [graph[name] for names in placed.ops for name in names]
    read = {tensor for op in step for tensor in op.inputs}
    return sum(
        graph.spec(each).bytes is None
        and graph.spec(each).dtype not in STAYS
        and str(each) not in traced_bytes
        for each in read
    )


class _Sizes:
    """Bytes of tensors: those that the graph knows, else those that were traced, else none."""

    def __init__(self, graph: OpGraph, traced_bytes: Mapping[str, int]) -> None:
        self._graph, self._traced_bytes = graph, traced_bytes

    def of(self, tensor: TensorRef) -> float:
        known = self._graph.spec(tensor).bytes
        return float(self._traced_bytes.get(str(tensor), 0) if known is None else known)

    def put_out(self, name: str) -> float:
        count = len(self._graph[name].outputs)
        return math.fsum(self.of(TensorRef(name, index)) for index in range(count))


def _readers(graph: OpGraph, units: Units) -> dict[TensorRef, tuple[int, ...]]:
    """What units read of each other, and which do."""
    found: dict[TensorRef, dict[int, None]] = {}
    for unit, names in enumerate(units.ops):
        for tensor in (tensor for name in names for tensor in graph[name].inputs):
            if units.of_op[tensor.op] != unit:
                found.setdefault(tensor, {})[unit] = None
    return {tensor: tuple(reading) for tensor, reading in found.items()}


def _tensors(
    graph: OpGraph, units: Units, sizes: _Sizes, readers: Mapping[TensorRef, tuple[int, ...]]
) -> tuple[Tensor, ...]:
    """What is read, and behind that for each unit its control edges as one tensor of 0 bytes."""
    waiting: dict[int, dict[int, None]] = {}
    for unit, names in enumerate(units.ops):
        for control in (control for name in names for control in graph[name].control_inputs):
            if units.of_op[control] != unit:
                waiting.setdefault(units.of_op[control], {})[unit] = None
    numbers = {tensor: number for number, tensor in enumerate(readers)}
    found = [
        Tensor(
            units.of_op[tensor.op],
            sizes.of(tensor),
            reading,
            _handed_on(graph, units, numbers, tensor),
        )
        for tensor, reading in readers.items()
    ]
    found += [Tensor(source, 0.0, tuple(reading)) for source, reading in waiting.items()]
    return tuple(found)


def _handed_on(
    graph: OpGraph, units: Units, numbers: Mapping[TensorRef, int], tensor: TensorRef
) -> int | None:
    """The number of the tensor whose memory another one has; None if it has memory of its own."""
    op = graph[tensor.op]
    alone = len(units.ops[units.of_op[op.name]]) == 1
    if not alone or tensor.index or op.kind not in op_types.HANDS_ON or not op.inputs:
        return None
    return numbers.get(op.inputs[0])


def _together(
    graph: OpGraph, units: Units, given: Iterable[Sequence[str]]
) -> Iterable[tuple[int, ...]]:
    """Units that are placed as one."""
    for unit, names in enumerate(units.ops):
        for name in names:
            # What a loop puts out is where the loop is.
            if graph[name].kind == "Exit":
                yield units.of_op[graph[name].inputs[0].op], unit
            for tensor in graph[name].inputs:
                if graph.spec(tensor).dtype in STAYS:
                    yield units.of_op[tensor.op], unit
    yield from _conditionals(graph, units)
    for members in given:
        inside = tuple(units.of_op[name] for name in members if name in units.of_op)
        if inside:
            yield inside


def _conditionals(graph: OpGraph, units: Units) -> Iterable[tuple[int, ...]]:
    """The units of each v1 conditional, from its ``Switch`` ops to its ``Merge`` ops."""
    around = predicates_around(graph)

    def inside(name: str) -> frozenset[str]:
        op = graph[name]
        return around[name] | ({op.inputs[1].op} if op.kind == "Switch" else frozenset())

    members: dict[str, dict[int, None]] = {}
    for name, unit in units.of_op.items():
        predicates = set(inside(name))
        if graph[name].kind == "Merge":
            for tensor in graph[name].inputs:
                predicates |= inside(tensor.op)
        for predicate in predicates:
            members.setdefault(predicate, {})[unit] = None
    return [tuple(own) for own in members.values()]


def _constraints(
    graph: OpGraph,
    units: Units,
    devices: Sequence[Device],
    given: Mapping[str, Sequence[str]],
) -> dict[str, tuple[str, ...]]:
    """Those that are given, and one for each placeholder.

    Raises:
        PlanError: a constraint keeps a placeholder from where values are fed.
    """
    found = {text: tuple(names) for text, names in given.items()}
    for name in units.of_op:
        if graph[name].kind in op_types.PLACEHOLDERS and devices:
            first = devices[0].name
            for text, names in given.items():
                if first not in names and _matches(text, name):
                    raise PlanError(
                        f"the constraint '{text}' keeps the placeholder '{name}' from '{first}', "
                        "where values are fed: let it match what reads that, not the placeholder"
                    )
            found.setdefault(re.escape(name), (first,))
    return found


def _matches(text: str, name: str) -> bool:
    try:
        return re.fullmatch(text, name) is not None
    except re.error:  # of which `Problem` tells
        return False
