"""The dataflow graph as plain data: ops, what they read, and what they put out."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import InvariantError
from caramel.core.names import TensorRef

ARGUMENT = "_Arg"
"""The kind of op that stands for an argument in the body of a function."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor: its dtype's name and its shape.

    `shape` is None when the rank is unknown; single dimensions may be None.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def elements(self) -> int | None:
        """Number of elements, or None if not known."""
        if self.shape is None or None in self.shape:
            return None
        return math.prod(dimension for dimension in self.shape if dimension is not None)

    @property
    def bytes(self) -> int | None:
        """Size in bytes, or None if not known."""
        size, elements = dtype_bytes(self.dtype), self.elements
        return None if size is None or elements is None else size * elements


@dataclass(frozen=True, slots=True)
class Op:
    """One op: its kind ("MatMul"), where it is placed, what it reads and what it puts out.

    `attributes` has those that say which axes an op works on.
    """

    name: str
    kind: str
    device: str
    inputs: tuple[TensorRef, ...]
    control_inputs: tuple[str, ...]
    outputs: tuple[TensorSpec, ...] = ()
    stateful: bool = False
    functions: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def output_bytes(self) -> tuple[int | None, ...]:
        """Bytes of each output, None where unknown."""
        return tuple(spec.bytes for spec in self.outputs)

    @property
    def sources(self) -> Iterator[str]:
        """Names of the ops that this op waits for, by data or by control."""
        for tensor in self.inputs:
            yield tensor.op
        yield from self.control_inputs


@dataclass(frozen=True, slots=True)
class Function:
    """A library function.

    `body` is the function as a graph, in which arguments are ops of the kind `ARGUMENT` and which
    knows no functions itself, and `results` what it returns.
    """

    name: str
    arguments: tuple[str, ...]
    body: OpGraph
    results: tuple[TensorRef, ...] = ()


@dataclass(frozen=True)
class OpGraph:
    """All ops of a graph by name, in the order of their definition.

    `constants` has the values of constants that are single integers, `numbers` the elements of
    small numeric constants, flattened.
    """

    ops: Mapping[str, Op]
    functions: Mapping[str, Function] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Op:
        return self.ops[name]

    def __contains__(self, name: str) -> bool:
        return name in self.ops

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def with_edges(self, edges: Iterable[tuple[str, str]]) -> OpGraph:
        """The graph in which the second op of each pair waits for the first one, too."""
        added: dict[str, list[str]] = {}
        for before, after in edges:
            # Only new edges: if there are none, the graph itself is returned.
            if before not in self.ops[after].control_inputs:
                added.setdefault(after, []).append(before)
        if not added:
            return self
        ops = dict(self.ops)
        for name, controls in added.items():
            waits = (*ops[name].control_inputs, *dict.fromkeys(controls))
            ops[name] = replace(ops[name], control_inputs=waits)
        return OpGraph(ops, self.functions, self.constants, self.numbers)

    def spec(self, tensor: TensorRef) -> TensorSpec:
        """What is known of a tensor; nothing is known of outputs that no definition names."""
        outputs = self.ops[tensor.op].outputs
        return outputs[tensor.index] if tensor.index < len(outputs) else TensorSpec("unknown", None)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the ops that wait for each op, by data or by control, each once."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.ops}
        for op in self:
            for source in op.sources:
                if source not in found:
                    raise InvariantError(f"'{op.name}' reads '{source}', which does not exist")
                found[source][op.name] = None
        return {name: tuple(names) for name, names in found.items()}

    def ancestors(self, names: Iterable[str], *, stop: frozenset[str] = frozenset()) -> set[str]:
        """The given ops and everything they wait for; nothing is followed beyond `stop`."""
        return self._behind(names, stop, controls=True)

    def data_ancestors(
        self, names: Iterable[str], *, stop: frozenset[str] = frozenset()
    ) -> set[str]:
        """The given ops and all they are computed from: the same, not counting control edges."""
        return self._behind(names, stop, controls=False)

    def data_descendants(
        self, names: Iterable[str], *, stop: frozenset[str] = frozenset()
    ) -> set[str]:
        """The given ops and all that is computed from them, not counting control edges.

        What is in `stop` is left out.
        """
        found: set[str] = set()
        waiting = [name for name in names if name not in stop]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [
                    reader
                    for reader in self.consumers[name]
                    if reader not in stop
                    and any(tensor.op == name for tensor in self.ops[reader].inputs)
                ]
        return found

    def _behind(self, names: Iterable[str], stop: frozenset[str], *, controls: bool) -> set[str]:
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name not in stop:
                op = self.ops[name]
                waiting += [tensor.op for tensor in op.inputs if tensor.op not in seen]
                if controls:
                    waiting += op.control_inputs
        return seen

    def topological_order(self) -> tuple[str, ...]:
        """All names, every op after what it waits for; ties in the order of definition.

        The edges that close a loop (from ``NextIteration``) do not count.

        Raises:
            InvariantError: an op waits for one that does not exist; or the graph has a cycle that
                is no loop, and the error names the ops on one.
        """
        return self._order

    @cached_property
    def _order(self) -> tuple[str, ...]:  # several analyzers ask for it
        position = {name: index for index, name in enumerate(self.ops)}
        consumers = self.consumers
        waits = dict.fromkeys(self.ops, 0)
        for op in self:
            # The edges that close a loop.
            if op.kind != "NextIteration":
                for consumer in consumers[op.name]:
                    waits[consumer] += 1
        ready = [position[name] for name, count in waits.items() if count == 0]
        heapq.heapify(ready)
        names = list(self.ops)
        order: list[str] = []
        while ready:
            name = names[heapq.heappop(ready)]
            order.append(name)
            if self.ops[name].kind == "NextIteration":
                continue
            for consumer in consumers[name]:
                waits[consumer] -= 1
                if waits[consumer] == 0:
                    heapq.heappush(ready, position[consumer])
        if len(order) < len(self.ops):
            raise InvariantError(f"the graph has a cycle: {' -> '.join(self._cycle(set(order)))}")
        return tuple(order)

    def _cycle(self, done: set[str]) -> list[str]:
        """The names along one cycle among the ops that are not `done`."""
        name = next(name for name in self.ops if name not in done)
        path: dict[str, None] = {}
        while name not in path:
            path[name] = None
            name = next(source for source in self.ops[name].sources if source not in done)
        names = list(path)
        # The path leads from ops to what they wait for.
        return [name, *reversed(names[names.index(name) :])]
