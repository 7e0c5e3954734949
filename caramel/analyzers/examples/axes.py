"""What ops that move axes, or work along one, do to courses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, not_linear
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import Course, Kind, local, unknown
from caramel.analyzers.examples.vectors import example_axis


def transpose(at: At) -> Course:
    """Axes in another order."""
    course, order = at.inputs[0], at.integers(1)
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, leaves=None)
    rank = at.rank(0)
    if rank == 1:
        return course
    if order is None:
        if rank == 2:
            # The order is computed, not constant: take it to swap the two axes.
            return replace(course, axis=1 - course.axis)
        if at.graph[at.op.inputs[1].op].kind == "Sub" and rank is not None:  # all reversed
            return replace(course, axis=rank - 1 - course.axis)
        return unknown(f"{at.where} moves axes in an order that is not constant")
    return replace(course, axis=order.index(course.axis))


def expand_dims(at: At) -> Course:
    """One more axis."""
    course, given = at.inputs[0], at.integers(1)
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, elements=None)
    rank = at.rank(0)
    if given is None or (given[0] < 0 and rank is None):
        return unknown(at.where)
    axis = given[0] if given[0] >= 0 else given[0] + (rank or 0) + 1
    return replace(course, axis=course.axis + (axis <= course.axis))


def squeeze(at: At) -> Course:
    """Axes of length one left out."""
    course, static = at.inputs[0], at.shape(0)
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, elements=None)
    given = at.op.attributes.get("squeeze_dims", ())
    if given:
        rank = at.rank(0)
        if rank is None and any(axis < 0 for axis in given):
            return unknown(at.where)
        gone = {axis if axis >= 0 else axis + (rank or 0) for axis in given}
    elif static is not None:
        gone = {axis for axis, length in enumerate(static) if length == 1}
    else:
        return course
    return replace(course, axis=course.axis - sum(axis < course.axis for axis in gone))


def reshape(at: At) -> Course:
    """The same elements in another shape."""
    course = at.inputs[0]
    if course.kind is not Kind.ROWS:
        return course if _keeps_elements(at) else replace(course, elements=None)
    axis, number = example_axis(at, 1)
    # The new shape is computed from the number of examples, which shows the axis.
    if axis is not None and number is not None and number.kind is Kind.SHARED:
        return replace(course, axis=axis)
    found = _reshaped_axis(at, course)
    if found is None:
        return unknown(f"{at.where} may mix the axis of the examples with others")
    return replace(course, axis=found)


def _keeps_elements(at: At) -> bool:
    static = at.out_shape()
    return static is not None and len(static) == 1


def _reshaped_axis(at: At, course: Course) -> int | None:
    """The axis of a reshaped tensor that has the examples, perhaps with others."""
    before, after = at.shape(0), at.out_shape()
    target = at.integers(1)
    if after is None and target is not None:
        after = tuple(None if size == -1 else size for size in target)
    if after is None:
        return 0 if course.axis in (0, None) else None
    # Reshaped to a scalar: there is one example.
    if not after:
        return 0
    open_axes = [axis for axis, size in enumerate(after) if size is None]
    axis = course.axis
    if axis is None:
        return open_axes[0] if open_axes else None
    if axis == 0 or (before is not None and all(size == 1 for size in before[:axis])):
        # A reshape keeps the order of elements: if the examples' axis came first, it still does.
        first = next((n for n, size in enumerate(after) if size != 1), 0)
        size, batch = after[first], None if before is None else before[axis]
        if size is None or (at.batch and size % at.batch == 0) or size == batch:
            return first
        # The only unknown dimension must be the batch's.
        return open_axes[0] if len(open_axes) == 1 and batch is None and first == 0 else None
    if before is not None and None not in before[axis + 1 :]:
        return _axis_by_what_follows([size or 1 for size in before[axis + 1 :]], after)
    return open_axes[0] if len(open_axes) == 1 else None


def _axis_by_what_follows(follows: Sequence[int], after: Sequence[int | None]) -> int | None:
    """The axis behind which at most so many elements follow as behind that of the examples."""
    wanted, found = math.prod(follows), 1
    for axis in range(len(after) - 1, -1, -1):
        size = after[axis]
        if size is None or found * size > wanted:
            return axis
        found *= size
    return 0


def along_axis(at: At) -> Course:
    """Works along an axis that the second input names, and keeps it."""
    course = at.inputs[0]
    given, rank = at.integers(1), at.rank(0)
    if course.kind is Kind.ROWS and course.axis is not None:
        # It may work along the examples' axis.
        if given is None or rank is None:
            return unknown(at.where)
        if course.axis in {axis % rank for axis in given}:
            return local(f"{at.where} works along the examples", trained=course.trained)
    return row_by_row(at, course)


def arg_max(at: At) -> Course:
    """Works along an axis that the second input names, and drops it."""
    course = along_axis(at)
    given, rank = at.integers(1), at.rank(0)
    if course.kind is Kind.ROWS and course.axis is not None and given and rank:
        return replace(course, axis=course.axis - (given[0] % rank < course.axis), trained=False)
    return course


def along_last(at: At) -> list[Course]:
    """Works along the last axis."""
    course, rank = at.inputs[0], at.rank(0)
    if course.kind is Kind.ROWS and rank is not None and course.axis == rank - 1:
        # Softmax over the batch compares examples.
        course = local(f"{at.where} works along the examples", trained=course.trained)
    return [row_by_row(at, course)] * max(1, len(at.op.outputs))


def one_hot(at: At) -> Course:
    """One more axis, for classes."""
    course, axis = at.inputs[0], at.attribute("axis", -1)
    if course.kind is Kind.ROWS and course.axis is not None and 0 <= axis <= course.axis:
        course = replace(course, axis=course.axis + 1)
    return row_by_row(at, replace(course, trained=False))


def row_by_row(at: At, course: Course) -> Course:
    if course.kind is Kind.ROWS:
        return not_linear([Operand(at.op.inputs[0], course, False)], at.where)
    # The softmax of a sum is no sum.
    if course.kind is Kind.SUM:
        return not_linear([Operand(at.op.inputs[0], course, False)], at.where)
    return replace(course, elements=None, leaves=None)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_max),
    **dict.fromkeys(("Cumsum", "Cumprod", "ReverseV2"), along_axis),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK"), along_last),
    "ExpandDims": expand_dims,
    "OneHot": one_hot,
    "Reshape": reshape,
    "Squeeze": squeeze,
    "Transpose": transpose,
}
