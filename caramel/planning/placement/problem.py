"""The partitioning and scheduling problem: vertices, tensors, devices, and what must be together.

Section 2 of Mayer, Mayer and Laich, *The TensorFlow Partitioning and Scheduling Problem: It's the
Critical Path!* (DIDL 2017). Unlike there, a tensor with several readers on another device goes
there once, as in TensorFlow.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caramel.core.errors import GraphError, PlanError


@dataclass(frozen=True, slots=True)
class Vertex:
    """What is executed once, on one device.

    Attributes:
        name: unique among vertices.
        operations: what executing it takes, c; a device of speed s takes c / s seconds.
        resident_bytes: memory that it holds all the time, r, such as a variable's.
        is_aside: whether it is executed when what it reads is there, beside what its device does,
            as updates of variables are. Only memory looks at it: a schedule may have it last, since
            nothing waits for it, and what it reads would be kept until then.
    """

    name: str
    operations: float = 0.0
    resident_bytes: float = 0.0
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a vertex puts out. A control edge is a tensor of 0 bytes.

    Attributes:
        source: the number of the vertex that puts it out.
        bytes: its size.
        readers: numbers of the vertices that wait for it.
        hands_on: the number of the tensor whose memory it shares where it is put out, as the output
            of a reshape does, or that of reading a variable (then the variable's handle, of 0
            bytes). None if it has memory of its own.
    """

    source: int
    bytes: float
    readers: tuple[int, ...] = ()
    hands_on: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """What executes vertices, one at a time.

    Attributes:
        name: unique among devices.
        speed: operations a second.
        memory_bytes: its capacity, C; infinite if not limited.
    """

    name: str
    speed: float = 1.0
    memory_bytes: float = math.inf


