"""Writes the nodes of aggregations; what all groups of a worker need is written once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.decision import Group
from caramel.core.dtypes import dtype_bytes, dtype_number
from caramel.core.facts import MEAN, Weight
from caramel.core.graph import TensorSpec
from caramel.core.names import (
    TensorRef,
    added,
    arrived,
    control_string,
    in_dtype,
    in_group,
    sliced,
    token_taken,
)
from caramel.core.patterns import aligned_elements
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.results import opens_gate
from caramel.modifiers.batch_weights import SHARE_DTYPE, multiplication, share, uneven
from caramel.modifiers.carry_over import keep
from caramel.modifiers.graph_writer import GraphWriter


class InGroup:
    """Writes the nodes of the aggregation of one group.

    Args:
        scope: part of the names of all nodes, to keep several sums of one group apart.
    """

    def __init__(self, desk: Desk, group: Group, scope: tuple[str, ...] = ()) -> None:
        self._desk, self._group, self._scope = desk, group, scope

    def _add(
        self,
        worker: int,
        parts: tuple[str, ...],
        kind: str,
        inputs: Sequence[TensorRef],
        outputs: Sequence[TensorSpec],
        **attributes: Any,
    ) -> TensorRef:
        name = self._name(worker, *parts)
        return self._desk.add(name, worker, kind, inputs, outputs, **attributes)

    def _name(self, worker: int, *parts: str) -> str:
        return in_group(self._group.name, worker, *self._scope, *parts)


class Desk:
    """Writes nodes on workers; equal constants are one node."""

    def __init__(self, writer: GraphWriter, plan: Plan) -> None:
        self._writer, self._devices = writer, plan.job.places
        self._constants: dict[tuple[Any, ...], TensorRef] = {}
        self._shares: dict[tuple[int, str, str], TensorRef] = {}
        self._plan = plan

    def add(
        self,
        name: str,
        worker: int,
        kind: str,
        inputs: Sequence[TensorRef],
        outputs: Sequence[TensorSpec],
        **attributes: Any,
    ) -> TensorRef:
        """Add a node on the device of a worker, or of a server's place."""
        return self._writer.add(
            name, kind, inputs, device=self._devices[worker], outputs=outputs, **attributes
        )

    def again(
        self,
        name: str,
        worker: int,
        node: Any,
        inputs: Sequence[TensorRef],
        waits: Sequence[TensorRef] = (),
    ) -> TensorRef:
        """Add a node that does what another one does, with other inputs.

        Args:
            node: the other one, a NodeDef.
            waits: what else has to be there.
        """
        self.add(name, worker, node.op, inputs, ())
        for key, value in node.attr.items():
            if not key.startswith("_"):  # where the other one stands, what it was made of
                self._writer.last.attr[key].CopyFrom(value)
        return self.gated([tensor.op for tensor in waits])

    def together(
        self,
        name: str,
        worker: int,
        tensors: Sequence[TensorRef],
        specs: Sequence[TensorSpec],
    ) -> list[TensorRef]:
        """Hand tensors on, without a copy, when all of them are there."""
        self.add(name, worker, "IdentityN", tensors, specs)
        types = self._writer.last.attr["T"].list.type
        types.extend(dtype_number(spec.dtype) for spec in specs)
        return [TensorRef(name, number) for number in range(len(tensors))]

    def concatenated(
        self, name: str, worker: int, tensors: Sequence[TensorRef], spec: TensorSpec
    ) -> TensorRef:
        """Vectors side by side in one of the given dtype and length; one alone is not copied."""
        if len(tensors) == 1:
            return tensors[0]
        return self.add(
            name,
            worker,
            "ConcatV2",
            [*tensors, self.constant(worker, 0, "int32")],
            [spec],
            T=spec.dtype,
            N=len(tensors),
            Tidx="int32",
        )

    def slices(
        self, name: str, worker: int, flat: TensorRef, sizes: Sequence[int], dtype: str
    ) -> list[TensorRef]:
        """A vector cut into pieces of the given lengths.

        A piece that begins and ends aligned shares the vector's memory; any other is copied.
        """
        if len(sizes) == 1:
            return [flat]
        unit = aligned_elements(dtype_bytes(dtype) or 1)
        ends = list(itertools.accumulate(sizes))
        # `SplitV` copies all pieces if one of them has to be copied, so those behind the last
        # border that is aligned are cut off one by one.
        count = next((n for n, end in enumerate(ends) if end % unit), len(sizes))
        if count == len(sizes):
            return self._split(name, worker, flat, sizes, dtype)
        pieces: list[TensorRef] = []
        if count:
            first = self._slice(sliced(name, "aligned"), worker, flat, 0, ends[count - 1], dtype)
            aligned = sizes[:count]
            pieces = [first] if count == 1 else self._split(name, worker, first, aligned, dtype)
        for number in range(count, len(sizes)):
            begin, size = ends[number] - sizes[number], sizes[number]
            pieces.append(self._slice(sliced(name, number), worker, flat, begin, size, dtype))
        return pieces

    def _split(
        self, name: str, worker: int, flat: TensorRef, sizes: Sequence[int], dtype: str
    ) -> list[TensorRef]:
        split = self.add(
            name,
            worker,
            "SplitV",
            [flat, self.constant(worker, list(sizes), "int64"), self.constant(worker, 0, "int32")],
            [TensorSpec(dtype, (size,)) for size in sizes],
            T=dtype,
            Tlen="int64",
            num_split=len(sizes),
        )
        return [TensorRef(split.op, number) for number in range(len(sizes))]

    def _slice(
        self, name: str, worker: int, flat: TensorRef, begin: int, size: int, dtype: str
    ) -> TensorRef:
        ends = [self.constant(worker, [number], "int64") for number in (begin, size)]
        spec = TensorSpec(dtype, (size,))
        return self.add(name, worker, "Slice", [flat, *ends], [spec], T=dtype, Index="int64")

    def reshaped(self, name: str, worker: int, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """The tensor in the shape of `spec`."""
        shape = self.constant(worker, list(spec.shape or ()), "int32")
        return self.add(
            name, worker, "Reshape", [tensor, shape], [spec], T=spec.dtype, Tshape="int32"
        )

    def divided(self, name: str, worker: int, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """The tensor divided by the number of workers."""
        number = self.constant(worker, self._plan.workers, spec.dtype)
        return self.add(name, worker, "RealDiv", [tensor, number], [spec], T=spec.dtype)

    def constant(self, worker: int, value: Any, dtype: str) -> TensorRef:
        """A constant on a worker; equal ones are one node."""
        array = np.array(value, tf.as_dtype(dtype).as_numpy_dtype)
        key = (worker, dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = added(worker, "constant", str(len(self._constants)))
            self._constants[key] = self._writer.constant(name, array, device=self._devices[worker])
        return self._constants[key]

    def share(self, worker: int, dtype: str, weight: Weight = MEAN) -> TensorRef:
        """The worker's share as a scalar of a dtype."""
        own = share(worker, weight)
        if dtype == SHARE_DTYPE:
            return own
        key = (worker, dtype, weight.name)
        if key not in self._shares:
            self._shares[key] = self.add(
                in_dtype(own.op, dtype),
                worker,
                "Cast",
                [own],
                [TensorSpec(dtype, ())],
                SrcT=SHARE_DTYPE,
                DstT=dtype,
            )
        return self._shares[key]

    def weighed(
        self,
        names: Sequence[str],
        worker: int,
        tensor: TensorRef,
        spec: TensorSpec,
        *,
        weight: Weight = MEAN,
        source: int | None = None,
    ) -> TensorRef:
        """A gradient times a worker's share; at run time nothing is done where that is 1.

        Args:
            names: of three nodes.
            worker: where.
            weight: by which it counts; where that is a count of its own, a worker that has none
                may have got no number, and counts nothing.
            source: whose share; by default the worker's own.
        """
        whose = worker if source is None else source
        choice, product, merged = names
        inputs = [tensor, uneven(whose, weight)]
        # With equal parts, which is the usual case, the gradient is not even copied.
        even = self.add(choice, worker, "Switch", inputs, [spec, spec], T=spec.dtype)
        factors = [TensorRef(even.op, 1), self.share(whose, spec.dtype, weight)]
        weighed = self.add(product, worker, multiplication(weight), factors, [spec], T=spec.dtype)
        outputs = [spec, TensorSpec("int32", ())]
        return self.add(merged, worker, "Merge", [even, weighed], outputs, T=spec.dtype, N=2)

    def keep(self, kept: str, worker: int, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """Keep a tensor for the next step; returns what that reads."""
        return keep(self._writer, kept, worker, tensor, spec, self._devices[worker])

    def gates(self, group: Group, worker: int) -> list[str]:
        """What has to have run on a worker before it sends anything of a group."""
        between = self._plan.gates_between_steps
        return [
            token_taken(worker, arrived(gate.after))
            if gate in between
            else opens_gate(self._plan, gate.after, worker)
            for gate in self._plan.decision.gates
            if gate.group == group.name
        ]

    def gated(self, gates: Sequence[str]) -> TensorRef:
        """Let the node that was added last wait for gates; returns its first output."""
        self._writer.last.input.extend(control_string(name) for name in gates)
        return TensorRef(self._writer.last.name)
