"""How large would tensors be if a batch had so many examples?

Shapes of a graph are open where it takes batches of any size. TensorFlow infers them anew from
placeholders and iterators with a fixed number.
"""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf

from caramel.capture.context import Context
from caramel.core import op_types
from caramel.core.dtypes import STAYS, dtype_bytes

_log = logging.getLogger(__name__)

_OPEN = -1


def sizes_with(context: Context, examples: int) -> dict[str, int]:
    """Bytes of tensors whose size the graph does not know, by their names.

    Those that stay open are left out. So are all of them if the graph cannot take so many examples.

    Args:
        context: the single-device job.
        examples: in a batch, whatever is fed.
    """
    fixed = tf.compat.v1.GraphDef()
    fixed.CopyFrom(context.graph_def)
    for node in fixed.node:
        node.attr.pop("_output_shapes", None)
        for shape in _given_shapes(node):
            if shape.dim and shape.dim[0].size == _OPEN:
                shape.dim[0].size = examples
    graph = tf.Graph()
    with graph.as_default():
        try:
            tf.graph_util.import_graph_def(fixed, name="")
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            _log.info("nothing is known of sizes with %d examples: %s", examples, error)
            return {}
    return {
        tensor.name: tensor.shape.num_elements() * (dtype_bytes(tensor.dtype.base_dtype.name) or 0)
        for op in graph.get_operations()
        for tensor in op.outputs
        if tensor.dtype.name not in STAYS and tensor.shape.is_fully_defined()
    }


def _given_shapes(node: Any) -> list[Any]:
    """The shapes that a node is told by its attributes, and not by what it reads."""
    if node.op in op_types.PLACEHOLDERS and "shape" in node.attr:
        return [node.attr["shape"].shape]
    if node.op.startswith("IteratorGetNext"):
        return list(node.attr["output_shapes"].list.shape)
    return []
