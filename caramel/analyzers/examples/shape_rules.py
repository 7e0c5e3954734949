"""What ops that move, cut, join and make axes do to courses (`courses`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.course_rules import RULES, At, Rule, same
from caramel.analyzers.examples.courses import (
    BY_COUNT,
    EXAMPLES,
    NOTHING,
    OF_ARRAY,
    PARAMETER,
    SHARED,
    ZERO,
    Count,
    Course,
    Kind,
    Operand,
    joined,
    local,
    not_linear,
    unknown,
)
from caramel.core import op_types
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef

_LONGEST = 16  # vectors whose elements are followed one by one


def _number_of(course: Course) -> Course:
    """The number of rows, or of elements in them."""
    return Course(Kind.SHARED, powers=((course.length, 1),))


def _is_plain(course: Course) -> bool:
    return course.kind is Kind.SHARED and not course.powers


# Shapes -----------------------------------------------------------------------------------------


def shape(at: At) -> list[Course]:
    """The shapes of all inputs, as vectors."""
    return [_shape_of(at, position) for position in range(len(at.inputs))]


def _shape_of(at: At, position: int) -> Course:
    course, rank = at.inputs[position], at.rank(position)
    if course.kind is not Kind.ROWS or course.axis == OF_ARRAY:
        return SHARED
    if rank is None or course.axis is None or course.axis >= rank:
        return Course(Kind.SHARED, index="shape", axis=course.axis, length=course.length)
    elements = [SHARED] * rank
    elements[course.axis] = _number_of(course)
    return _vector(elements)


def _vector(elements: Sequence[Course]) -> Course:
    if all(e == SHARED for e in elements):
        return SHARED
    worst = next((e for e in elements if e.kind not in (Kind.SHARED, Kind.NOTHING)), None)
    if worst is not None and any(e.kind is Kind.UNKNOWN for e in elements):
        return unknown(worst.why)
    return Course(Kind.SHARED, elements=tuple(elements))


def size(at: At) -> Course:
    """The number of elements."""
    return _number_of(at.inputs[0]) if at.inputs[0].kind is Kind.ROWS else SHARED


def _elements(at: At, position: int) -> tuple[Course, ...] | None:
    """The elements of a vector of integers, one by one."""
    course = at.inputs[position]
    if course.elements is not None:
        return course.elements
    if not _is_plain(course) or course.index == "shape":
        return None
    numbers, static = at.integers(position), at.shape(position)
    if numbers is not None:
        return (SHARED,) * len(numbers)
    if static is not None and len(static) == 1 and static[0] is not None and static[0] <= _LONGEST:
        return (SHARED,) * static[0]
    return None


def _example_axis(at: At, position: int) -> tuple[int | None, Course | None]:
    """Which element of a shape goes with the examples, and its course."""
    course = at.inputs[position]
    if course.index == "shape":
        return course.axis, _number_of(course)
    for axis, element in enumerate(course.elements or ()):
        if element.powers or element.kind is not Kind.SHARED:
            return axis, element
    return None, None


def fill(at: At) -> Course:
    """One value in all places of a shape."""
    axis, number = _example_axis(at, 0)
    value = at.inputs[1] if len(at.inputs) > 1 else SHARED
    if number is None or number.kind is not Kind.SHARED:
        return replace(value, elements=None, leaves=None) if value.kind is Kind.SHARED else value
    return _laid_out(at, value, axis, number)


def _laid_out(at: At, value: Course, axis: int | None, number: Course) -> Course:
    """Rows that are all equal."""
    length = number.powers[0][0] if number.powers else EXAMPLES
    if value.kind is Kind.SHARED:
        return Course(
            Kind.ROWS,
            axis=axis,
            powers=value.powers,
            length=length,
            uniform=True,
            zero=value.zero,
            trained=value.trained,
        )
    row = Course(Kind.ROWS, axis=axis, length=length)
    tensor = at.op.inputs[0]
    return not_linear([Operand(tensor, row, False), Operand(tensor, value, False)], at.where)


def broadcast(at: At) -> Course:
    """A tensor in a larger shape."""
    course = at.inputs[0]
    axis, number = _example_axis(at, 1)
    if course.kind is Kind.ROWS:
        rank, out = at.rank(0), at.out_shape()
        if course.axis is None or rank is None or out is None:
            return course
        return replace(course, axis=course.axis + len(out) - rank)
    if number is None or number.kind is not Kind.SHARED:
        return replace(course, leaves=None, elements=None)
    return _laid_out(at, course, axis, number)


def tile(at: At) -> Course:
    """A tensor several times, side by side."""
    course = at.inputs[0]
    axis, number = _example_axis(at, 1)
    if course.kind is Kind.ROWS:
        return course
    if number is None or number.kind is not Kind.SHARED:
        return replace(course, leaves=None, elements=None)
    return _laid_out(at, course, axis, number)


def zeros_like(at: At) -> Course:
    """Zeros in the shape of a tensor."""
    course = at.inputs[0]
    if course.kind is Kind.ROWS:
        return Course(Kind.ROWS, axis=course.axis, length=course.length, uniform=True, zero=True)
    return ZERO


def ones_like(at: At) -> Course:
    """Ones in the shape of a tensor."""
    course = zeros_like(at)
    return replace(course, zero=False) if course.kind is Kind.ROWS else SHARED


def random(at: At) -> Course:
    """Random numbers: rows where the shape has the examples, else taken as a shared value."""
    if not at.inputs:
        return SHARED
    axis, number = _example_axis(at, 0)
    if number is None or number.kind is not Kind.SHARED:
        if at.op.kind in ("RandomShuffle", "Multinomial") and at.inputs[0].kind is Kind.ROWS:
            return replace(at.inputs[0], uniform=False)
        rows = next((c for c in at.inputs if c.kind is Kind.ROWS), None)
        return SHARED if rows is None else Course(Kind.ROWS, axis=rows.axis, length=rows.length)
    length = number.powers[0][0] if number.powers else EXAMPLES
    return Course(Kind.ROWS, axis=axis, length=length)


def range_(at: At) -> Course:
    """Numbers in a row; the positions of the examples if it has as many."""
    limit = at.inputs[1]
    if limit.kind is Kind.SHARED and limit.powers:
        length = limit.powers[0][0]
        return Course(Kind.ROWS, axis=0, length=length, index="positions")
    return SHARED


def gradient_axes(at: At) -> list[Course]:
    """The axes over which the gradients of a broadcast are summed: for each operand."""
    found = []
    for position in range(2):
        _, number = _example_axis(at, position)
        _, other = _example_axis(at, 1 - position)
        loses = number is None and other is not None
        found.append(Course(Kind.SHARED, index="lost axes" if loses else "kept axes"))
    return found


# Vectors of integers, and axes that move --------------------------------------------------------


def pack(at: At) -> Course:
    """Tensors side by side along a new axis."""
    is_vector = len(at.inputs) <= _LONGEST and at.rank(0) == 0 and bool(at.op.outputs)
    followed = all(c.kind in (Kind.SHARED, Kind.LOCAL) for c in at.inputs)
    if is_vector and followed and at.op.outputs[0].dtype in ("int32", "int64"):
        return _vector(at.inputs)
    axis = at.attribute("axis")
    return _stacked(at, axis)


def _stacked(at: At, axis: int) -> Course:
    course = joined(at.inputs, at.where)
    if course.kind is Kind.ROWS and course.axis is not None:
        rank = at.rank(0)
        at_axis = axis if axis >= 0 else (axis + (rank or 0) + 1)
        course = replace(course, axis=course.axis + (at_axis <= course.axis))
    return replace(course, elements=None, leaves=None)


def unpack(at: At) -> list[Course]:
    """The parts of a tensor along an axis."""
    course, number = at.inputs[0], max(1, len(at.op.outputs))
    if course.elements is not None and len(course.elements) == number:
        return list(course.elements)
    if course.kind is not Kind.ROWS or course.axis is None:
        return [replace(course, elements=None)] * number
    rank = at.rank(0)
    axis = at.attribute("axis")
    axis = axis if axis >= 0 or rank is None else axis + rank
    if axis == course.axis:
        return [local(f"{at.where} takes single examples", trained=course.trained)] * number
    return [replace(course, axis=course.axis - (axis < course.axis), index="")] * number


def concat(at: At) -> Course:
    """Tensors side by side along an axis."""
    *parts, _ = range(len(at.inputs))
    vectors = [_elements(at, position) for position in parts]
    has_elements = any(at.inputs[p].elements for p in parts)
    if has_elements and all(vector is not None for vector in vectors):
        return _vector([e for vector in vectors for e in vector or ()])
    inner = replace(at, inputs=tuple(at.inputs[p] for p in parts))
    course = joined(inner.inputs, at.where)
    axis, rank = at.integers(len(at.inputs) - 1), at.rank(0)
    if course.kind is not Kind.ROWS:
        return replace(course, leaves=None, elements=None)
    at_axis = axis[0] % rank if axis and rank else None
    if at_axis is not None and at_axis == course.axis:
        return _laid_behind(at, inner.inputs, course)
    return replace(course, index="positions" if _has_positions(inner) else course.index)


def _laid_behind(at: At, parts: Sequence[Course], course: Course) -> Course:
    """Rows behind rows, or behind something that has no rows."""
    if any(c.kind is not Kind.ROWS for c in parts):
        length = Count("rows", TensorRef(at.op.name))
        marks, why = course.marks | {BY_COUNT}, f"{at.where} lays something beside the examples"
        return replace(course, length=length, index="beside", marks=marks, why=why)
    lengths = {c.length for c in parts}
    length = lengths.pop() if len(lengths) == 1 else Count("rows", TensorRef(at.op.name))
    return replace(course, length=length, index="", blocks=sum(c.blocks for c in parts))


def _has_positions(at: At) -> bool:
    return any(c.index == "positions" for c in at.inputs)


def split(at: At) -> list[Course]:
    """The parts of a tensor along an axis."""
    first = at.op.kind == "Split"
    value, axis = (1, 0) if first else (0, 2)
    course, number = at.inputs[value], max(1, len(at.op.outputs))
    if course.kind is not Kind.ROWS:
        return [replace(course, elements=None, leaves=None)] * number
    given, rank = at.integers(axis), at.rank(value)
    if not given or rank is None or course.axis is None:
        return [unknown(at.where)] * number
    if given[0] % rank != course.axis:
        return [course] * number
    if first and number > 1 and course.blocks % number == 0:
        return [replace(course, index="", blocks=course.blocks // number)] * number
    return [local(f"{at.where} tells examples apart by their position")] * number


def strided_slice(at: At) -> Course:
    """A part of a tensor, or of a shape."""
    course = at.inputs[0]
    if course.kind in (Kind.UNKNOWN, Kind.NOTHING):
        return course
    begin, end, strides = (at.integers(position) for position in (1, 2, 3))
    if (elements := _elements(at, 0)) is not None and course.elements is not None:
        return _sliced_vector(at, elements, begin, end, strides)
    if course.index == "shape":
        return _sliced_shape(at, course, begin)
    if course.kind is not Kind.ROWS:
        return replace(course, leaves=None, elements=None)
    if course.axis is None:
        return course
    return _sliced_rows(at, course, begin, end, strides)


def _sliced_shape(at: At, course: Course, begin: Sequence[int] | None) -> Course:
    """A part of a shape of unknown rank."""
    if not at.attribute("shrink_axis_mask") or not begin:
        return course
    if course.axis is None:
        return unknown(f"{at.where} is of a shape whose rank is not known")
    return _number_of(course) if begin[0] == course.axis else SHARED


def _sliced_vector(
    at: At,
    elements: Sequence[Course],
    begin: Sequence[int] | None,
    end: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Course:
    if begin is None or strides is None or (end is None and not at.attribute("shrink_axis_mask")):
        return unknown(at.where)
    if at.attribute("shrink_axis_mask"):
        return elements[begin[0]] if -len(elements) <= begin[0] < len(elements) else SHARED
    low = None if at.attribute("begin_mask") & 1 else begin[0]
    high = None if at.attribute("end_mask") & 1 or end is None else end[0]
    return _vector(elements[low : high : strides[0]])


def _sliced_rows(
    at: At,
    course: Course,
    begin: Sequence[int] | None,
    end: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Course:
    """Follow the example axis through the entries of a slice."""
    static = at.shape(2) or at.shape(1)
    entries = len(begin or end or strides or ()) or (static[0] if static else None)
    rank, axis = at.rank(0), course.axis or 0
    if entries is None:
        return unknown(at.where)
    masks = {name: at.attribute(f"{name}_mask") for name in _MASKS}
    if masks["ellipsis"] and rank is None:
        return unknown(at.where)
    source = result = 0
    for entry in range(entries):
        bit = 1 << entry
        if masks["ellipsis"] & bit:
            later = sum(1 for n in range(entry + 1, entries) if not masks["new_axis"] & (1 << n))
            skipped = (rank or 0) - source - later
            if source <= axis < source + skipped:
                return replace(course, axis=result + axis - source)
            source, result = source + skipped, result + skipped
        elif masks["new_axis"] & bit:
            result += 1
        elif source == axis:
            return _cut_rows(at, course, entry, masks, result, begin, end, strides)
        else:
            source += 1
            result += 0 if masks["shrink_axis"] & bit else 1
    return replace(course, axis=result + axis - source)


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _cut_rows(
    at: At,
    course: Course,
    entry: int,
    masks: dict[str, int],
    result: int,
    begin: Sequence[int] | None,
    end: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Course:
    """What is left where a slice's entry is about the examples."""
    bit = 1 << entry
    step = strides[entry] if strides is not None else 1
    starts = masks["begin"] & bit or (begin is not None and begin[entry] == 0)
    size = (at.shape(0) or (None,) * (course.axis or 0 + 1))[course.axis or 0]
    ends = masks["end"] & bit or (end is not None and size is not None and end[entry] >= size)
    keeps = not masks["shrink_axis"] & bit and step == 1
    if keeps and starts and ends:
        return replace(course, axis=result)
    low, high = at.inputs[1].elements, at.inputs[2].elements
    if keeps and starts and high is not None and _is_number(high[entry]):
        return replace(_first_rows(course), axis=result)
    if keeps and ends and low is not None and _is_number(low[entry]):
        after = _last_rows(at, course)
        return replace(after, axis=result) if after.kind is Kind.ROWS else after
    if at.is_scalar(0) and size == 1:
        return replace(course, axis=result)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


