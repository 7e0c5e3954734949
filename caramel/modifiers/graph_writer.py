"""Writes nodes into a GraphDef: the one place that fills in protos of Caramel's own ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from caramel.core.dtypes import dtype_number
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, control_string, input_string, parse_input

SCALAR = tf.TensorShape([])
AttributeValue: TypeAlias = bool | int | float | str | tf.TensorShape | np.ndarray | Sequence[int]


class GraphWriter:
    """Adds nodes to `graph_def` in place."""

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def

    def add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TensorRef] = (),
        *,
        device: str,
        controls: Sequence[str] = (),
        outputs: Sequence[TensorSpec] = (),
        **attributes: AttributeValue,
    ) -> TensorRef:
        """Add one node and return its first output.

        A string attribute is the name of a dtype; `outputs` says what the node puts out.
        """
        node = self._graph_def.node.add(name=name, op=kind, device=device)
        node.input.extend(input_string(tensor) for tensor in inputs)
        node.input.extend(control_string(op) for op in controls)
        for key, value in attributes.items():
            set_attribute(node, key, value)
        for spec in outputs:
            # TensorFlow compares them with its own inference when the graph is imported.
            node.attr["_output_shapes"].list.shape.append(static_shape(spec).as_proto())
        return TensorRef(name)

    @property
    def last(self) -> Any:
        """The node that was added last."""
        return self._graph_def.node[-1]

    def constant(self, name: str, value: np.ndarray, *, device: str) -> TensorRef:
        """Add a constant."""
        dtype = value.dtype.name
        return self.add(
            name,
            "Const",
            device=device,
            outputs=[TensorSpec(dtype, value.shape)],
            value=value,
            dtype=dtype,
        )


def set_attribute(node: Any, key: str, value: AttributeValue) -> None:
    """Set one attribute of a NodeDef; a string is the name of a dtype."""
    attribute = node.attr[key]
    # First, since a bool is an int, too.
    if isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, float):
        attribute.f = value
    elif isinstance(value, str):
        attribute.type = dtype_number(value)
    elif isinstance(value, tf.TensorShape):
        attribute.shape.CopyFrom(value.as_proto())
    elif isinstance(value, np.ndarray):
        attribute.tensor.CopyFrom(tf.make_tensor_proto(value))
    else:
        attribute.list.i.extend(value)


def read_instead(node: Any, replaced: Mapping[TensorRef, TensorRef]) -> None:
    """Let a node read other tensors in place of some."""
    for position, text in enumerate(node.input):
        tensor = parse_input(text)
        if tensor is not None and tensor in replaced:
            node.input[position] = input_string(replaced[tensor])


def static_shape(spec: TensorSpec) -> tf.TensorShape:
    """A spec's shape as TensorFlow has it."""
    return tf.TensorShape(None if spec.shape is None else list(spec.shape))


def copy_of(graph_def: Any) -> Any:
    """A GraphDef of its own with the same content."""
    copied = tf.compat.v1.GraphDef()
    copied.CopyFrom(graph_def)
    return copied
