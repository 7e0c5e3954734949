"""What crosses between the tasks of a distributed graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from caramel.core.devices import task_of
from caramel.core.graph import TensorSpec
from caramel.core.graph_reader import read_outputs
from caramel.core.names import TensorRef, control_string, parse_input, source_op


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that is sent from one task to another.

    `tensor` is None for a control edge, over which nothing but the fact that `source` has run
    travels.
    """

    source: str
    tensor: TensorRef | None
    consumer: str
    pair: tuple[str, str]
    bytes: int | None

    def __str__(self) -> str:
        what = control_string(self.source) if self.tensor is None else str(self.tensor)
        return f"'{what}' -> '{self.consumer}' ({self.bytes} bytes)"


class Wiring:
    """The edges of a graph, and the tasks of its ops.

    Args:
        graph_def: a GraphDef proto, with ``_output_shapes`` at the nodes that send.
        definition_of: the OpDef proto of a kind of op; None if nothing is known of its outputs.
    """

    def __init__(self, graph_def: Any, definition_of: Callable[[str], Any]) -> None:
        self._definition_of = definition_of
        self._nodes = {node.name: node for node in graph_def.node}
        self._tasks = {name: _task(node.device) for name, node in self._nodes.items()}
        self._sources: dict[str, list[str]] = {}
        self._crossing: list[tuple[str, str]] = []  # inputs from another task, and who reads them
        self._outputs: dict[str, tuple[TensorSpec, ...]] = {}  # of ops that send
        # A large graph has hundreds of thousands of edges, few of which cross. So nodes are not
        # read as ops (`OpGraph`); only the outputs of those that send are.
        for name, node in self._nodes.items():
            self._read(name, node.input)

    def edges(self, ops: Iterable[str] | None = None) -> Iterator[Crossing]:
        """What the given ops (default: all) read from other tasks, in their order."""
        wanted = self._nodes if ops is None else frozenset(ops)
        for text, consumer in self._crossing:
            if consumer in wanted:
                source, tensor = source_op(text), parse_input(text)
                pair = self._tasks[source], self._tasks[consumer]
                size = 0 if tensor is None else self._bytes(tensor)
                yield Crossing(source, tensor, consumer, pair, size)

    def crossings(self, ops: Iterable[str] | None = None) -> list[Crossing]:
        """What is sent to the given ops (default: all), in the order of the ops that read it.

        A tensor is sent to a task once, for all that read it there; the first of them is named.
        """
        found: dict[tuple[TensorRef | str | None, str], Crossing] = {}
        for edge in self.edges(ops):
            is_control = edge.tensor is None
            key = (edge.source, edge.consumer) if is_control else (edge.tensor, edge.pair[1])
            found.setdefault(key, edge)
        return list(found.values())

    def ancestors(self, ops: Iterable[str]) -> set[str]:
        """The given ops and everything they wait for."""
        found = set(ops)
        waiting = list(found)
        while waiting:
            for source in self._sources[waiting.pop()]:
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return found

    def _read(self, name: str, inputs: Iterable[str]) -> None:
        """Take note of what an op reads."""
        tasks, target, sources = self._tasks, self._tasks[name], []
        for text in inputs:
            source = source_op(text)
            sources.append(source)
            if tasks[source] != target:
                self._crossing.append((text, name))
        self._sources[name] = sources

    def _bytes(self, tensor: TensorRef) -> int | None:
        """The size of a tensor; None if it is open."""
        outputs = self._outputs.get(tensor.op)
        if outputs is None:
            node = self._nodes[tensor.op]
            definition = self._definition_of(node.op)
            outputs = () if definition is None else read_outputs(node, definition)
            self._outputs[tensor.op] = outputs
        return outputs[tensor.index].bytes if tensor.index < len(outputs) else None


def _task(device: str) -> str:
    return task_of(device) or device