def slice_gradient(at: At) -> Course:
    """A tensor put back into the place from which it was taken."""
    course = at.inputs[-1]
    axis, number = _example_axis(at, 0)
    if course.kind is Kind.ROWS and number is not None:
        return replace(course, axis=axis, uniform=False)
    if course.kind is Kind.ROWS or number is not None:
        return local(f"{at.where} takes examples by their position", trained=course.trained)
    return replace(course, elements=None, leaves=None)


def slice_(at: At) -> Course:
    """A part of a tensor."""
    course = at.inputs[0]
    if course.elements is not None:
        begin, sizes = at.integers(1), at.integers(2)
        if begin is None or sizes is None:
            return unknown(at.where)
        stop = None if sizes[0] < 0 else begin[0] + sizes[0]
        return _vector(course.elements[begin[0] : stop])
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, leaves=None)
    begin, sizes = at.integers(1), at.integers(2)
    starts = at.inputs[1].elements
    ends, static = at.inputs[2].elements, at.shape(0)
    size = static[course.axis] if static is not None else None
    at_begin = begin is not None and begin[course.axis] == 0
    to_end = sizes is not None and sizes[course.axis] in (-1, size)
    first = ends is not None and _is_number(ends[course.axis])
    if first and at.graph[at.op.inputs[1].op].kind == "ConcatOffset":
        return _first_rows(course)
    if at_begin and (to_end or (first and course.length != EXAMPLES and not course.marks)):
        return course
    if at_begin and first:
        return _first_rows(course)
    if starts is not None and _is_number(starts[course.axis]) and to_end:
        return _last_rows(at, course)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


