"""The aggregation of dense tensors: laid side by side, split, summed by a pattern, taken apart.

Every worker lays the members of a group side by side in one flat tensor, splits it into chunks,
carries out the steps of the group's pattern (`caramel.patterns`), joins the chunks and takes the
members out again. Slices that begin aligned share their buffer, so splitting copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caramel.graph import TensorSpec, dtype_bytes
from caramel.modifiers.desk import Desk
from caramel.modifiers.weigh import uneven
from caramel.names import TensorRef, in_group, is_added, kept_flat
from caramel.patterns import Gather, Reduce, Schedule, Send, chunk_sizes, schedule
from caramel.plan import Group, Plan

# Sums of these overflow or lose digits, so every worker's part is scaled before it is added.
_SMALL_FLOATS = frozenset({"float16", "bfloat16"})


class DenseSum:
    """The aggregation of dense tensors of one dtype over all workers.

    Args:
        scope: part of the names of all nodes, to keep several sums of one group apart.
        scaled: whether a mean is wanted where the plan says so; else always the sum.
    """

    def __init__(
        self,
        desk: Desk,
        plan: Plan,
        group: Group,
        *,
        scope: tuple[str, ...] = (),
        scaled: bool = True,
    ) -> None:
        self._desk, self._plan, self._group, self._scope = desk, plan, group, scope
        self._averages = scaled and plan.reduction == "mean"
        self._schedule: Schedule = schedule(
            group.pattern, plan.workers, depth=group.depth, shift=group.shift
        )
        self._forwarded = _forwarded(self._schedule)

    def of(
        self, parts: Sequence[Sequence[TensorRef]], specs: Sequence[TensorSpec]
    ) -> list[list[TensorRef]]:
        """The aggregated tensors on each worker, from the tensors of each worker."""
        dtype = specs[0].dtype
        elements = sum(spec.elements or 0 for spec in specs)
        if elements == 0:
            return [list(tensors) for tensors in parts]
        sizes = chunk_sizes(
            elements,
            self._schedule.chunks,
            dtype_bytes(dtype) or 1,
            smallest_bytes=self._group.smallest_chunk_bytes,
        )
        values = []
        for worker, tensors in enumerate(parts):
            weighed = [
                self._weighed(worker, number, tensor, specs[number])
                for number, tensor in enumerate(tensors)
            ]
            flat = self._ready(worker, self._flatten(worker, weighed, specs), dtype, elements)
            values.append(self._split(worker, flat, sizes, dtype))
        self._run(values, sizes, dtype)
        return [self._join(worker, values[worker], sizes, specs) for worker in range(len(parts))]

    # The worker's own part

    def _weighed(self, worker: int, number: int, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """The tensor times the worker's share; the multiplication is left out at run time where
        the share is 1."""
        if not self._averages:
            return tensor
        part = str(number)
        switched = self._add(
            worker, ("even", part), "Switch", [tensor, uneven(worker)], [spec, spec], T=spec.dtype
        )
        factor = self._desk.share(worker, spec.dtype)
        product = self._add(
            worker,
            ("weighed", part),
            "Mul",
            [TensorRef(switched.op, 1), factor],
            [spec],
            T=spec.dtype,
        )
        merged = self._add(
            worker,
            ("part", part),
            "Merge",
            [switched, product],
            [spec, TensorSpec("int32", ())],
            T=spec.dtype,
            N=2,
        )
        if spec.dtype in _SMALL_FLOATS:
            return self._divided(worker, ("scaled", part), merged, spec)
        return merged

    def _divided(
        self, worker: int, parts: tuple[str, ...], tensor: TensorRef, spec: TensorSpec
    ) -> TensorRef:
        """The tensor divided by the number of workers."""
        number = self._desk.constant(worker, self._plan.workers, spec.dtype)
        return self._add(worker, parts, "RealDiv", [tensor, number], [spec], T=spec.dtype)

    def _flatten(
        self, worker: int, tensors: Sequence[TensorRef], specs: Sequence[TensorSpec]
    ) -> TensorRef:
        """All members side by side in one flat tensor."""
        dtype = specs[0].dtype
        flat = [
            self._flat(worker, ("flat", str(number)), tensor, spec)
            for number, (tensor, spec) in enumerate(zip(tensors, specs, strict=True))
        ]
        return self._concatenate(worker, "group", flat, dtype, sum(s.elements or 0 for s in specs))

    def _ready(self, worker: int, flat: TensorRef, dtype: str, elements: int) -> TensorRef:
        """The flat tensor when it may be sent: in the next step, behind the gates."""
        spec = TensorSpec(dtype, (elements,))
        if self._group.deferred:
            kept = kept_flat(self._group.name, worker, *self._scope)
            flat = self._desk.keep(kept, worker, flat, spec)
        if gates := self._desk.gates(self._group, worker):
            self._add(worker, ("gated",), "Identity", [flat], [spec], T=dtype)
            flat = self._desk.gated(gates)
        return flat

    def _flat(
        self, worker: int, parts: tuple[str, ...], tensor: TensorRef, spec: TensorSpec
    ) -> TensorRef:
        """A tensor as a vector, put out by an op of Caramel's own: only those may be sent."""
        if len(spec.shape or ()) != 1:
            return self._reshaped(
                worker, parts, tensor, spec, TensorSpec(spec.dtype, (spec.elements,))
            )
        if is_added(tensor.op):
            return tensor
        return self._add(worker, parts, "Identity", [tensor], [spec], T=spec.dtype)

    def _split(
        self, worker: int, flat: TensorRef, sizes: Sequence[int], dtype: str
    ) -> list[TensorRef | None]:
        """The chunks of a flat tensor; None for empty ones."""
        filled = [size for size in sizes if size]
        tensors = self._slices(worker, "chunks", flat, filled, dtype)
        remaining = iter(tensors)
        return [next(remaining) if size else None for size in sizes]

    # The steps of the pattern

    def _run(self, values: list[list[TensorRef | None]], sizes: Sequence[int], dtype: str) -> None:
        """Carry out the schedule: afterwards `values[worker][chunk]` is the aggregated chunk."""
        last = {s.chunk: s for s in self._schedule.steps if isinstance(s, Reduce)}
        arrived: dict[tuple[int, int, int], TensorRef | None] = {}
        for number, step in enumerate(self._schedule.steps):
            if sizes[step.chunk] == 0:
                continue
            spec = TensorSpec(dtype, (sizes[step.chunk],))
            match step:
                case Send(source, target, chunk):
                    arrived[target, source, chunk] = values[source][chunk]
                case Reduce(worker, chunk, order):
                    operands = [
                        values[worker][chunk] if w == worker else arrived.pop((worker, w, chunk))
                        for w in order
                    ]
                    values[worker][chunk] = self._reduce(
                        worker, number, operands, spec, finishes=last[chunk] is step
                    )
                case Gather(source, target, chunk):
                    values[target][chunk] = values[source][chunk]
                    if (target, chunk) in self._forwarded:  # it has to arrive before it goes on
                        values[target][chunk] = self._add(
                            target,
                            ("gathered", str(number)),
                            "Identity",
                            [_present(values[source][chunk])],
                            [spec],
                            T=dtype,
                        )

    def _reduce(
        self,
        worker: int,
        number: int,
        operands: Sequence[TensorRef | None],
        spec: TensorSpec,
        *,
        finishes: bool,
    ) -> TensorRef:
        """The operands added from left to right.

        Two at a time: `AddN` begins with whichever operand's memory it can take over, which differs
        from step to step, and adds more than eight in another order.
        """
        total = _present(operands[0])
        for position, operand in enumerate(operands[1:], start=1):
            is_last = position == len(operands) - 1
            parts = ("sum", str(number)) if is_last else ("partial", str(number), str(position))
            total = self._add(
                worker, parts, "AddV2", [total, _present(operand)], [spec], T=spec.dtype
            )
        if finishes and self._averages and spec.dtype not in _SMALL_FLOATS:
            return self._divided(worker, ("mean", str(number)), total, spec)
        return total

    # The result

    def _join(
        self,
        worker: int,
        chunks: Sequence[TensorRef | None],
        sizes: Sequence[int],
        specs: Sequence[TensorSpec],
    ) -> list[TensorRef]:
        """The members, taken out of the aggregated chunks."""
        dtype = specs[0].dtype
        filled = [_present(c) for c, size in zip(chunks, sizes, strict=True) if size]
        flat = self._concatenate(worker, "joined", filled, dtype, sum(sizes))
        parts = self._slices(worker, "members", flat, [s.elements or 0 for s in specs], dtype)
        return [
            self._reshaped(
                worker,
                ("aggregated", str(number)),
                part,
                TensorSpec(dtype, (spec.elements,)),
                spec,
            )
            for number, (part, spec) in enumerate(zip(parts, specs, strict=True))
        ]

    # Nodes

    def _add(
        self,
        worker: int,
        parts: tuple[str, ...],
        kind: str,
        inputs: Sequence[TensorRef],
        outputs: Sequence[TensorSpec],
        **attributes: Any,
    ) -> TensorRef:
        name = in_group(self._group.name, worker, *self._scope, *parts)
        return self._desk.add(name, worker, kind, inputs, outputs, **attributes)

    def _reshaped(
        self,
        worker: int,
        parts: tuple[str, ...],
        tensor: TensorRef,
        before: TensorSpec,
        after: TensorSpec,
    ) -> TensorRef:
        """The tensor in another shape."""
        shape = self._desk.constant(worker, list(after.shape or ()), "int32")
        return self._add(
            worker, parts, "Reshape", [tensor, shape], [after], T=after.dtype, Tshape="int32"
        )

    def _concatenate(
        self, worker: int, name: str, tensors: Sequence[TensorRef], dtype: str, elements: int
    ) -> TensorRef:
        if len(tensors) == 1:
            return tensors[0]
        axis = self._desk.constant(worker, 0, "int32")
        return self._add(
            worker,
            (name,),
            "ConcatV2",
            [*tensors, axis],
            [TensorSpec(dtype, (elements,))],
            T=dtype,
            N=len(tensors),
            Tidx="int32",
        )

    def _slices(
        self, worker: int, name: str, flat: TensorRef, sizes: Sequence[int], dtype: str
    ) -> list[TensorRef]:
        """A flat tensor cut into pieces of the given sizes."""
        if len(sizes) == 1:
            return [flat]
        lengths = self._desk.constant(worker, list(sizes), "int64")
        axis = self._desk.constant(worker, 0, "int32")
        split = self._add(
            worker,
            (name,),
            "SplitV",
            [flat, lengths, axis],
            [TensorSpec(dtype, (size,)) for size in sizes],
            T=dtype,
            Tlen="int64",
            num_split=len(sizes),
        )
        return [TensorRef(split.op, number) for number in range(len(sizes))]


def _forwarded(steps: Schedule) -> frozenset[tuple[int, int]]:
    """Workers that pass a finished chunk on after they have got it, with the chunk."""
    gathers = [step for step in steps.steps if isinstance(step, Gather)]
    received = {(step.target, step.chunk) for step in gathers}
    return frozenset(received & {(step.source, step.chunk) for step in gathers})


def _present(tensor: TensorRef | None) -> TensorRef:
    assert tensor is not None, "an empty chunk has no value"
    return tensor
