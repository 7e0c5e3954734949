"""What ops that pick, sort and add up rows by their numbers do to courses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, joined, not_linear
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import (
    BY_COUNT,
    EXAMPLES,
    Count,
    Course,
    Kind,
    local,
    unknown,
)
from caramel.analyzers.examples.vectors import example_axis, is_plain, vector_of
from caramel.core import op_types
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef


def where(at: At) -> Course:
    """The positions at which a tensor is not zero: as many as there happen to be."""
    course = at.inputs[0]
    if course.kind is not Kind.ROWS:
        return replace(course, trained=False, elements=None)
    length = Count("rows", TensorRef(at.op.name))
    # Each worker finds another number of positions.
    return Course(Kind.ROWS, axis=0, length=length, index="selected")


def gather(at: At) -> Course:
    """Rows of a tensor by their numbers."""
    values, indices = at.inputs[0], at.inputs[1]
    if (bad := _bad(at.inputs[:2])) is not None:
        return bad
    axis = (at.integers(2) or (0,))[0] if len(at.inputs) > 2 else 0
    rank, batch_dims = at.rank(0), at.attribute("batch_dims")
    axis = axis + (rank or 0) if axis < 0 else axis
    # Elements of a shape, picked by constants.
    if values.elements is not None:
        chosen = at.integers(1)
        if chosen is None:
            return unknown(at.where)
        picked = [values.elements[n] for n in chosen]
        return picked[0] if at.rank(1) == 0 else vector_of(picked)
    if values.kind is Kind.ROWS and indices.kind is Kind.ROWS:
        return _gathered_rows(at, values, indices, axis, batch_dims)
    if values.kind is Kind.ROWS:
        return _gathered_columns(at, values, axis)
    if indices.kind is Kind.ROWS:
        # A lookup, such as that of an embedding: a row for each number. It is not linear in the
        # numbers; powers, and what the numbers mean, are handled below.
        found = not_linear(
            [
                Operand(at.op.inputs[0], replace(values, powers=()), False),
                Operand(at.op.inputs[1], replace(indices, index=""), False),
            ],
            at.where,
        )
        shift = axis - batch_dims if indices.axis is not None else 0
        moved = None if found.axis is None else found.axis + max(0, shift)
        if found.kind is not Kind.ROWS:
            return found
        # Rows that were looked up lie in the order of the numbers.
        kept = indices.index if indices.index in ("beside", "unique") else ""
        return replace(
            found,
            axis=moved,
            powers=values.powers,
            length=indices.length,
            trained=values.trained,
            index=kept,
        )
    if values.kind is Kind.SUM and indices.kind is Kind.SHARED:
        return replace(values, leaves=None)
    if values.kind is Kind.LOCAL or indices.kind is not Kind.SHARED:
        return local(values.why or at.where, trained=values.trained)
    return replace(values, leaves=None, elements=None)


def _gathered_rows(at: At, values: Course, indices: Course, axis: int, batch_dims: int) -> Course:
    """Rows by the numbers of rows, or in each row by the row's own numbers."""
    if batch_dims > 0 and values.axis is not None and values.axis < batch_dims:
        return replace(values, index="", uniform=False)
    # Rows of the batch, picked by row numbers that are computed from the batch.
    if values.axis in (axis, None):
        moved = None if indices.axis is None else indices.axis + axis
        of_unique = values.index == "unique"
        # `tf.unique`, a lookup, and this gather: every row has its value again, and none is left
        # out.
        marks = values.marks - {BY_COUNT} if of_unique else values.marks
        length = indices.length
        return replace(values, axis=moved, length=length, index="", uniform=False, marks=marks)
    return local(f"{at.where} compares examples with each other", trained=values.trained)


def _gathered_columns(at: At, values: Course, axis: int) -> Course:
    rank = at.rank(1)
    if values.axis is None:
        return values
    if values.axis == axis:
        return local(f"{at.where} takes examples by their position", trained=values.trained)
    if axis < values.axis:
        # The rank of the indices decides how many axes the result gains.
        if rank is None:
            return unknown(at.where)
        return replace(values, axis=values.axis + rank - 1, index="")
    return replace(values, index="")


def gather_nd(at: At) -> Course:
    """Entries of a tensor by their positions."""
    values, indices = at.inputs[0], at.inputs[1]
    if (bad := _bad(at.inputs[:2])) is not None:
        return bad
    batch_dims = at.attribute("batch_dims")
    if values.kind is Kind.ROWS and (indices.kind is not Kind.ROWS and not batch_dims):
        return local(f"{at.where} takes examples by their position", trained=values.trained)
    if indices.kind is Kind.ROWS:
        return _as(Kind.ROWS, values, axis=indices.axis, length=indices.length)
    return replace(values, leaves=None, elements=None)


def dynamic_partition(at: At) -> list[Course]:
    """Rows sorted into parts, each of as many as there happen to be."""
    course, number = at.inputs[0], max(1, len(at.op.outputs))
    if course.kind is not Kind.ROWS:
        return [course] * number
    return [
        replace(course, axis=0, index="", length=Count("rows", TensorRef(at.op.name, n)))
        for n in range(number)
    ]