def _is_number(course: Course) -> bool:
    """Whether it is a number of rows."""
    return course.kind is Kind.SHARED and [power for _, power in course.powers] == [1]


def _first_rows(course: Course) -> Course:
    """The first of the batches that lie behind each other, or what precedes something else."""
    return replace(
        course, index="", blocks=1, length=EXAMPLES, marks=course.marks - {BY_COUNT}, why=""
    )


def _last_rows(at: At, course: Course) -> Course:
    """What lies behind the first batch."""
    if course.index == "beside":
        return PARAMETER if course.trained else SHARED
    if course.blocks > 1:
        return replace(course, index="", blocks=course.blocks - 1)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


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
    axis, number = _example_axis(at, 1)
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
    if not after:
        return 0
    open_axes = [axis for axis, size in enumerate(after) if size is None]
    axis = course.axis
    if axis is None:
        return open_axes[0] if open_axes else None
    if axis == 0 or (before is not None and all(size == 1 for size in before[:axis])):
        first = next((n for n, size in enumerate(after) if size != 1), 0)
        size, batch = after[first], None if before is None else before[axis]
        if size is None or (at.batch and size % at.batch == 0) or size == batch:
            return first
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


# Along one axis ---------------------------------------------------------------------------------


def along_axis(at: At) -> Course:
    """Works along an axis that the second input names, and keeps it."""
    course = at.inputs[0]
    given, rank = at.integers(1), at.rank(0)
    if course.kind is Kind.ROWS and course.axis is not None:
        if given is None or rank is None:
            return unknown(at.where)
        if course.axis in {axis % rank for axis in given}:
            return local(f"{at.where} works along the examples", trained=course.trained)
    return _row_by_row(at, course)


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
        course = local(f"{at.where} works along the examples", trained=course.trained)
    return [_row_by_row(at, course)] * max(1, len(at.op.outputs))


