"""The aggregation of a sparse gradient: rows gathered, or whole matrices added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caramel.core.decision import Group
from caramel.core.facts import SUM
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, in_group, is_added, kept_flat, tensor_in_replica
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.modifiers.aggregation.dense import DenseSum
from caramel.modifiers.aggregation.worker_writer import Desk
from caramel.modifiers.batch_weights import SHARE_DTYPE, multiplication, share


class SparseRows:
    """The aggregation of one sparse gradient."""

    def __init__(self, desk: Desk, plan: Plan, group: Group) -> None:
        self._desk, self._plan, self._group = desk, plan, group

    def gather(self, gradient: AggregatedGradient) -> dict[int, tuple[TensorRef, TensorRef]]:
        """Values and row numbers of all workers, in worker order, at each place that has them."""
        row = TensorSpec(gradient.spec.dtype, (None, *(gradient.spec.shape or ())[1:]))
        index = TensorSpec(gradient.index_dtype, (None,))
        sent = []
        for worker in range(self._plan.workers):
            values, indices = self._local(worker, gradient)
            if gradient.merge_duplicates:
                # Rows of equal numbers are added up first, so that fewer are sent.
                values, indices = self._merged(worker, values, indices, gradient)
            values = self._weighed(worker, values, row)
            sent.append(
                (
                    self._ready(worker, "values", values, row),
                    self._ready(worker, "indices", indices, index),
                )
            )
        return {
            place: (
                self._joined(place, "values", [values for values, _ in sent], row),
                self._joined(place, "indices", [indices for _, indices in sent], index),
            )
            for place in self._plan.aggregated_at(self._group)
        }

    def _joined(
        self, place: int, name: str, parts: Sequence[TensorRef], spec: TensorSpec
    ) -> TensorRef:
        """What all workers have sent, one after the other."""
        full_name = f"gathered_{name}"
        if len(parts) == 1:
            return self._add(place, full_name, "Identity", parts, [spec], T=spec.dtype)
        axis = self._desk.constant(place, 0, "int32")
        return self._add(
            place,
            full_name,
            "ConcatV2",
            [*parts, axis],
            [spec],
            T=spec.dtype,
            N=len(parts),
            Tidx="int32",
        )

    def add_up(self, gradient: AggregatedGradient) -> dict[int, tuple[TensorRef, TensorRef]]:
        """Aggregated rows that any worker touched, with their numbers, at each place that has them.

        Whole matrices are added up, and beside them how many times each row occurs, so that exactly
        the rows that any worker touched are updated.
        """
        dense, touched = [], []
        for worker in range(self._plan.workers):
            values, indices = self._local(worker, gradient)
            dense.append([self._spread(worker, "dense", values, indices, gradient, gradient.spec)])
            ones = self._ones(worker, indices, gradient)
            touched.append(
                [self._spread(worker, "touched", ones, indices, gradient, _row_flags(gradient))]
            )
        summed = DenseSum(self._desk, self._plan, self._group).of(dense, [gradient.spec])
        counted = DenseSum(self._desk, self._plan, self._group, scope=("rows",), scaled=False).of(
            touched, [_row_flags(gradient)]
        )
        return {
            place: self._touched_rows(place, summed[place][0], counted[place][0], gradient)
            for place in self._plan.aggregated_at(self._group)
        }

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
        weight = self._plan.weight(self._plan.gradient(self._group.members[0]))
        if weight == SUM or self._plan.workers == 1:
            return values
        own = share(worker, weight)
        number = self._desk.constant(worker, self._plan.workers, SHARE_DTYPE)
        factor = self._add(worker, "factor", "RealDiv", [own, number], [], T=SHARE_DTYPE)
        if row.dtype != SHARE_DTYPE:
            factor = self._add(
                worker, "factor/cast", "Cast", [factor], [], SrcT=SHARE_DTYPE, DstT=row.dtype
            )
        kind = multiplication(weight)
        return self._add(worker, "weighed", kind, [values, factor], [], T=row.dtype)

    def _ready(self, worker: int, name: str, tensor: TensorRef, spec: TensorSpec) -> TensorRef:
        """The tensor when it may be sent, put out by an op of Caramel's own."""
        if self._group.deferred:
            kept = kept_flat(self._group.name, worker, name)
            tensor = self._desk.keep(kept, worker, tensor, spec)
        gates = self._desk.gates(self._group, worker)
        # Only what Caramel's own ops put out may be sent.
        if is_added(tensor.op) and not gates:
            return tensor
        self._add(worker, f"sent_{name}", "Identity", [tensor], [], T=spec.dtype)
        return self._desk.gated(gates)

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
