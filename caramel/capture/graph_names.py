"""Names of a graph's tensors, operations and variables, from what users pass for them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caramel.core.errors import NotTensorFlowError, UnknownNameError
from caramel.core.names import parse_tensor
from caramel.core.util.suggestion import suggestion


class GraphNames:
    """Turns what users pass (tensors, operations, variables, names) into names of one graph."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph

    def operation(self, given: Any, what: str) -> str:
        """The name of the operation that `given` is, belongs to, or names."""
        name = name_of(given, what, self._graph)
        operation = name.partition(":")[0]
        try:
            return str(self._graph.get_operation_by_name(operation).name)
        except KeyError:
            known = [op.name for op in self._graph.get_operations()]
            raise UnknownNameError(
                f"{what}: there is no '{name}' in the graph" + suggestion(operation, known)
            ) from None

    def tensor(self, given: Any, what: str) -> tf.Tensor:
        """The tensor that `given` is or names; an operation with one output stands for that."""
        operation = self._graph.get_operation_by_name(self.operation(given, what))
        name = name_of(given, what, self._graph)
        if ":" not in name:
            name = f"{name}:0"
        index = parse_tensor(name).index
        if index >= len(operation.outputs):
            raise UnknownNameError(
                f"{what}: '{operation.name}' has {len(operation.outputs)} outputs, no '{name}'"
            )
        return operation.outputs[index]


def name_of(given: Any, what: str, graph: tf.Graph | None = None) -> str:
    """The name of what a user gave.

    Raises:
        NotTensorFlowError: it is no tensor, operation, variable or name.
        UnknownNameError: it belongs to another graph.
    """
    if isinstance(given, str):
        if not given:
            raise UnknownNameError(f"{what}: the empty string is no name")
        return given
    if isinstance(given, tf.Variable):
        # A variable of eager mode has none; it is refused below.
        given = given.op if hasattr(given, "op") else given
    if not isinstance(given, tf.Operation | tf.Tensor) or not hasattr(given, "graph"):
        raise NotTensorFlowError(
            f"{what} must be a tensor, an operation or a name of the graph, not {describe(given)}"
        )
    if graph is not None and given.graph is not graph:
        raise UnknownNameError(f"{what}: '{given.name}' belongs to another graph")
    return str(given.name)


def describe(value: Any) -> str:
    """The type of a value, and its beginning, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
