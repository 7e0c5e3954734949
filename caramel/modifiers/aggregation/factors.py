"""The aggregation of a gradient that every worker computes from the factors of all workers.

Where a gradient is the product of much smaller tensors (`analyzers.factors`), these are sent in its
place (sufficient factor broadcasting, Xie et al., UAI 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.core.decision import Group
from caramel.core.dtypes import dtype_bytes
from caramel.core.facts import SUM, Factors
from caramel.core.graph import TensorSpec
from caramel.core.names import (
    TensorRef,
    factor_checksums,
    in_group,
    in_replica,
    parse_input,
    tensor_in_replica,
)
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.modifiers.aggregation.dense import SMALL_FLOATS
from caramel.modifiers.aggregation.worker_writer import Desk, InGroup


class FactorSum(InGroup):
    """The aggregation of one gradient by its factors.

    Only processors that compute alike give the same bits everywhere; `add_checksums` lets a step
    tell.

    Args:
        nodes: of the graph, by name.
    """

    def __init__(self, desk: Desk, plan: Plan, group: Group, nodes: Mapping[str, Any]) -> None:
        super().__init__(desk, group)
        self._plan, self._nodes = plan, nodes
        self._weight = plan.weight(plan.gradient(group.members[0]))
        self._averages = self._weight != SUM

    def of(self, gradient: AggregatedGradient) -> list[TensorRef]:
        """The aggregated gradient on each worker."""
        factors = gradient.factors
        assert factors is not None
        workers = range(self._plan.workers)
        sent = [self._sent(worker, factors) for worker in workers]
        return [self._summed(worker, sent, gradient) for worker in workers]

    def _sent(self, worker: int, factors: Factors) -> list[TensorRef]:
        """A worker's factors when they may be sent, put out by ops of Caramel's own."""
        gates = self._desk.gates(self._group, worker)
        sent = []
        for number, (tensor, spec) in enumerate(zip(factors.tensors, factors.specs, strict=True)):
            own = tensor_in_replica(worker, tensor)
            self._add(worker, ("factor", str(number)), "Identity", [own], [spec], T=spec.dtype)
            sent.append(self._desk.gated(gates))
        return sent

    def _summed(
        self, worker: int, sent: Sequence[Sequence[TensorRef]], gradient: AggregatedGradient
    ) -> TensorRef:
        """The gradients of all workers, added from left to right, on one worker."""
        spec, totals = gradient.spec, list[TensorRef]()
        # In the order of the workers: the sum has the bits that it has where `shuffle` adds up
        # gradients.
        for source, tensors in enumerate(sent):
            own = tensor_in_replica(worker, gradient.values)
            if source != worker:
                # Products that wait to be added take memory. So from the third on, one begins when
                # those before the one before it are added.
                own = self._product(worker, source, tensors, gradient.factors, totals[-2:-1])
            # The share of a worker is sent, too: its gradient counts the same wherever it is
            # computed.
            own = self._weighed(worker, source, own, spec)
            if totals:
                operands = [totals[-1], own]
                name = ("sum", str(source))
                own = self._add(worker, name, "AddV2", operands, [spec], T=spec.dtype)
            totals.append(own)
        total = totals[-1]
        if self._averages and spec.dtype not in SMALL_FLOATS:
            total = self._desk.divided(self._name(worker, "mean"), worker, total, spec)
        return self._add(worker, ("aggregated", "0"), "Identity", [total], [spec], T=spec.dtype)

    def _weighed(self, worker: int, source: int, own: TensorRef, spec: TensorSpec) -> TensorRef:
        """The gradient of one worker as it is to be added."""
        if not self._averages:
            return own
        part = str(source)
        names = [self._name(worker, name, part) for name in ("even", "weighed", "part")]
        weighed = self._desk.weighed(names, worker, own, spec, weight=self._weight, source=source)
        if spec.dtype not in SMALL_FLOATS:
            return weighed
        return self._desk.divided(self._name(worker, "scaled", part), worker, weighed, spec)

    def _product(
        self,
        worker: int,
        source: int,
        tensors: Sequence[TensorRef],
        factors: Factors | None,
        waits: Sequence[TensorRef],
    ) -> TensorRef:
        """The gradient of one worker, computed on another."""
        assert factors is not None
        replaced = {
            tensor_in_replica(worker, before): after
            for before, after in zip(factors.tensors, tensors, strict=True)
        }
        result = tensors[0]
        for number, op in enumerate(factors.ops):
            node = self._nodes[in_replica(worker, op)]
            reads = [parse_input(text) for text in node.input]
            inputs = [replaced.get(tensor, tensor) for tensor in reads if tensor is not None]
            name = self._name(worker, "product", str(source), str(number))
            # By the very ops of the single-device graph, so that the bits are those of the worker's
            # own.
            result = self._desk.again(name, worker, node, inputs, waits if number == 0 else ())
            replaced = {TensorRef(node.name): result}
        return result


def add_checksums(desk: Desk, plan: Plan) -> None:
    """Add what sums up the bits of all gradients that are computed from factors.

    Nothing of it runs unless it is fetched (`core.names.factor_checksums`).
    """
    for worker in range(plan.workers) if plan.factored else ():
        sums = [_checksum(desk, plan, group, worker) for group in plan.factored]
        name, outputs = factor_checksums(worker).op, [TensorSpec("int64", (len(sums),))]
        desk.add(name, worker, "Pack", sums, outputs, T="int64", N=len(sums), axis=0)


def _checksum(desk: Desk, plan: Plan, group: Group, worker: int) -> TensorRef:
    """The sum of a gradient's elements if they were integers; it may overflow."""
    spec = plan.gradient(group.members[0]).spec
    width = 8 * (dtype_bytes(spec.dtype) or 1)

    def add(part: str, kind: str, inputs: list[TensorRef], out: TensorSpec, **attr: Any) -> Any:
        name = in_group(group.name, worker, "checksum", part)
        return desk.add(name, worker, kind, inputs, [out], **attr)

    def cast(part: str, tensor: TensorRef, before: TensorSpec, after: str) -> Any:
        out = TensorSpec(after, before.shape)
        return add(part, "Cast", [tensor], out, SrcT=before.dtype, DstT=after)

    gradient = TensorRef(in_group(group.name, worker, "aggregated", "0"))
    bits = TensorSpec(f"int{width}", spec.shape)
    numbers = add("bits", "Bitcast", [gradient], bits, T=spec.dtype, type=bits.dtype)
    if width < 32:  # too few to tell much
        numbers, bits = cast("wide", numbers, bits, "int32"), TensorSpec("int32", spec.shape)
    axes = desk.constant(worker, list(range(len(spec.shape or ()))), "int32")
    total, whole = TensorSpec(bits.dtype, ()), {"T": bits.dtype, "Tidx": "int32"}
    summed = add("sum", "Sum", [numbers, axes], total, **whole, keep_dims=False)
    return summed if total.dtype == "int64" else cast("total", summed, total, "int64")
