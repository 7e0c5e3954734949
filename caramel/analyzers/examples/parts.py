"""What ops that cut tensors into parts, and join parts, do to courses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.arithmetic import joined
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import (
    BY_COUNT,
    EXAMPLES,
    PARAMETER,
    SHARED,
    Count,
    Course,
    Kind,
    local,
    unknown,
)
from caramel.analyzers.examples.vectors import (
    LONGEST,
    elements_of,
    example_axis,
    is_number,
    number_of,
    vector_of,
)
from caramel.core.names import TensorRef


def pack(at: At) -> Course:
    """Tensors side by side along a new axis."""
    is_vector = len(at.inputs) <= LONGEST and at.rank(0) == 0 and bool(at.op.outputs)
    followed = all(c.kind in (Kind.SHARED, Kind.LOCAL) for c in at.inputs)
    # It may be a shape that is put together.
    if is_vector and followed and at.op.outputs[0].dtype in ("int32", "int64"):
        return vector_of(at.inputs)
    axis = at.attribute("axis")
    return _stacked(at, axis)


def _stacked(at: At, axis: int) -> Course:
    course = joined(at.inputs, at.where)
    if course.kind is Kind.ROWS and course.axis is not None:
        rank = at.rank(0)
        # A new axis is counted in the output, which has one more.
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
    vectors = [elements_of(at, position) for position in parts]
    has_elements = any(at.inputs[p].elements for p in parts)
    if has_elements and all(vector is not None for vector in vectors):
        return vector_of([e for vector in vectors for e in vector or ()])
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
        # A mean over its rows would also count what is not of the batch.
        marks, why = course.marks | {BY_COUNT}, f"{at.where} lays something beside the examples"
        return replace(course, length=length, index="beside", marks=marks, why=why)
    lengths = {c.length for c in parts}
    # Two batches of equal length, as in siamese networks: the number of rows is in proportion to
    # that of each.
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
    # Cutting two joined batches in half gives the batches back.
    if first and number > 1 and course.blocks % number == 0:
        return [replace(course, index="", blocks=course.blocks // number)] * number
    return [local(f"{at.where} tells examples apart by their position")] * number


def strided_slice(at: At) -> Course:
    """A part of a tensor, or of a shape."""
    course = at.inputs[0]
    if course.kind in (Kind.UNKNOWN, Kind.NOTHING):
        return course
    begin, end, strides = (at.integers(position) for position in (1, 2, 3))
    if (elements := elements_of(at, 0)) is not None and course.elements is not None:
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
    return number_of(course) if begin[0] == course.axis else SHARED


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
    return vector_of(elements[low : high : strides[0]])


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _sliced_rows(
    at: At,
    course: Course,
    begin: Sequence[int] | None,
    end: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Course:
    """Follow the example axis through the entries of a slice."""
    # The bounds are computed: only how many there are is known.
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
            # An ellipsis stands for all axes that no other entry takes.
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
    # A step would leave out examples by their position.
    keeps = not masks["shrink_axis"] & bit and step == 1
    if keeps and starts and ends:
        return replace(course, axis=result)
    low, high = at.inputs[1].elements, at.inputs[2].elements
    # Cut at a number of examples: the first of two joined batches.
    if keeps and starts and high is not None and is_number(high[entry]):
        return replace(_first_rows(course), axis=result)
    if keeps and ends and low is not None and is_number(low[entry]):
        after = _last_rows(at, course)
        return replace(after, axis=result) if after.kind is Kind.ROWS else after
    # One example in all: taking the first takes all.
    if at.is_scalar(0) and size == 1:
        return replace(course, axis=result)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


def slice_gradient(at: At) -> Course:
    """A tensor put back into the place from which it was taken."""
    course = at.inputs[-1]
    axis, number = example_axis(at, 0)
    if course.kind is Kind.ROWS and number is not None:
        # Zeros lie around it in the larger shape: rows are not equal any more.
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
        return vector_of(course.elements[begin[0] : stop])
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, leaves=None)
    begin, sizes = at.integers(1), at.integers(2)
    starts = at.inputs[1].elements
    ends, static = at.inputs[2].elements, at.shape(0)
    size = static[course.axis] if static is not None else None
    at_begin = begin is not None and begin[course.axis] == 0
    to_end = sizes is not None and sizes[course.axis] in (-1, size)
    first = ends is not None and is_number(ends[course.axis])
    # The gradient of a concatenation: each part is cut out again.
    if first and at.graph[at.op.inputs[1].op].kind == "ConcatOffset":
        return _first_rows(course)
    if at_begin and (to_end or (first and course.length != EXAMPLES and not course.marks)):
        return course
    if at_begin and first:
        return _first_rows(course)
    if starts is not None and is_number(starts[course.axis]) and to_end:
        return _last_rows(at, course)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


def _first_rows(course: Course) -> Course:
    """The first of the batches that lie behind each other, or what precedes something else."""
    return replace(
        course, index="", blocks=1, length=EXAMPLES, marks=course.marks - {BY_COUNT}, why=""
    )


def _last_rows(at: At, course: Course) -> Course:
    """What lies behind the first batch."""
    # Behind the examples stands what was joined to them, and is the same on all workers.
    if course.index == "beside":
        return PARAMETER if course.trained else SHARED
    if course.blocks > 1:
        return replace(course, index="", blocks=course.blocks - 1)
    return local(f"{at.where} takes examples by their position", trained=course.trained)


def pad(at: At) -> Course:
    """Rows and columns added around a tensor."""
    course, given = at.inputs[0], at.integers(1)
    if course.kind is not Kind.ROWS or course.axis is None:
        return replace(course, elements=None, leaves=None)
    if given is not None and any(given[2 * course.axis : 2 * course.axis + 2]):
        # Padding adds rows that are no examples.
        return unknown(f"{at.where} lays something else beside the examples")
    return course


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), pad),
    **dict.fromkeys(("Split", "SplitV"), split),
    "ConcatV2": concat,
    "Pack": pack,
    "Slice": slice_,
    "StridedSlice": strided_slice,
    "StridedSliceGrad": slice_gradient,
    "Unpack": unpack,
}
