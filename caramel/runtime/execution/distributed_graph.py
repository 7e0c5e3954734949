"""The distributed graph: one part for each plan, as a session sends it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.core.errors import GraphError
from caramel.core.names import in_variant
from caramel.core.util.sizes import bytes_text
from caramel.native.malloc import total_bytes

_MOST_BYTES = 2**31 - 1  # of a protocol message
_NODE_BYTES = 12_000
"""What a node takes where a session drives the job, in the client and the master: 11 kB are
measured (a second plan of ResNet-152 for 8 workers, before its first step)."""

MEMORY_SHARE = 0.25
"""Of the memory of this machine, that graphs may take for a further plan to be tried."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """The nodes that carry one plan out.

    Attributes:
        graph_def: a serialised GraphDef.
        variant: the number of the variant to which its nodes belong, without its prefix.
        nodes: how many there are.
    """

    graph_def: bytes
    variant: int
    nodes: int


class DistributedGraph:
    """The parts of a distributed graph; more may come.

    Attributes:
        parts: one for each variant, in the order in which they came.
    """

    def __init__(self) -> None:
        self.parts: list[GraphPart] = []
        self._names: set[str] = set()
        self._named = self._imported = 0  # how many parts are in what is made when it is asked for
        self._graph: tf.Graph | None = None
        self._reading = threading.Lock()  # by one thread; another may add a part meanwhile

    def add(self, graph_def: Any, variant: int = 0) -> None:
        """Add a part.

        Raises:
            GraphError: it is larger than a message can be.
        """
        size = graph_def.ByteSize()
        if size > _MOST_BYTES:
            raise GraphError(
                f"the distributed graph takes {bytes_text(size)}, and TensorFlow can send "
                f"{bytes_text(_MOST_BYTES)}; every worker has a copy of the constants of the "
                "graph: feed large ones, or make them variables"
            )
        self.parts.append(GraphPart(graph_def.SerializeToString(), variant, len(graph_def.node)))

    @property
    def size(self) -> tuple[int, int]:
        """How many nodes there are, and how many bytes it takes to send them."""
        return sum(p.nodes for p in self.parts), sum(len(p.graph_def) for p in self.parts)

    def has_room(self) -> bool:
        """Whether the graph of one more plan, as large as those before, would leave enough memory
        for everything else."""
        nodes, _ = self.size
        larger = nodes * (1 + 1 / len(self.parts))
        return larger * _NODE_BYTES <= MEMORY_SHARE * total_bytes()

    def __contains__(self, name: str) -> bool:
        """Whether there is an op of this name."""
        with self._reading:
            for part in self.parts[self._named :]:
                nodes = _parsed(part).node
                self._names.update(in_variant(part.variant, node.name) for node in nodes)
                self._named += 1
            return name in self._names

    def as_graph(self) -> tf.Graph:
        """The graph with all its parts as a `tf.Graph`, always the same.

        That takes TensorFlow some time, since it makes Python objects for all ops and tensors.
        """
        with self._reading:
            if self._graph is None:
                self._graph = tf.Graph()
            for part in self.parts[self._imported :]:
                _import(self._graph, _parsed(part), part.variant)
                self._imported += 1
            return self._graph


def _parsed(part: GraphPart) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(part.graph_def)
    return graph_def


def _import(graph: tf.Graph, graph_def: Any, variant: int) -> None:
    """Add nodes to a graph.

    It takes the devices off the nodes and sets them by a device function, which is faster than the
    device scope that TensorFlow would open for each node.
    """
    devices = {}
    for node in graph_def.node:
        devices[in_variant(variant, node.name)] = node.device
        node.ClearField("device")
    with graph.as_default(), graph.device(lambda op: devices[op.name]):
        scope = in_variant(variant, "")  # with a slash at the end TensorFlow takes it as it is
        tf.graph_util.import_graph_def(graph_def, name=scope)
