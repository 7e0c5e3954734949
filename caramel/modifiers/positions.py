"""Ops beside the training step that tell how far an iterator is, and put it back there.

TensorFlow tells it in a form of its own, with all that a pipeline holds: what it has shuffled, say.
"""

from __future__ import annotations

from typing import Any

from caramel.core.names import TensorRef, added, in_replica
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import SCALAR, GraphWriter, copy_of

_WHAT = "position"
_IGNORE = 1  # what ops in a pipeline keep in their kernels, such as numbers drawn at random


def position(worker: int, iterator: str) -> TensorRef:
    """How far a worker's iterator is, as a string."""
    return TensorRef(added(worker, _WHAT, "text", iterator))


def to_put_back(worker: int, iterator: str) -> TensorRef:
    """Placeholder of what `put_back_op` gives to the iterator."""
    return TensorRef(added(worker, _WHAT, "given", iterator))


def put_back_op(worker: int, iterator: str) -> str:
    """Puts a worker's iterator, which is initialised, where it was."""
    return added(worker, _WHAT, "put_back", iterator)


def tell_positions(graph_def: Any, plan: Plan) -> Any:
    """Add these ops for each iterator of the step."""
    iterators = dict.fromkeys(pipeline.iterator for pipeline in plan.job.pipelines)
    if not iterators:
        return graph_def
    told = copy_of(graph_def)
    devices = {node.name: node.device for node in graph_def.node}
    writer = GraphWriter(told)
    for worker in range(plan.workers):
        for iterator in iterators:
            handle = TensorRef(in_replica(worker, iterator))
            _add(writer, worker, iterator, handle, devices[handle.op])
    return told


def _add(writer: GraphWriter, worker: int, iterator: str, handle: TensorRef, device: str) -> None:
    state = writer.add(
        added(worker, _WHAT, "state", iterator),
        "SerializeIterator",
        [handle],
        device=device,
        external_state_policy=_IGNORE,
    )
    writer.add(
        position(worker, iterator).op, "SerializeTensor", [state], device=device, T="variant"
    )
    given = writer.add(
        to_put_back(worker, iterator).op, "Placeholder", device=device, dtype="string", shape=SCALAR
    )
    parsed = writer.add(
        added(worker, _WHAT, "parsed", iterator),
        "ParseTensor",
        [given],
        device=device,
        out_type="variant",
    )
    writer.add(
        put_back_op(worker, iterator), "DeserializeIterator", [handle, parsed], device=device
    )