def _row_by_row(at: At, course: Course) -> Course:
    if course.kind is Kind.ROWS:
        return not_linear([Operand(at.op.inputs[0], course, False)], at.where)
    if course.kind is Kind.SUM:
        return not_linear([Operand(at.op.inputs[0], course, False)], at.where)
    return replace(course, elements=None, leaves=None)


def pad(at: At) -> Course:
    """Rows and columns added around a tensor."""
    course, given = at.inputs[0], at.integers(1)
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, elements=None, leaves=None)
    if given is not None and any(given[2 * course.axis : 2 * course.axis + 2]):
        return unknown(f"{at.where} lays something else beside the examples")
    return course


def one_hot(at: At) -> Course:
    """One more axis, for classes."""
    course, axis = at.inputs[0], at.attribute("axis", -1)
    if course.kind is Kind.ROWS and course.axis is not None and 0 <= axis <= course.axis:
        course = replace(course, axis=course.axis + 1)
    return _row_by_row(at, replace(course, trained=False))


# Rows that are chosen ---------------------------------------------------------------------------


def where(at: At) -> Course:
    """The positions at which a tensor is not zero: as many as there happen to be."""
    course = at.inputs[0]
    if course.kind is not Kind.ROWS:
        return replace(course, trained=False, elements=None)
    length = Count("rows", TensorRef(at.op.name))
    return Course(Kind.ROWS, axis=0, length=length, index="selected")


