"""Reads variables of a job where they still are, by a graph that has nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.core.devices import task_of
from caramel.core.facts import Variable
from caramel.core.names import TensorRef, added
from caramel.modifiers.graph_writer import GraphWriter

_WHAT = "left"


@dataclass(frozen=True, slots=True)
class Source:
    """A worker's replica of a variable; one on a server is worker 0's.

    Attributes:
        handle: the node that puts out its handle.
    """

    worker: int
    variable: Variable
    handle: Any

    @property
    def task(self) -> str | None:
        """Where it is."""
        return task_of(self.handle.device)


def value_left(worker: int, variable: Variable) -> TensorRef:
    """What a variable of a worker is."""
    return TensorRef(added(worker, _WHAT, "value", variable.name))


def is_left(worker: int, variable: Variable) -> TensorRef:
    """Whether a variable of a worker is there."""
    return TensorRef(added(worker, _WHAT, "is_there", variable.name))


def read_left(sources: Iterable[Source]) -> Any:
    """A GraphDef of `value_left` and `is_left`."""
    graph_def = tf.compat.v1.GraphDef()
    writer = GraphWriter(graph_def)
    for source in sources:
        worker, variable, original = source.worker, source.variable, source.handle
        handle = writer.add(added(worker, _WHAT, "handle", variable.name), "VarHandleOp", device="")
        writer.last.CopyFrom(original)
        writer.last.name = handle.op
        writer.last.attr.pop("_class", None)
        device, dtype = original.device, variable.spec.dtype
        value = value_left(worker, variable).op
        writer.add(value, "ReadVariableOp", [handle], device=device, dtype=dtype)
        writer.add(is_left(worker, variable).op, "VarIsInitializedOp", [handle], device=device)
    return graph_def
