"""The device of every op of a graph, also of those that no step runs.

What a step does not run goes with what it works on: what initialises a variable with that, what is
computed from a tensor where that is. The rest is where the client is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from caramel.core.dtypes import STAYS
from caramel.core.graph import OpGraph
from caramel.core.placement import Placement


def placed_everywhere(
    graph: OpGraph,
    known: Mapping[str, int],
    devices: Sequence[str],
    together: Iterable[Sequence[str]] = (),
) -> Placement:
    """A placement of all ops.

    Args:
        graph: the single-device graph.
        known: the numbers of the devices of those that are placed already.
        devices: names of the devices.
        together: names of ops that must be on one device, in sets.
    """
    number_of = dict(known)
    order = graph.topological_order()
    # What has a resource or a variant is where its users are, as far as any of them is known.
    _joined(graph, number_of, together)
    for name in order:
        if name not in number_of:
            found = _first(number_of, (tensor.op for tensor in graph[name].inputs))
            if found is not None:
                number_of[name] = found
    for name in reversed(order):
        if name not in number_of:
            number_of[name] = _first(number_of, graph.consumers[name]) or 0
    ops: list[list[str]] = [[] for _ in devices]
    for name in graph.ops:
        ops[number_of[name]].append(name)
    return Placement(tuple(devices), tuple(map(tuple, ops)))


def _first(number_of: Mapping[str, int], names: Iterable[str]) -> int | None:
    """The device of the first of some ops that has one."""
    return next((number_of[name] for name in names if name in number_of), None)


def _joined(graph: OpGraph, number_of: dict[str, int], together: Iterable[Sequence[str]]) -> None:
    """Put ops that must be on one device with one of them that is placed; else at the client."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    for op in graph:
        for tensor in op.inputs:
            if graph.spec(tensor).dtype in STAYS:
                root[find(op.name)] = find(tensor.op)
    for names in together:
        for name in names[1:]:
            root[find(name)] = find(names[0])
    groups: dict[str, list[str]] = {}
    for name in list(root):
        groups.setdefault(find(name), []).append(name)
    for names in groups.values():
        place = _first(number_of, names)
        for name in names:
            number_of.setdefault(name, 0 if place is None else place)