def gather(at: At) -> Course:
    """Rows of a tensor by their numbers."""
    values, indices = at.inputs[0], at.inputs[1]
    if (bad := _bad(at.inputs[:2])) is not None:
        return bad
    axis = (at.integers(2) or (0,))[0] if len(at.inputs) > 2 else 0
    rank, batch_dims = at.rank(0), at.attribute("batch_dims")
    axis = axis + (rank or 0) if axis < 0 else axis
    if values.elements is not None:
        chosen = at.integers(1)
        if chosen is None:
            return unknown(at.where)
        picked = [values.elements[n] for n in chosen]
        return picked[0] if at.rank(1) == 0 else _vector(picked)
    if values.kind is Kind.ROWS and indices.kind is Kind.ROWS:
        return _gathered_rows(at, values, indices, axis, batch_dims)
    if values.kind is Kind.ROWS:
        return _gathered_columns(at, values, axis)
    if indices.kind is Kind.ROWS:
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


def _bad(courses: Sequence[Course]) -> Course | None:
    return next((c for c in courses if c.kind in (Kind.UNKNOWN, Kind.NOTHING)), None)


def _gathered_rows(at: At, values: Course, indices: Course, axis: int, batch_dims: int) -> Course:
    """Rows by the numbers of rows, or in each row by the row's own numbers."""
    if batch_dims > 0 and values.axis is not None and values.axis < batch_dims:
        return replace(values, index="", uniform=False)
    if values.axis in (axis, None):
        moved = None if indices.axis is None else indices.axis + axis
        of_unique = values.index == "unique"
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
        return Course(
            Kind.ROWS,
            axis=indices.axis,
            powers=values.powers,
            length=indices.length,
            trained=values.trained,
            marks=values.marks,
            why=values.why,
        )
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
    return replace(course, axis=0, length=EXAMPLES, index="", uniform=False)


