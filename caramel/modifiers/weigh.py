"""Says how much each worker's part of a batch counts.

A worker's *share* is its number of examples times the number of workers, divided by the number of
examples of all: 1 if parts are equal. Its gradient, the mean over its own part, counts that much in
the mean over the workers, which is then the mean over the whole batch. Where the client splits the
batch, it feeds the shares if they are not all 1; where input pipelines deliver parts of open size,
the workers tell each other their numbers at the start of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caramel.graph import TensorSpec
from caramel.modifiers.nodes import SCALAR, GraphWriter, copy_of
from caramel.names import TensorRef, added, tensor_in_replica
from caramel.plan import Plan

SHARE_DTYPE = "float64"
_SCALAR = TensorSpec(SHARE_DTYPE, ())


def share(worker: int) -> TensorRef:
    """The worker's share."""
    return TensorRef(added(worker, "share"))


def uneven(worker: int) -> TensorRef:
    """Whether the worker's share is not 1."""
    return TensorRef(added(worker, "uneven"))


def counts(worker: int) -> TensorRef:
    """The numbers of examples of all workers, where pipelines deliver them."""
    return TensorRef(added(worker, "counts"))


def weigh(graph_def: Any, plan: Plan) -> Any:
    """Add each worker's share."""
    if plan.workers == 1:
        return graph_def
    weighed = copy_of(graph_def)
    writer = GraphWriter(weighed)
    if plan.examples is None:
        for worker, device in enumerate(plan.devices):
            _add_fed_share(writer, worker, device)
        return weighed
    counted = [
        _add_count(writer, worker, device, tensor_in_replica(worker, plan.examples), graph_def)
        for worker, device in enumerate(plan.devices)
    ]
    for worker, device in enumerate(plan.devices):
        _add_counted_share(writer, worker, device, counted)
    return weighed


def _add_fed_share(writer: GraphWriter, worker: int, device: str) -> None:
    flag = TensorSpec("bool", ())
    one = writer.constant(added(worker, "share/default"), np.array(1.0), device=device)
    even = writer.constant(added(worker, "uneven/default"), np.array(False), device=device)
    kind = "PlaceholderWithDefault"
    writer.add(
        share(worker).op,
        kind,
        [one],
        device=device,
        outputs=[_SCALAR],
        dtype=SHARE_DTYPE,
        shape=SCALAR,
    )
    writer.add(
        uneven(worker).op,
        kind,
        [even],
        device=device,
        outputs=[flag],
        dtype="bool",
        shape=SCALAR,
    )


def _add_count(
    writer: GraphWriter, worker: int, device: str, examples: TensorRef, graph_def: Any
) -> TensorRef:
    """The first dimension of the worker's batch, as a scalar."""
    node = next(node for node in graph_def.node if node.name == examples.op)
    number = node.attr["output_types"].list.type[examples.index]
    shape_op = writer.add(
        added(worker, "count/shape"), "Shape", [examples], device=device, out_type="int64"
    )
    writer.last.attr["T"].type = number
    zero = writer.constant(added(worker, "count/axis"), np.array(0, np.int32), device=device)
    first = writer.add(
        added(worker, "count/first"),
        "GatherV2",
        [shape_op, zero, zero],
        device=device,
        outputs=[TensorSpec("int64", ())],
        Tparams="int64",
        Tindices="int32",
        Taxis="int32",
    )
    return writer.add(
        added(worker, "count"),
        "Cast",
        [first],
        device=device,
        outputs=[_SCALAR],
        SrcT="int64",
        DstT=SHARE_DTYPE,
    )


def _add_counted_share(
    writer: GraphWriter, worker: int, device: str, counted: list[TensorRef]
) -> None:
    workers = len(counted)
    packed = writer.add(
        counts(worker).op,
        "Pack",
        counted,
        device=device,
        outputs=[TensorSpec(SHARE_DTYPE, (workers,))],
        T=SHARE_DTYPE,
        N=workers,
        axis=0,
    )
    axis = writer.constant(added(worker, "total/axis"), np.array([0], np.int32), device=device)
    total = writer.add(
        added(worker, "total"),
        "Sum",
        [packed, axis],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
        Tidx="int32",
        keep_dims=False,
    )
    number = writer.constant(
        added(worker, "share/workers"), np.array(float(workers)), device=device
    )
    scaled = writer.add(
        added(worker, "share/scaled"),
        "Mul",
        [counted[worker], number],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
    )
    own = writer.add(
        share(worker).op,
        "RealDiv",
        [scaled, total],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
    )
    one = writer.constant(added(worker, "uneven/one"), np.array(1.0), device=device)
    writer.add(
        uneven(worker).op,
        "NotEqual",
        [own, one],
        device=device,
        outputs=[TensorSpec("bool", ())],
        T=SHARE_DTYPE,
        incompatible_shape_error=True,
    )