def dynamic_stitch(at: At) -> Course:
    """Rows that were sorted into parts, put together again."""
    data = at.inputs[len(at.inputs) // 2 :]
    if (bad := _bad(at.inputs)) is not None:
        return bad
    if all(c.kind is not Kind.ROWS for c in at.inputs):
        return replace(joined(data, at.where), elements=None, leaves=None)
    course = joined(data, at.where)
    if course.kind is not Kind.ROWS:
        return course
    # All parts together have a row for each example again.
    return replace(course, axis=0, length=EXAMPLES, index="", uniform=False)


def unique(at: At) -> list[Course]:
    """Each value once, and for each row which of these it is."""
    course, number = at.inputs[0], max(2, len(at.op.outputs))
    if course.kind is not Kind.ROWS:
        return [replace(course, elements=None, leaves=None)] * number
    length = Count("rows", TensorRef(at.op.name))
    why = f"{at.where} leaves out what occurs again"
    marks = course.marks | {BY_COUNT}
    # A value that two workers have is there once on each of them, but once in all on one device.
    once = Course(Kind.ROWS, axis=0, length=length, index="unique", marks=marks, why=why)
    return [once, replace(course, uniform=False, index=""), *[once] * (number - 2)]


def segment_sum(at: At) -> Course:
    """Rows added up by numbers of segments."""
    values, segments = at.inputs[0], at.inputs[1]
    if (bad := _bad(at.inputs)) is not None:
        return bad
    if values.kind is not Kind.ROWS and segments.kind is not Kind.ROWS:
        return replace(values, leaves=None)
    last = at.inputs[-1]
    is_count = last.kind is Kind.SHARED and bool(last.powers)
    if is_count or _are_rows(at.graph, at.op.inputs[-1]):  # a segment for each example
        length = last.powers[0][0] if is_count else EXAMPLES
        return _as(Kind.ROWS, values, axis=0, length=length)
    if values.kind is Kind.ROWS and values.axis in (0, None) and is_plain(last):
        return _as(Kind.SUM, values)
    # A shared value is added once for each example.
    if values.kind is Kind.SHARED:
        return Course(Kind.SUM, powers=values.powers, trained=values.trained)
    return local(f"{at.where} adds up by segments", trained=values.trained)


def _are_rows(graph: OpGraph, tensor: TensorRef) -> bool:
    """Whether segments are the rows of what is fed as a sparse or ragged value.

    There are as many as row splits but one, or their numbers are a column of the fed indices.
    """
    op, behind = graph[tensor.op], frozenset({"Cast", "Identity", "Squeeze", "StridedSlice"})
    if op.kind == "Sub":
        while op.kind in behind or op.kind == "Sub":
            op = graph[op.inputs[0].op]
        # A ragged value has one row split more than rows.
        source = graph[op.inputs[0].op] if op.kind == "Shape" else op
        return _is_fed(source, rank=1)
    while op.kind in behind:
        op = graph[op.inputs[0].op]
    return _is_fed(op, rank=2)


def _is_fed(op: Op, *, rank: int) -> bool:
    """Whether an op is a placeholder of whole numbers."""
    if op.kind not in op_types.PLACEHOLDERS or not op.outputs[0].dtype.startswith("int"):
        return False
    return op.outputs[0].shape is not None and len(op.outputs[0].shape) == rank


def scatter_nd(at: At) -> Course:
    """Rows added into a tensor of a given shape."""
    indices, values = at.inputs[0], at.inputs[1]
    axis, number = example_axis(at, 2)
    if (bad := _bad(at.inputs)) is not None:
        return bad
    # The given shape has a row for each example.
    if axis is not None and number is not None:
        return _as(Kind.ROWS, values, axis=axis)
    if indices.kind is Kind.ROWS or values.kind is Kind.ROWS:
        return _as(Kind.SUM, values)
    return replace(values, leaves=None)


def _as(kind: Kind, values: Course, *, axis: int | None = None, length: Count = EXAMPLES) -> Course:
    """Rows or a sum, with what is known of the values that they are made of."""
    return Course(
        kind,
        axis=axis,
        powers=values.powers,
        length=length,
        trained=values.trained,
        marks=values.marks,
        why=values.why,
    )


def _bad(courses: Sequence[Course]) -> Course | None:
    return next((c for c in courses if c.kind in (Kind.UNKNOWN, Kind.NOTHING)), None)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), dynamic_stitch),
    **dict.fromkeys(("Gather", "GatherV2"), gather),
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts"), unique),
    **dict.fromkeys(("UnsortedSegmentSum", "SegmentSum", "SegmentSumV2"), segment_sum),
    "DynamicPartition": dynamic_partition,
    "GatherNd": gather_nd,
    "ScatterNd": scatter_nd,
    "Where": where,
}
