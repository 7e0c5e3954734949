"""How many examples does a worker's step have, as the graph or measured sizes tell?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from caramel.core import op_types
from caramel.core.dtypes import dtype_bytes
from caramel.core.facts import TrainingJob, WorkerInputs
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.names import TensorRef


def batch_of(
    graph: OpGraph,
    job: TrainingJob,
    inputs: WorkerInputs,
    traced_bytes: Mapping[str, int] = MappingProxyType({}),
) -> int | None:
    """A worker's number of examples; None if nothing tells it, or inputs tell different ones.

    Args:
        traced_bytes: sizes of tensors that the graph leaves open, by name (`TimingTable`).
    """
    sizes: set[int | None] = set()
    forward = graph.data_ancestors([job.loss.op])
    for name in inputs.reasons:
        op = graph[name]
        if name in forward and (
            op.kind in op_types.PLACEHOLDERS or op.kind in op_types.ITERATOR_READS
        ):
            sizes |= {
                _rows(spec, traced_bytes.get(str(TensorRef(name, slot))))
                for slot, spec in enumerate(op.outputs)
                if spec.shape
            }
    if traced_bytes:
        sizes.discard(None)  # of text, or of several dimensions
    # Inputs of several sizes: none of them is known to be the batch's.
    return sizes.pop() if len(sizes) == 1 else None


def _rows(spec: TensorSpec, size_bytes: int | None) -> int | None:
    """The first dimension, of a tensor that has one."""
    first, *others = spec.shape or (None,)
    if first is not None or size_bytes is None:
        return first
    if any(other is None for other in others):
        return None
    row_bytes = (dtype_bytes(spec.dtype) or 0) * math.prod(other or 0 for other in others)
    return size_bytes // row_bytes if row_bytes else None