@dataclass(frozen=True)
class Problem:
    """A graph, and the devices on which it is to be placed.

    Attributes:
        vertices: in the order of definition, which breaks ties; need not be that of their edges.
        tensors: what they put out.
        devices: at least one; their order breaks ties.
        rates: bytes a second from each device to each other; the diagonal is not looked at.
        latency_s: what each transfer takes besides.
        together: numbers of vertices that must be on the same device (the paper's collocation
            constraints, equation 3). Sets that have a vertex in common are one.
        constraints: names of the devices on which vertices whose whole name matches a regular
            expression may be (equation 4). If several match, all of them hold.

    Raises:
        GraphError: a name is given twice, a number is of nothing, a size is negative or not a
            number, or vertices wait for each other.
        PlanError: no devices, a name given twice, a speed, rate or memory that is not more than 0,
            a matrix of another size, a constraint that matches nothing or names an unknown device,
            or members of a group that exclude each other.
    """

    vertices: tuple[Vertex, ...]
    tensors: tuple[Tensor, ...]
    devices: tuple[Device, ...]
    rates: tuple[tuple[float, ...], ...]
    latency_s: float = 0.0
    together: tuple[tuple[int, ...], ...] = ()
    constraints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_devices(self.devices)
        _check_rates(self.rates, self.latency_s, self.devices)
        _check_vertices(self.vertices)
        _check_tensors(self.tensors, len(self.vertices))
        for vertex in (vertex for members in self.together for vertex in members):
            _check_number(vertex, len(self.vertices), "what must be together is")
        # These raise if vertices wait for each other, or constraints cannot be met.
        self.order  # noqa: B018
        self.allowed  # noqa: B018

    # Edges --------------------------------------------------------------------------------------

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the tensors that each vertex puts out."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for number, tensor in enumerate(self.tensors):
            found[tensor.source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def sends(self) -> tuple[tuple[tuple[int, float, tuple[int, ...]], ...], ...]:
        """The same with their bytes and their readers, each reader once: for going through fast."""
        numbered = [
            (number, tensor.bytes, tuple(dict.fromkeys(tensor.readers)))
            for number, tensor in enumerate(self.tensors)
        ]
        return tuple(tuple(numbered[number] for number in numbers) for numbers in self.outputs)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the tensors that each vertex waits for."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for number, tensor in enumerate(self.tensors):
            for reader in dict.fromkeys(tensor.readers):
                found[reader].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def aside(self) -> tuple[int, ...]:
        """Numbers of the vertices that are executed aside."""
        return tuple(number for number, vertex in enumerate(self.vertices) if vertex.is_aside)

    @cached_property
    def successors(self) -> tuple[dict[int, float], ...]:
        """What waits for each vertex, and the bytes of the largest tensor between the two."""
        found: list[dict[int, float]] = [{} for _ in self.vertices]
        for tensor in self.tensors:
            own = found[tensor.source]
            for reader in tensor.readers:
                own[reader] = max(own.get(reader, 0.0), tensor.bytes)
        return tuple({vertex: own[vertex] for vertex in sorted(own)} for own in found)

    @cached_property
    def predecessors(self) -> tuple[dict[int, float], ...]:
        """What each vertex waits for, and the bytes of the largest tensor between the two."""
        found: list[dict[int, float]] = [{} for _ in self.vertices]
        for vertex, successors in enumerate(self.successors):
            for successor, size in successors.items():
                found[successor][vertex] = size
        return tuple(found)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All vertices, each after those that it waits for; ties in the order of definition."""
        waits = [len(predecessors) for predecessors in self.predecessors]
        ready = [vertex for vertex, count in enumerate(waits) if not count]
        order: list[int] = []
        while ready:
            vertex = heapq.heappop(ready)
            order.append(vertex)
            for successor in self.successors[vertex]:
                waits[successor] -= 1
                if not waits[successor]:
                    heapq.heappush(ready, successor)
        if len(order) < len(self.vertices):
            raise GraphError(f"vertices wait for each other: {' -> '.join(self._cycle(order))}")
        return tuple(order)

    def _cycle(self, done: Iterable[int]) -> list[str]:
        """Names along one cycle among the vertices that are not `done`."""
        left = set(range(len(self.vertices))) - set(done)
        vertex, path = min(left), dict[int, None]()
        while vertex not in path:
            path[vertex] = None
            vertex = next(other for other in self.predecessors[vertex] if other in left)
        around = list(path)[list(path).index(vertex) :]
        return [self.vertices[number].name for number in (vertex, *reversed(around))]

    # Groups -------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Vertices that are placed as one, in the order of their first members."""
        root = list(range(len(self.vertices)))

        def find(vertex: int) -> int:
            while root[vertex] != vertex:
                root[vertex] = vertex = root[root[vertex]]
            return vertex

        for members in self.together:
            for other in members[1:]:
                first, second = sorted((find(members[0]), find(other)))
                root[second] = first
        found: dict[int, list[int]] = {}
        for vertex in range(len(self.vertices)):
            found.setdefault(find(vertex), []).append(vertex)
        return tuple(map(tuple, found.values()))

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """The number of the group of each vertex."""
        found = [0] * len(self.vertices)
        for number, members in enumerate(self.groups):
            for vertex in members:
                found[vertex] = number
        return tuple(found)

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the devices on which each group may be, none of them empty."""
        everywhere = tuple(range(len(self.devices)))
        if not self.constraints:
            return (everywhere,) * len(self.groups)
        of_vertex = self._constrained()
        return tuple(
            self._allowed_for(members, of_vertex)
            if any(vertex in of_vertex for vertex in members)
            else everywhere
            for members in self.groups
        )

    @cached_property
    def group_operations(self) -> tuple[float, ...]:
        """Operations of all members of each group."""
        return tuple(
            math.fsum(self.vertices[vertex].operations for vertex in members)
            for members in self.groups
        )

    @cached_property
    def group_inputs(self) -> tuple[tuple[int, ...], ...]:
        """Tensors that members of each group read from outside, each once."""
        return tuple(
            tuple(
                {
                    number: None
                    for vertex in members
                    for number in self.inputs[vertex]
                    if self.group_of[self.tensors[number].source] != group
                }
            )
            for group, members in enumerate(self.groups)
        )

    def _constrained(self) -> dict[int, frozenset[int]]:
        """The devices of each vertex that a constraint matches."""
        numbers = {device.name: number for number, device in enumerate(self.devices)}
        found: dict[int, frozenset[int]] = {}
        for text, names in self.constraints.items():
            unknown = [name for name in names if name not in numbers]
            if unknown or not names:
                raise PlanError(
                    f"the constraint '{text}' names {unknown or 'no device'}; there are "
                    f"{sorted(numbers)}"
                )
            devices = frozenset(numbers[name] for name in names)
            matches = self._matching(text)
            for vertex in matches:
                found[vertex] = found.get(vertex, devices) & devices
                if not found[vertex]:
                    raise PlanError(
                        f"'{self.vertices[vertex].name}' may be on no device: several constraints "
                        f"match it, '{text}' among them, and no device is in all of them"
                    )
        return found

    def _matching(self, text: str) -> list[int]:
        """Vertices whose whole name a regular expression matches."""
        try:
            matches = re.compile(text).fullmatch
        except re.error as error:
            raise PlanError(f"the constraint '{text}' is no regular expression: {error}") from None
        found = [number for number, vertex in enumerate(self.vertices) if matches(vertex.name)]
        if not found:
            raise PlanError(
                f"the constraint '{text}' matches no name of what is placed: that is what a step "
                "runs, and the expression must match a whole name"
            )
        return found

    def _allowed_for(
        self, members: Sequence[int], of_vertex: Mapping[int, frozenset[int]]
    ) -> tuple[int, ...]:
        """The devices on which all members of a group may be."""
        allowed = frozenset(range(len(self.devices)))
        for vertex in members:
            if vertex in of_vertex:
                allowed &= of_vertex[vertex]
        if not allowed:
            said = [
                f"'{self.vertices[vertex].name}' on "
                f"{[self.devices[device].name for device in sorted(of_vertex[vertex])]}"
                for vertex in members
                if vertex in of_vertex
            ]
            raise PlanError(
                f"some ops must be on one device, but may only be: {', '.join(said)}; let their "
                "constraints have a device in common"
            )
        return tuple(sorted(allowed))


def equal_rates(devices: int, bytes_per_s: float) -> tuple[tuple[float, ...], ...]:
    """The rates of devices that are all connected alike."""
    return ((bytes_per_s,) * devices,) * devices


# Checks -----------------------------------------------------------------------------------------


def _check_devices(devices: Sequence[Device]) -> None:
    if not devices:
        raise PlanError("there is no device to place anything on")
    twice = _repeated(device.name for device in devices)
    if twice:
        raise PlanError(f"devices are given more than once: {twice}")
    for device in devices:
        _check_positive(device.speed, f"the speed of device '{device.name}'", finite=True)
        _check_positive(device.memory_bytes, f"the memory of device '{device.name}'")


def _check_rates(
    rates: Sequence[Sequence[float]], latency_s: float, devices: Sequence[Device]
) -> None:
    sizes = {len(row) for row in rates}
    if len(rates) != len(devices) or sizes != {len(devices)}:
        raise PlanError(
            f"rates have {len(rates)} rows of {sorted(sizes)} numbers; {len(devices)} devices need "
            f"as many rows of as many numbers"
        )
    for sender, row in zip(devices, rates, strict=True):
        for receiver, rate in zip(devices, row, strict=True):
            if sender is not receiver:
                _check_positive(rate, f"the rate from '{sender.name}' to '{receiver.name}'")
    if not 0 <= latency_s < math.inf:
        raise PlanError(f"the latency is {latency_s} s; it cannot be")


def _check_positive(value: float, what: str, *, finite: bool = False) -> None:
    # A comparison with NaN is false.
    if not value > 0 or (finite and math.isinf(value)):
        raise PlanError(f"{what} is {value}; it must be more than 0")


def _check_vertices(vertices: Sequence[Vertex]) -> None:
    twice = _repeated(vertex.name for vertex in vertices)
    if twice:
        raise GraphError(f"names of vertices are given more than once: {twice}")
    for vertex in vertices:
        for value, what in ((vertex.operations, "operations"), (vertex.resident_bytes, "bytes")):
            if not 0 <= value < math.inf:
                raise GraphError(f"'{vertex.name}' has {value} {what}; it cannot be")


def _check_tensors(tensors: Sequence[Tensor], vertices: int) -> None:
    for number, tensor in enumerate(tensors):
        _check_number(tensor.source, vertices, f"the source of tensor {number} is")
        for reader in tensor.readers:
            _check_number(reader, vertices, f"a reader of tensor {number} is")
        if not 0 <= tensor.bytes < math.inf:
            raise GraphError(f"tensor {number} has {tensor.bytes} bytes; it cannot be")
        handed = tensor.hands_on
        if handed is not None and not (
            0 <= handed < len(tensors) and tensor.source in tensors[handed].readers
        ):
            raise GraphError(f"tensor {number} hands on {handed}, which its source does not read")


def _check_number(number: int, count: int, what: str) -> None:
    if not 0 <= number < count:
        raise GraphError(f"{what} vertex {number}; there are {count}")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
