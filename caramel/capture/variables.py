"""Which variables does a graph have, wherever they are registered?

Collections tell of most, also those of the user's own. A variable that is in none of them is known
from the ops that TensorFlow made with it: its handle, the assignment of its initial value, and a
read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Set
from typing import Any

import tensorflow as tf

from caramel.core import op_types
from caramel.core.errors import GraphError, ReferenceVariableError
from caramel.core.facts import Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import parse_tensor

tf1 = tf.compat.v1


def variables_of(graph: tf.Graph, op_graph: OpGraph, step: Set[str]) -> Iterator[Variable]:
    """All variables of the graph, each once: those of TensorFlow's collections come first.

    Args:
        graph: the user's graph.
        op_graph: the same as plain data.
        step: ops that a training step runs; what they assign is no initial value.

    Raises:
        GraphError: a variable cannot be distributed.
    """
    keys = tf1.GraphKeys
    usual = (keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES, keys.LOCAL_VARIABLES)
    others = [key for key in graph.get_all_collection_keys() if key not in usual]
    # By identity: `==` of variables may compare their values.
    trainable = {id(v) for v in graph.get_collection(keys.TRAINABLE_VARIABLES)}
    saved = {
        id(v)
        for key in (keys.GLOBAL_VARIABLES, keys.SAVEABLE_OBJECTS)
        for v in graph.get_collection(key)
    }
    updated = _updated_by_optimizers(op_graph)
    made = _Made(op_graph, step)
    seen = set()
    for collection in (*usual, *others):
        for variable in graph.get_collection(collection):
            if id(variable) in seen or not _is_variable_of(graph, variable):
                continue
            seen.add(id(variable))
            found = _variable(graph, variable, made)
            # Another object of the same variable.
            if found.handle in made.described:
                continue
            made.described.add(found.handle)
            is_trained = id(variable) in trainable or found.handle in updated
            yield dataclasses.replace(found, trainable=is_trained, saved=id(variable) in saved)
    for found in made.uncollected(graph):
        yield dataclasses.replace(found, trainable=found.handle in updated)


def _is_variable_of(graph: tf.Graph, entry: Any) -> bool:
    """Whether what a collection holds is a variable of this graph, and not what assigning gave."""
    is_variable = isinstance(entry, tf.Variable) and hasattr(entry, "to_proto")
    return is_variable and entry.graph is graph and entry.initializer is not None


def _updated_by_optimizers(graph: OpGraph) -> frozenset[str]:
    """The handles of variables that optimizers' ops update, however they are collected."""
    return frozenset(
        op.inputs[0].op
        for op in graph
        if op.kind.startswith(op_types.UPDATE_PREFIXES) and op.inputs
    )


def _variable(graph: tf.Graph, variable: Any, made: _Made) -> Variable:
    """A variable that a collection holds; whether it is trained or saved is not known yet."""
    try:
        with graph.as_default():  # without it, TensorFlow refuses to describe the variable
            description = variable.to_proto()
    except TypeError:  # its `trainable` is true, but no bool, which TensorFlow cannot describe
        return made.variable(graph, variable.handle.op.name)
    if not description.is_resource:
        raise ReferenceVariableError(
            f"'{variable.name}' is a reference variable; create resource variables instead "
            "(tf1.enable_resource_variables() before the graph is built, or use_resource=True)"
        )
    name = variable.name.partition(":")[0]
    part = description.save_slice_info_def
    return Variable(
        name=name,
        handle=parse_tensor(description.variable_name).op,
        initializer=description.initializer_name,
        read=parse_tensor(description.snapshot_name).op,
        spec=_spec(variable.dtype.base_dtype, variable.shape),
        trainable=False,
        saved=False,
        full_name=part.full_name or name,
        slice_spec=_slice_spec(part) if part.full_name else "",
    )


def _spec(dtype: tf.DType, shape: tf.TensorShape) -> TensorSpec:
    return TensorSpec(dtype.name, None if shape.rank is None else tuple(shape.as_list()))


def _slice_spec(part: Any) -> str:
    """A slice as checkpoints write it: the whole's shape, then offset and length per dimension."""
    whole = " ".join(str(size) for size in part.full_shape)
    pairs = zip(part.var_offset, part.var_shape, strict=True)
    return f"{whole} " + ":".join(f"{offset},{size}" for offset, size in pairs)


class _Made:
    """The ops that TensorFlow made with each variable.

    Attributes:
        described: handles of the variables that are known already.
    """

    def __init__(self, graph: OpGraph, step: Set[str]) -> None:
        self._graph, self._step = graph, step
        self.described: set[str] = set()
        self._assignments: dict[str, list[Op]] = {}
        self._reads: dict[str, str] = {}
        for op in graph:
            if op.kind == "AssignVariableOp":
                self._assignments.setdefault(op.inputs[0].op, []).append(op)
            # What waits for something may read a later value.
            elif op.kind == "ReadVariableOp" and not op.control_inputs:
                self._reads.setdefault(op.inputs[0].op, op.name)

    def uncollected(self, graph: tf.Graph) -> Iterator[Variable]:
        """Variables that are not described yet and can be initialised and read."""
        for op in self._graph:
            is_new = op.kind == op_types.VARIABLE and op.name not in self.described
            if is_new and op.name in self._reads and self._initializer(op.name) is not None:
                yield self.variable(graph, op.name)

    def variable(self, graph: tf.Graph, handle: str) -> Variable:
        """What the ops tell of a variable.

        Raises:
            GraphError: nothing gives it an initial value, or nothing reads it.
        """
        initializer = self._initializer(handle)
        if initializer is None or handle not in self._reads:
            raise GraphError(
                f"variable '{handle}' has no op that "
                + ("reads it" if initializer else "gives it an initial value")
                + "; create it with tf1.get_variable or tf.Variable"
            )
        op = graph.get_operation_by_name(handle)
        return Variable(
            name=handle,
            handle=handle,
            initializer=initializer,
            read=self._reads[handle],
            spec=_spec(op.get_attr("dtype"), tf.TensorShape(op.get_attr("shape"))),
            trainable=False,
            saved=False,
            full_name=handle,
        )

    def _initializer(self, handle: str) -> str | None:
        """The first assignment of a value that does not depend on the variable itself."""
        for op in self._assignments.get(handle, ()):
            of_step = op.name in self._step
            if not of_step and handle not in self._graph.ancestors([op.inputs[1].op]):
                return op.name
        return None
