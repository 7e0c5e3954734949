"""Lets what is the same on every worker count once in gradients that are no means.

A weight decay in a loss that is a sum over the examples is added to the gradient of each worker's
part.
"""

from __future__ import annotations

from typing import Any

from caramel.core.dtypes import dtype_name
from caramel.core.facts import SUM, Weight
from caramel.core.names import TensorRef, added, in_replica, tensor_in_replica
from caramel.core.plan import Plan
from caramel.core.planned_job import SharedInput
from caramel.modifiers.batch_weights import SHARE_DTYPE, counted
from caramel.modifiers.graph_writer import GraphWriter, copy_of, read_instead


def count_once(graph_def: Any, plan: Plan) -> Any:
    """Let workers read something else in place of what is to count once."""
    shared = {each: plan.weight(own) for own in plan.job.gradients for each in own.shared}
    if plan.workers == 1 or not shared:
        return graph_def
    changed = copy_of(graph_def)
    nodes = {node.name: node for node in changed.node}
    for worker in range(plan.workers):
        once = _Once(GraphWriter(changed), worker, plan.job.devices[worker])
        for each, weight in shared.items():
            if worker or weight != SUM:
                node = nodes[in_replica(worker, each.op)]
                after = once.in_place_of(each, weight, node.attr["T"].type)
                read_instead(node, {tensor_in_replica(worker, each.tensor): after})
    return changed


class _Once:
    """Writes what a worker reads in place of what is to count once."""

    def __init__(self, writer: GraphWriter, worker: int, device: str) -> None:
        self._writer, self._worker, self._device = writer, worker, device
        self._made: dict[tuple[TensorRef, Weight], TensorRef] = {}

    def in_place_of(self, shared: SharedInput, weight: Weight, dtype: int) -> TensorRef:
        """What is read in place of a tensor; `dtype` is the number of its dtype."""
        key = (shared.tensor, weight)
        if key not in self._made:
            own = tensor_in_replica(self._worker, shared.tensor)
            name = f"{shared.tensor.op}-{shared.tensor.index}-{len(self._made)}"
            # Only worker 0 adds it; the others add zeros in its place.
            if weight == SUM:
                self._made[key] = self._add("ZerosLike", [own], name, T=dtype_name(dtype))
            # Counts of the workers' own may not add up to that of the whole batch (none is less
            # than 1, say): each divides by how many times it would count.
            else:
                self._made[key] = self._divided(own, weight, name, dtype_name(dtype))
        return self._made[key]

    def _divided(self, own: TensorRef, weight: Weight, name: str, dtype: str) -> TensorRef:
        times = counted(self._worker, weight)
        if dtype != SHARE_DTYPE:
            cast = {"SrcT": SHARE_DTYPE, "DstT": dtype}
            times = self._add("Cast", [times], f"{name}/times", **cast)
        return self._add("RealDiv", [own, times], name, T=dtype)

    def _add(self, kind: str, inputs: list[TensorRef], name: str, **attributes: str) -> TensorRef:
        full_name = added(self._worker, "counts_once", name)
        attribute: dict[str, Any] = dict(attributes)
        return self._writer.add(full_name, kind, inputs, device=self._device, **attribute)
