"""Reads input pipelines of the graph to their ends, element by element, to evaluate them.

One reader takes the elements, where `session.run` takes them, so they come as on one device,
whatever the pipeline does. They leave the graph at the first tensors that can be brought here: a
sparse or ragged component is a handle when it leaves its iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.runtime.steps.exchangeable import HANDLES
from caramel.runtime.work import Work

READS = frozenset({"IteratorGetNext", "IteratorGetNextSync"})
"""Ops that take elements, and tell by an error that there is none left."""

_Size = tuple[TensorRef, Callable[[Any], int]]  # and how many examples there are by its value

# How many examples a composite has: by the kind of the op that makes it of a handle, which of its
# outputs says so, and how.
_COMPOSITE_SIZES: Mapping[str, tuple[int, Callable[[Any], int]]] = {
    "DeserializeSparse": (2, lambda dense_shape: int(dense_shape[0])),
    "RaggedTensorFromVariant": (0, lambda row_splits: len(row_splits) - 1),
}


@dataclass(frozen=True, slots=True)
class Element:
    """What pipelines have given once.

    Attributes:
        values: what is fed in place of reading it.
        examples: how many there are in it.
    """

    values: Mapping[TensorRef, Any]
    examples: int


@dataclass(frozen=True, slots=True)
class PipelineReads:
    """What of the elements of pipelines is needed to compute something.

    Attributes:
        readers: the ops that take them.
        tensors: where they leave the graph.
        size: tells the number of examples; None if an element is one.
    """

    readers: tuple[str, ...]
    tensors: tuple[TensorRef, ...]
    size: _Size | None

    @classmethod
    def of(
        cls, graph: OpGraph, wanted: Sequence[TensorRef], fed: frozenset[str]
    ) -> PipelineReads | None:
        """What is needed for some tensors; None if they read no pipeline.

        Args:
            wanted: the tensors.
            fed: ops whose outputs are fed.
        """
        closure = graph.ancestors([tensor.op for tensor in wanted], stop=fed) - fed
        readers = tuple(sorted(op for op in closure if graph[op].kind in READS))
        if not readers:
            return None
        own = [tensor for reader in readers for tensor in _outputs(graph, reader)]
        used = [t for t in own if t in wanted or _consumers(graph, t, closure)]
        tensors = _brought(graph, used, closure)
        size = _size(graph, own, tensors)
        if size is not None:
            tensors.append(size[0])
        return cls(readers, tuple(dict.fromkeys(tensors)), size)

    def elements(self, work: Work, feeds: Mapping[TensorRef, Any]) -> Iterator[Element]:
        """All elements, from where the pipelines are to the end of the first one.

        Args:
            work: reads them.
            feeds: what is fed, as far as reading needs it.

        Raises:
            WorkerLostError, tf.errors.OpError: as `caramel.runtime.session.Session.run`.
        """
        graph = work.running.job.context.op_graph
        needed = graph.ancestors(tensor.op for tensor in self.tensors)
        fed = {str(tensor): value for tensor, value in feeds.items() if tensor.op in needed}
        fetches = [str(tensor) for tensor in self.tensors]
        while True:
            try:
                values = dict(zip(self.tensors, work.run(fetches, fed), strict=True))
            except tf.errors.OutOfRangeError:
                return
            yield Element(values, self._examples(values))

    def _examples(self, values: Mapping[TensorRef, Any]) -> int:
        if self.size is None:
            return 1
        tensor, number = self.size
        value = values[tensor]
        return number(value) if value.ndim else 1


def _outputs(graph: OpGraph, op: str) -> list[TensorRef]:
    return [TensorRef(op, index) for index, _ in enumerate(graph[op].outputs)]


def _consumers(graph: OpGraph, tensor: TensorRef, closure: set[str]) -> list[str]:
    """The ops among some that a tensor goes to."""
    readers = graph.consumers[tensor.op]
    return [name for name in readers if name in closure and tensor in graph[name].inputs]


def _brought(graph: OpGraph, used: Sequence[TensorRef], closure: set[str]) -> list[TensorRef]:
    """The first tensors on the way from some that are no handles."""
    found: dict[TensorRef, None] = {}
    waiting = list(used)
    while waiting:
        tensor = waiting.pop()
        if graph.spec(tensor).dtype not in HANDLES:
            found[tensor] = None
            continue
        for name in _consumers(graph, tensor, closure):
            waiting += _outputs(graph, name)
    return sorted(found)


def _size(graph: OpGraph, own: Sequence[TensorRef], brought: Sequence[TensorRef]) -> _Size | None:
    """What tells the number of examples of an element: its first dense part that has rows, else its
    first composite.

    Args:
        own: the components of elements.
        brought: where they leave the graph.
    """
    for tensor in own:
        spec = graph.spec(tensor)
        if spec.dtype not in HANDLES and spec.shape != ():
            return tensor, len
    for tensor in brought:
        index, number = _COMPOSITE_SIZES.get(graph[tensor.op].kind, (None, len))
        if index is not None:
            return TensorRef(tensor.op, index), number
    return None
