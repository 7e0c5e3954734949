"""Aggregates the raw gradients between the workers, by ordinary ops.

For each group, every worker lays the members' raw gradients side by side in one flat tensor, splits
it into chunks, carries out the steps of the group's pattern (`caramel.patterns`), joins the chunks
and takes the members out again. What post-processes a gradient in the user's graph then reads the
aggregated one. Slices that begin aligned share their buffer, so splitting copies nothing.

Sparse gradients are aggregated in one of two ways: ``gather`` brings the rows of all workers to
each, in worker order; ``dense`` adds up whole matrices, and beside them how many workers have each
row, so that afterwards exactly the rows that any worker touched are updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.graph import TensorSpec, dtype_bytes
from caramel.modifiers.nodes import GraphWriter, copy_of
from caramel.modifiers.weigh import SHARE_DTYPE, share, uneven
from caramel.names import (
    TensorRef,
    added,
    in_group,
    in_replica,
    input_string,
    is_added,
    parse_input,
    tensor_in_replica,
)
from caramel.patterns import Gather, Reduce, Schedule, Send, chunk_sizes, schedule
from caramel.plan import ALL_GATHER, AggregatedGradient, Group, Plan

# Sums of these overflow or lose digits, so every worker's part is scaled before it is added.
_SMALL_FLOATS = frozenset({"float16", "bfloat16"})


def aggregate(graph_def: Any, plan: Plan) -> Any:
    """Let everything behind the raw gradients read the aggregated ones."""
    if plan.workers == 1:
        return graph_def
    aggregated = copy_of(graph_def)
    nodes = {node.name: node for node in aggregated.node}
    desk = _Desk(GraphWriter(aggregated), plan)
    for group in plan.groups:
        results = _aggregate_group(desk, plan, group)
        for worker in range(plan.workers):
            for parameter, tensors in zip(group.members, results[worker], strict=True):
                _rewire(nodes, worker, plan.gradient(parameter), tensors)
    return aggregated


def aggregated_tensors(plan: Plan, worker: int) -> dict[TensorRef, TensorRef]:
    """Where a worker has the aggregated value of each dense raw gradient."""
    found = {}
    for group in plan.groups:
        for number, parameter in enumerate(group.members):
            gradient = plan.gradient(parameter)
            if gradient.indices is None and plan.elements(group):
                name = in_group(group.name, worker, "aggregated", str(number))
                found[gradient.values] = TensorRef(name)
    return found


def _rewire(
    nodes: dict[str, Any], worker: int, gradient: AggregatedGradient, tensors: Sequence[TensorRef]
) -> None:
    """Let the consumers of a worker's raw gradient read what was aggregated."""
    raw = [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]
    replaced = {
        tensor_in_replica(worker, before): after for before, after in zip(raw, tensors, strict=True)
    }
    for consumer in gradient.consumers:
        node = nodes[in_replica(worker, consumer)]
        for position, text in enumerate(node.input):
            tensor = parse_input(text)
            if tensor in replaced:
                node.input[position] = input_string(replaced[tensor])


def _aggregate_group(desk: _Desk, plan: Plan, group: Group) -> list[list[tuple[TensorRef, ...]]]:
    """The aggregated tensors of each member, for each worker."""
    first = plan.gradient(group.members[0])
    if group.pattern == ALL_GATHER:
        return [[tensors] for tensors in _Rows(desk, plan, group).gather(first)]
    if first.indices is not None:
        return [[tensors] for tensors in _Rows(desk, plan, group).add_up(first)]
    parts = [
        [tensor_in_replica(worker, plan.gradient(name).values) for name in group.members]
        for worker in range(plan.workers)
    ]
    specs = [plan.gradient(name).spec for name in group.members]
    summed = _Sum(desk, plan, group).of(parts, specs)
    return [[(tensor,) for tensor in tensors] for tensors in summed]


