"""The aggregation of dense tensors: laid side by side, split, summed by a pattern, taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caramel.core.decision import Group
from caramel.core.dtypes import dtype_bytes
from caramel.core.facts import SUM
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, gated, is_added, kept_flat, pushed, server_at
from caramel.core.patterns import (
    Gather,
    Reduce,
    Schedule,
    Send,
    aligned_elements,
    chunk_sizes,
)
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.worker_writer import Desk, InGroup

# Sums of these overflow or lose digits, so every worker's part is scaled before it is added.
SMALL_FLOATS = frozenset({"float16", "bfloat16"})


class DenseSum(InGroup):
    """The aggregation of dense tensors of one dtype over all workers.

    Every worker lays the members of a group side by side in one flat tensor, splits it into chunks,
    carries out the steps of the group's pattern (`core.patterns`), and when all chunks are there
    takes the members out of them.

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
        super().__init__(desk, group, scope)
        self._plan = plan
        self._weight = plan.weight(plan.gradient(group.members[0]))
        self._averages = scaled and self._weight != SUM and plan.workers > 1
        self._schedule: Schedule = plan.schedule(group)
        self._places = plan.aggregated_at(group)
        self._forwarded = _forwarded(self._schedule)
        self._is_waited_for = any(gate.after == group.name for gate in plan.decision.gates)

    def of(
        self, parts: Sequence[Sequence[TensorRef]], specs: Sequence[TensorSpec]
    ) -> dict[int, list[TensorRef]]:
        """The aggregated tensors at each place that has them, from the tensors of each worker."""
        if not any(spec.elements for spec in specs):
            return self._empty(parts, specs)
        # Slices that begin and end aligned share their buffer. So members that are no multiple of
        # 64 bytes, which are copied, come last.
        order = _aligned_first(specs)
        laid = [specs[number] for number in order]
        values, sizes = self._summed([[own[n] for n in order] for own in parts], laid)
        return {
            place: self._join(place, values[place], sizes, specs, order) for place in self._places
        }

    def _empty(
        self, parts: Sequence[Sequence[TensorRef]], specs: Sequence[TensorSpec]
    ) -> dict[int, list[TensorRef]]:
        """Tensors without elements, which are the same on all workers, and do not travel."""
        if not any(place < 0 for place in self._places):
            return {place: list(parts[place]) for place in self._places}
        return {
            place: [
                self._desk.constant(place, np.zeros(spec.shape or ()), spec.dtype) for spec in specs
            ]
            for place in self._places
        }

    def chunks_of(
        self, tensors: Sequence[TensorRef], spec: TensorSpec
    ) -> dict[int, list[TensorRef]]:
        """The aggregated chunks of one vector at each place that has them, from the vector of each
        worker.

        So a part of a gradient that is a group of its own is left in chunks, for `split` to join
        all parts at once.
        """
        values, sizes = self._summed([[tensor] for tensor in tensors], [spec])
        specs = [TensorSpec(spec.dtype, (size,)) for size in sizes if size]
        return {
            place: self._desk.together(
                self._name(place, "aggregated", "0"),
                place,
                [_present(c) for c, size in zip(values[place], sizes, strict=True) if size],
                specs,
            )
            for place in self._places
        }

    def _summed(
        self, parts: Sequence[Sequence[TensorRef]], specs: Sequence[TensorSpec]
    ) -> tuple[Mapping[int, Sequence[TensorRef | None]], tuple[int, ...]]:
        """The aggregated chunks at each place, None for empty ones, and their lengths."""
        dtype = specs[0].dtype
        elements = sum(spec.elements or 0 for spec in specs)
        sizes = chunk_sizes(
            elements,
            self._schedule.chunks,
            dtype_bytes(dtype) or 1,
            smallest_bytes=self._group.smallest_chunk_bytes,
        )
        whole = TensorSpec(dtype, (elements,))
        values: dict[int, list[TensorRef | None]] = {
            place: [None] * len(sizes) for place in self._places
        }
        for worker, tensors in enumerate(parts):
            flat = self._ready(worker, self._own(worker, tensors, specs, whole), whole)
            values[worker] = self._split(worker, flat, sizes, dtype)
        self._run(values, sizes, dtype)
        return values, sizes

    # The worker's own part

    def _own(
        self,
        worker: int,
        tensors: Sequence[TensorRef],
        specs: Sequence[TensorSpec],
        whole: TensorSpec,
    ) -> TensorRef:
        """All members side by side, weighed, put out by an op of Caramel's: only such are sent."""
        vectors = [
            self._vector(worker, number, tensor, spec)
            for number, (tensor, spec) in enumerate(zip(tensors, specs, strict=True))
        ]
        flat = self._desk.concatenated(self._name(worker, "group"), worker, vectors, whole)
        if self._averages:
            return self._weighed(worker, flat, whole)
        if is_added(flat.op):
            return flat
        return self._add(worker, ("own",), "Identity", [flat], [whole], T=whole.dtype)

    def _weighed(self, worker: int, flat: TensorRef, spec: TensorSpec) -> TensorRef:
        """The tensor times the worker's share; the multiplication is left out at run time where
        the share is 1."""
        names = [self._name(worker, name) for name in ("even", "weighed", "part")]
        merged = self._desk.weighed(names, worker, flat, spec, weight=self._weight)
        if spec.dtype in SMALL_FLOATS:
            return self._desk.divided(self._name(worker, "scaled"), worker, merged, spec)
        return merged

    def _ready(self, worker: int, flat: TensorRef, spec: TensorSpec) -> TensorRef:
        """The flat tensor when it may be sent: in the next step, behind the gates."""
        if self._group.deferred:
            kept = kept_flat(self._group.name, worker, *self._scope)
            flat = self._desk.keep(kept, worker, flat, spec)
        if gates := self._desk.gates(self._group, worker):
            name = gated(self._group.name, worker, *self._scope)
            self._desk.add(name, worker, "Identity", [flat], [spec], T=spec.dtype)
            flat = self._desk.gated(gates)
        return flat

    def _vector(self, worker: int, number: int, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """A tensor with one dimension."""
        if len(spec.shape or ()) == 1:
            return tensor
        vector = TensorSpec(spec.dtype, (spec.elements,))
        name = self._name(worker, "flat", str(number))
        return self._desk.reshaped(name, worker, tensor, vector)

    def _split(
        self, worker: int, flat: TensorRef, sizes: Sequence[int], dtype: str
    ) -> list[TensorRef | None]:
        """The chunks of a flat tensor; None for empty ones."""
        filled = [size for size in sizes if size]
        # The last one is copied where the group does not end aligned.
        tensors = self._desk.slices(self._name(worker, "chunks"), worker, flat, filled, dtype)
        remaining = iter(tensors)
        return [next(remaining) if size else None for size in sizes]

    # The steps of the pattern

    def _run(
        self, values: dict[int, list[TensorRef | None]], sizes: Sequence[int], dtype: str
    ) -> None:
        """Carry out the schedule: afterwards `values[place][chunk]` is the aggregated chunk."""
        finishing = self._schedule.finishing()
        arrived: dict[tuple[int, int, int], TensorRef | None] = {}
        for number, step in enumerate(self._schedule.steps):
            if sizes[step.chunk] == 0:
                continue
            spec = TensorSpec(dtype, (sizes[step.chunk],))
            match step:
                case Send(source, target, chunk):
                    sent = self._arrived(source, target, values[source][chunk], spec)
                    arrived[target, source, chunk] = sent
                case Reduce(worker, chunk, order):
                    operands = [
                        values[worker][chunk] if w == worker else arrived.pop((worker, w, chunk))
                        for w in order
                    ]
                    values[worker][chunk] = self._reduce(
                        worker, number, operands, spec, finishes=step in finishing
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

    def _arrived(
        self, source: int, target: int, chunk: TensorRef | None, spec: TensorSpec
    ) -> TensorRef | None:
        """What was sent, where it has arrived; at a server its own op says so if others wait."""
        server = server_at(target)
        if server is None or not self._is_waited_for:
            return chunk
        name = pushed(server, source, self._group.name)
        return self._desk.add(name, target, "Identity", [_present(chunk)], [spec], T=spec.dtype)

    def _reduce(
        self,
        worker: int,
        number: int,
        operands: Sequence[TensorRef | None],
        spec: TensorSpec,
        *,
        finishes: bool,
    ) -> TensorRef:
        """The operands added from left to right."""
        total = _present(operands[0])
        for position, operand in enumerate(operands[1:], start=1):
            is_last = position == len(operands) - 1
            # Two at a time: `AddN` begins with whichever operand's memory it can take over, which
            # differs from step to step, and adds more than eight in another order.
            parts = ("sum", str(number)) if is_last else ("partial", str(number), str(position))
            total = self._add(
                worker, parts, "AddV2", [total, _present(operand)], [spec], T=spec.dtype
            )
        if finishes and self._averages and spec.dtype not in SMALL_FLOATS:
            return self._desk.divided(self._name(worker, "mean", str(number)), worker, total, spec)
        return total

    # The result

    def _join(
        self,
        worker: int,
        chunks: Sequence[TensorRef | None],
        sizes: Sequence[int],
        specs: Sequence[TensorSpec],
        order: Sequence[int],
    ) -> list[TensorRef]:
        """The members, taken out of the aggregated chunks, in which they are in this order."""
        desk, dtype = self._desk, specs[0].dtype
        lengths = [specs[number].elements or 0 for number in order]
        filled = [size for size in sizes if size]
        there = [chunk for chunk in chunks if chunk is not None]
        if len(there) > 1:
            vectors = [TensorSpec(dtype, (size,)) for size in filled]
            there = desk.together(self._name(worker, "complete"), worker, there, vectors)
        pieces: dict[int, list[TensorRef]] = {}
        for number, (chunk, own) in enumerate(zip(there, _cut(lengths, filled), strict=True)):
            name = self._name(worker, "members", str(number))
            sliced = desk.slices(name, worker, chunk, [size for _, size in own], dtype)
            for (position, _), piece in zip(own, sliced, strict=True):
                pieces.setdefault(order[position], []).append(piece)
        members = []
        for number, spec in enumerate(specs):
            vector = TensorSpec(dtype, (spec.elements,))
            name = self._name(worker, "joined", str(number))
            # Members that lie in more than one chunk are copied.
            flat = desk.concatenated(name, worker, pieces[number], vector)
            name = self._name(worker, "aggregated", str(number))
            members.append(desk.reshaped(name, worker, flat, spec))
        return members


def _aligned_first(specs: Sequence[TensorSpec]) -> list[int]:
    """The numbers of some tensors, those first after which another one begins aligned."""
    unit = aligned_elements(dtype_bytes(specs[0].dtype) or 1)
    return sorted(range(len(specs)), key=lambda number: (specs[number].elements or 0) % unit > 0)


def _cut(lengths: Sequence[int], sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """For each chunk the members that lie in it, one after the other, and how much of each does."""
    found: list[list[tuple[int, int]]] = [[] for _ in sizes]
    chunk, left = 0, sizes[0]
    for member, length in enumerate(lengths):
        while length > left:
            if left:
                found[chunk].append((member, left))
            length -= left
            chunk, left = chunk + 1, sizes[chunk + 1]
        found[chunk].append((member, length))
        left -= length
    return found


def _forwarded(steps: Schedule) -> frozenset[tuple[int, int]]:
    """Workers that pass a finished chunk on after they have got it, with the chunk."""
    gathers = [step for step in steps.steps if isinstance(step, Gather)]
    received = {(step.target, step.chunk) for step in gathers}
    return frozenset(received & {(step.source, step.chunk) for step in gathers})


def _present(tensor: TensorRef | None) -> TensorRef:
    assert tensor is not None, "an empty chunk has no value"
    return tensor