def unique(at: At) -> list[Course]:
    """Each value once, and for each row which of these it is."""
    course, number = at.inputs[0], max(2, len(at.op.outputs))
    if course.kind is not Kind.ROWS:
        return [replace(course, elements=None, leaves=None)] * number
    length = Count("rows", TensorRef(at.op.name))
    why = f"{at.where} leaves out what occurs again"
    marks = course.marks | {BY_COUNT}
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
        return Course(
            Kind.ROWS,
            axis=0,
            length=last.powers[0][0] if is_count else EXAMPLES,
            powers=values.powers,
            trained=values.trained,
            marks=values.marks,
            why=values.why,
        )
    if values.kind is Kind.ROWS and values.axis in (0, None) and _is_plain(last):
        return Course(
            Kind.SUM,
            powers=values.powers,
            trained=values.trained,
            marks=values.marks,
            why=values.why,
        )
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
    axis, number = _example_axis(at, 2)
    if (bad := _bad(at.inputs)) is not None:
        return bad
    if axis is not None and number is not None:
        return Course(
            Kind.ROWS,
            axis=axis,
            powers=values.powers,
            trained=values.trained,
            marks=values.marks,
            why=values.why,
        )
    if indices.kind is Kind.ROWS or values.kind is Kind.ROWS:
        return Course(
            Kind.SUM,
            powers=values.powers,
            trained=values.trained,
            marks=values.marks,
            why=values.why,
        )
    return replace(values, leaves=None)


# Sequences that loops write and read ------------------------------------------------------------


def _without_first_axis(course: Course) -> Course:
    if course.kind is Kind.ROWS and course.axis is not None:
        return replace(course, axis=course.axis - 1)  # from 0 to OF_ARRAY
    return replace(course, elements=None)


def _with_first_axis(course: Course) -> Course:
    if course.kind is Kind.ROWS and course.axis is not None:
        return replace(course, axis=course.axis + 1)
    return replace(course, elements=None, leaves=None)


def empty_array(at: At) -> list[Course]:
    """An array or a list that nothing has been written into."""
    return [NOTHING] * max(1, len(at.op.outputs))


def array_write(at: At) -> Course:
    """The flow of an array after an element is written: what all its elements have in common."""
    return joined([at.inputs[3], at.inputs[2]], at.where)


def array_scatter(at: At) -> Course:
    """The same of many elements."""
    return joined([at.inputs[3], _without_first_axis(at.inputs[2])], at.where)


def array_read(at: At) -> Course:
    """One element."""
    return at.inputs[2]