class _Desk:
    """Writes nodes on workers; what every group of a worker needs is written once."""

    def __init__(self, writer: GraphWriter, plan: Plan) -> None:
        self._writer, self._devices = writer, plan.devices
        self._constants: dict[tuple[Any, ...], TensorRef] = {}
        self._shares: dict[tuple[int, str], TensorRef] = {}

    def add(
        self,
        name: str,
        worker: int,
        kind: str,
        inputs: Sequence[TensorRef],
        outputs: Sequence[TensorSpec],
        **attributes: Any,
    ) -> TensorRef:
        """Add a node on a worker's device."""
        return self._writer.add(
            name, kind, inputs, device=self._devices[worker], outputs=outputs, **attributes
        )

    def constant(self, worker: int, value: Any, dtype: str) -> TensorRef:
        """A constant on a worker; equal ones are one node."""
        array = np.array(value, tf.as_dtype(dtype).as_numpy_dtype)
        key = (worker, dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = added(worker, "constant", str(len(self._constants)))
            self._constants[key] = self._writer.constant(name, array, device=self._devices[worker])
        return self._constants[key]

    def share(self, worker: int, dtype: str) -> TensorRef:
        """The worker's share as a scalar of a dtype."""
        if dtype == SHARE_DTYPE:
            return share(worker)
        key = (worker, dtype)
        if key not in self._shares:
            self._shares[key] = self.add(
                added(worker, "share", dtype),
                worker,
                "Cast",
                [share(worker)],
                [TensorSpec(dtype, ())],
                SrcT=SHARE_DTYPE,
                DstT=dtype,
            )
        return self._shares[key]


class _Sum:
    """The aggregation of dense tensors of one dtype over all workers.

    Args:
        scope: part of the names of all nodes, to keep several sums of one group apart.
        scaled: whether a mean is wanted where the plan says so; else always the sum.
    """

    def __init__(
        self,
        desk: _Desk,
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
        sizes = chunk_sizes(elements, self._schedule.chunks, dtype_bytes(dtype) or 1)
        values = []
        for worker, tensors in enumerate(parts):
            weighed = [
                self._weighed(worker, number, tensor, specs[number])
                for number, tensor in enumerate(tensors)
            ]
            flat = self._flatten(worker, weighed, specs)
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


class _Rows:
    """The aggregation of one sparse gradient."""

    def __init__(self, desk: _Desk, plan: Plan, group: Group) -> None:
        self._desk, self._plan, self._group = desk, plan, group

    def gather(self, gradient: AggregatedGradient) -> list[tuple[TensorRef, TensorRef]]:
        """Values and row numbers of all workers on each, in worker order."""
        row = TensorSpec(gradient.spec.dtype, (None, *(gradient.spec.shape or ())[1:]))
        sent = []
        for worker in range(self._plan.workers):
            values, indices = self._local(worker, gradient)
            if gradient.merge_duplicates:
                values, indices = self._merged(worker, values, indices, gradient)
            values = self._weighed(worker, values, row)
            sent.append(
                (
                    self._own(worker, "sent_values", values, gradient.spec.dtype),
                    self._own(worker, "sent_indices", indices, gradient.index_dtype),
                )
            )
        gathered = []
        for worker in range(self._plan.workers):
            axis = self._desk.constant(worker, 0, "int32")
            joined = []
            for position, (name, spec) in enumerate((("values", row), ("indices", None))):
                joined.append(
                    self._add(
                        worker,
                        f"gathered_{name}",
                        "ConcatV2",
                        [*(pair[position] for pair in sent), axis],
                        [spec] if spec is not None else [],
                        T=gradient.spec.dtype if spec is not None else gradient.index_dtype,
                        N=self._plan.workers,
                        Tidx="int32",
                    )
                )
            gathered.append((joined[0], joined[1]))
        return gathered

    def add_up(self, gradient: AggregatedGradient) -> list[tuple[TensorRef, TensorRef]]:
        """Aggregated rows that any worker touched, with their numbers."""
        dense, touched = [], []
        for worker in range(self._plan.workers):
            values, indices = self._local(worker, gradient)
            dense.append([self._spread(worker, "dense", values, indices, gradient, gradient.spec)])
            ones = self._ones(worker, indices, gradient)
            touched.append(
                [self._spread(worker, "touched", ones, indices, gradient, _row_flags(gradient))]
            )
        summed = _Sum(self._desk, self._plan, self._group).of(dense, [gradient.spec])
        counted = _Sum(self._desk, self._plan, self._group, scope=("rows",), scaled=False).of(
            touched, [_row_flags(gradient)]
        )
        return [
            self._touched_rows(worker, summed[worker][0], counted[worker][0], gradient)
            for worker in range(self._plan.workers)
        ]

    # Parts

    def _local(self, worker: int, gradient: AggregatedGradient) -> tuple[TensorRef, TensorRef]:
        assert gradient.indices is not None
        return (
            tensor_in_replica(worker, gradient.values),
            tensor_in_replica(worker, gradient.indices),
        )

    def _merged(
        self,
        worker: int,
        values: TensorRef,
        indices: TensorRef,
        gradient: AggregatedGradient,
    ) -> tuple[TensorRef, TensorRef]:
        """Rows of equal number added up."""
        index = gradient.index_dtype
        unique = self._add(worker, "unique", "Unique", [indices], [], T=index, out_idx="int32")
        shape = self._add(worker, "unique/size", "Size", [unique], [], T=index, out_type="int32")
        summed = self._segment_sum(
            worker, "merged", values, TensorRef(unique.op, 1), shape, gradient, "int32", "int32"
        )
        return summed, unique

    def _segment_sum(
        self,
        worker: int,
        name: str,
        values: TensorRef,
        rows: TensorRef,
        number: TensorRef,
        gradient: AggregatedGradient,
        row_dtype: str,
        number_dtype: str,
        result: TensorSpec | None = None,
    ) -> TensorRef:
        return self._add(
            worker,
            name,
            "UnsortedSegmentSum",
            [values, rows, number],
            [result] if result is not None else [],
            T=result.dtype if result is not None else gradient.spec.dtype,
            Tindices=row_dtype,
            Tnumsegments=number_dtype,
        )

    def _weighed(self, worker: int, values: TensorRef, row: TensorSpec) -> TensorRef:
        """The values times the worker's share of the mean."""
        if self._plan.reduction != "mean":
            return values
        number = self._desk.constant(worker, self._plan.workers, SHARE_DTYPE)
        factor = self._add(worker, "factor", "RealDiv", [share(worker), number], [], T=SHARE_DTYPE)
        if row.dtype != SHARE_DTYPE:
            factor = self._add(
                worker, "factor/cast", "Cast", [factor], [], SrcT=SHARE_DTYPE, DstT=row.dtype
            )
        return self._add(worker, "weighed", "Mul", [values, factor], [], T=row.dtype)

    def _own(self, worker: int, name: str, tensor: TensorRef, dtype: str) -> TensorRef:
        """The tensor, put out by an op of Caramel's own: only those may be sent."""
        if is_added(tensor.op):
            return tensor
        return self._add(worker, name, "Identity", [tensor], [], T=dtype)

    def _spread(
        self,
        worker: int,
        name: str,
        values: TensorRef,
        indices: TensorRef,
        gradient: AggregatedGradient,
        spec: TensorSpec,
    ) -> TensorRef:
        """Rows added into a whole matrix (or vector)."""
        rows = (spec.shape or (0,))[0]
        return self._segment_sum(
            worker,
            name,
            values,
            indices,
            self._desk.constant(worker, rows, "int64"),
            gradient,
            gradient.index_dtype,
            "int64",
            spec,
        )

    def _ones(self, worker: int, indices: TensorRef, gradient: AggregatedGradient) -> TensorRef:
        dtype = gradient.index_dtype
        like = self._add(worker, "ones/like", "OnesLike", [indices], [], T=dtype)
        return self._add(worker, "ones", "Cast", [like], [], SrcT=dtype, DstT="int32")

    def _touched_rows(
        self, worker: int, dense: TensorRef, touched: TensorRef, gradient: AggregatedGradient
    ) -> tuple[TensorRef, TensorRef]:
        dtype = gradient.index_dtype
        positions = self._add(worker, "rows/where", "Where", [touched], [], T="int32")
        shape = self._desk.constant(worker, [-1], "int32")
        flat = self._add(
            worker, "rows/flat", "Reshape", [positions, shape], [], T="int64", Tshape="int32"
        )
        axis = self._desk.constant(worker, 0, "int32")
        values = self._add(
            worker,
            "rows/values",
            "GatherV2",
            [dense, flat, axis],
            [],
            Tparams=gradient.spec.dtype,
            Tindices="int64",
            Taxis="int32",
        )
        indices = self._add(worker, "rows/indices", "Cast", [flat], [], SrcT="int64", DstT=dtype)
        return values, indices

    # Nodes

    def _add(
        self,
        worker: int,
        name: str,
        kind: str,
        inputs: Sequence[TensorRef],
        outputs: Sequence[TensorSpec],
        **attributes: Any,
    ) -> TensorRef:
        full_name = in_group(self._group.name, worker, name)
        return self._desk.add(full_name, worker, kind, inputs, outputs, **attributes)


def _row_flags(gradient: AggregatedGradient) -> TensorSpec:
    """How many times each row occurs."""
    return TensorSpec("int32", ((gradient.spec.shape or (0,))[0],))
