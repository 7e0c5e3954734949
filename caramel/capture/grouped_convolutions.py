"""Makes depthwise convolutions of those that have a group for each channel.

TensorFlow has no gradient of grouped convolutions for processors. Keras lets XLA compile them
there, which workers do not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.errors import UnsupportedOpError
from caramel.core.names import source_op

tf1 = tf.compat.v1

_DEPTHWISE = {
    "Conv2D": "DepthwiseConv2dNative",
    "Conv2DBackpropInput": "DepthwiseConv2dNativeBackpropInput",
    "Conv2DBackpropFilter": "DepthwiseConv2dNativeBackpropFilter",
}
_KEPT = ("T", "strides", "padding", "explicit_paddings", "data_format", "dilations")


def make_depthwise(graph_def: Any) -> None:
    """Replace such convolutions and their gradients, in place.

    Args:
        graph_def: a GraphDef proto with ``_output_shapes``.

    Raises:
        UnsupportedOpError: there is the gradient of a convolution with other groups.
    """
    shapes = {
        node.name: [[d.size for d in shape.dim] for shape in node.attr["_output_shapes"].list.shape]
        for node in graph_def.node
        if "_output_shapes" in node.attr
    }
    filters = {
        node.name: _filter_shape(node, shapes)
        for node in graph_def.node
        if node.op in _DEPTHWISE and node.attr["data_format"].s == b"NHWC"
    }
    for node in list(graph_def.node):
        shape = filters.get(node.name)
        channels = _channels(node, shapes) if shape else None
        if not shape or not channels or shape[2] == channels:
            continue
        if shape[2] != 1:
            if node.op == "Conv2D":
                continue
            raise UnsupportedOpError(
                f"'{node.name}' is the gradient of a convolution with groups of {shape[2]} of "
                f"{channels} channels, which TensorFlow does not have for processors; use one "
                "group, or one for each channel"
            )
        _replace(graph_def, node, shape, channels)


def _filter_shape(node: Any, shapes: dict[str, list[list[int]]]) -> list[int] | None:
    """The shape of a convolution's filter, if it is known."""
    if node.op == "Conv2DBackpropFilter":
        found = shapes.get(node.name, [])
    else:
        found = shapes.get(source_op(node.input[1]), [])
    return found[0] if found and len(found[0]) == 4 and min(found[0]) > 0 else None


def _channels(node: Any, shapes: dict[str, list[list[int]]]) -> int | None:
    """How many channels go into a convolution, if that is known."""
    is_input = node.op == "Conv2DBackpropInput"
    source = node.name if is_input else source_op(node.input[0])
    index = 0 if is_input else int(node.input[0].partition(":")[2] or 0)
    found = shapes.get(source, [])
    known = index < len(found) and len(found[index]) == 4 and found[index][3] > 0
    return found[index][3] if known else None


def _replace(graph_def: Any, node: Any, shape: Sequence[int], channels: int) -> None:
    """Let another op do it, which takes the filter with its channels apart."""
    apart = [shape[0], shape[1], channels, shape[3] // channels]
    dtype, kind = node.attr["T"].type, node.op
    kept = {
        key: tf1.AttrValue.FromString(node.attr[key].SerializeToString())
        for key in _KEPT
        if key in node.attr
    }
    if kind == "Conv2DBackpropFilter":
        own = graph_def.node.add(name=f"{node.name}/depthwise", device=node.device)
        own.input.extend(node.input)
        own.input[1] = _constant(graph_def, f"{node.name}/apart", apart, node.device)
        together = _constant(graph_def, f"{node.name}/together", shape, node.device)
        output = node.attr["_output_shapes"]
        kept_output = tf1.AttrValue.FromString(output.SerializeToString())
        node.op = "Reshape"
        node.attr.clear()
        node.attr["T"].type, node.attr["Tshape"].type = dtype, tf.int32.as_datatype_enum
        node.attr["_output_shapes"].CopyFrom(kept_output)
        del node.input[:]
        node.input.extend([own.name, together])
    else:
        own = node
        size = _constant(graph_def, f"{node.name}/apart", apart, node.device)
        filters = graph_def.node.add(name=f"{node.name}/filter", op="Reshape", device=node.device)
        filters.input.extend([node.input[1], size])
        filters.attr["T"].type, filters.attr["Tshape"].type = dtype, tf.int32.as_datatype_enum
        node.input[1] = filters.name
        for key in [key for key in node.attr if key != "_output_shapes"]:
            del node.attr[key]
    own.op = _DEPTHWISE[kind]
    for key, value in kept.items():
        own.attr[key].CopyFrom(value)


def _constant(graph_def: Any, name: str, values: Sequence[int], device: str) -> str:
    node = graph_def.node.add(name=name, op="Const", device=device)
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    value = tf.make_tensor_proto(np.array(values, np.int32))
    node.attr["value"].tensor.CopyFrom(value)
    return name