def array_gather(at: At) -> Course:
    """Many elements along a new first axis."""
    return _with_first_axis(at.inputs[2])


def list_from(at: At) -> Course:
    """A list of the rows of a tensor."""
    return _without_first_axis(at.inputs[0])


def list_stack(at: At) -> Course:
    """The elements of a list along a new first axis."""
    return _with_first_axis(at.inputs[0])


def list_set(at: At) -> Course:
    """A list into which an element is written."""
    return joined([at.inputs[0], at.inputs[2]], at.where)


def list_push(at: At) -> Course:
    """A list with one more element."""
    return joined([at.inputs[0], at.inputs[1]], at.where)


def list_pop(at: At) -> list[Course]:
    """A list and its last element."""
    return [at.inputs[0], at.inputs[0]]


def merge(at: At) -> list[Course]:
    """One of the inputs, and which."""
    return [joined(at.inputs, at.where), SHARED]


def switch(at: At) -> list[Course]:
    """The input, on one of the outputs."""
    return [at.inputs[0]] * max(2, len(at.op.outputs))


def all_same(at: At) -> list[Course]:
    """Every input as it is."""
    return list(at.inputs)


# Kinds ------------------------------------------------------------------------------------------

_RANDOM = [
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "StatelessRandomUniform",
    "StatelessRandomUniformV2",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
]

SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_RANDOM, random),
    **dict.fromkeys(("Shape", "ShapeN"), shape),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_max),
    **dict.fromkeys(("Cumsum", "Cumprod", "ReverseV2"), along_axis),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), pad),
    **dict.fromkeys(("Gather", "GatherV2"), gather),
    **dict.fromkeys(("UnsortedSegmentSum", "SegmentSum", "SegmentSumV2"), segment_sum),
    **dict.fromkeys(("Split", "SplitV"), split),
    **dict.fromkeys(("Merge", "RefMerge"), merge),
    **dict.fromkeys(("Switch", "RefSwitch"), switch),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK"), along_last),
    **dict.fromkeys(
        ("TensorArrayV3", "TensorListReserve", "EmptyTensorList", "TensorArrayGradV3"), empty_array
    ),
    "BroadcastGradientArgs": gradient_axes,
    "BroadcastTo": broadcast,
    "ConcatV2": concat,
    "DynamicPartition": dynamic_partition,
    "DynamicStitch": dynamic_stitch,
    "ParallelDynamicStitch": dynamic_stitch,
    "Unique": unique,
    "UniqueV2": unique,
    "UniqueWithCounts": unique,
    "ExpandDims": expand_dims,
    "Fill": fill,
    "GatherNd": gather_nd,
    "IdentityN": all_same,
    "OptionalFromValue": lambda at: joined(at.inputs, at.where),
    "OptionalGetValue": same,
    "OptionalNone": empty_array,
    "OneHot": one_hot,
    "OnesLike": ones_like,
    "Pack": pack,
    "Range": range_,
    "Rank": lambda at: SHARED,
    "Reshape": reshape,
    "ScatterNd": scatter_nd,
    "Size": size,
    "Slice": slice_,
    "Squeeze": squeeze,
    "StridedSliceGrad": slice_gradient,
    "StridedSlice": strided_slice,
    "TensorArrayGatherV3": array_gather,
    "TensorArrayReadV3": array_read,
    "TensorArrayScatterV3": array_scatter,
    "TensorArrayWriteV3": array_write,
    "TensorArraySizeV3": lambda at: SHARED,
    "TensorListFromTensor": list_from,
    "TensorListGetItem": same,
    "TensorListLength": lambda at: SHARED,
    "TensorListElementShape": lambda at: SHARED,
    "TensorListPopBack": list_pop,
    "TensorListPushBack": list_push,
    "TensorListSetItem": list_set,
    "TensorListStack": list_stack,
    "Tile": tile,
    "Transpose": transpose,
    "Unpack": unpack,
    "Where": where,
    "ZerosLike": zeros_like,
}

ALL_RULES: dict[str, Rule] = {**RULES, **SHAPE_RULES}
