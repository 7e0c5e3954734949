"""What ops do to courses that tell shapes, or that fill a tensor of a given shape."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, not_linear
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import EXAMPLES, OF_ARRAY, SHARED, ZERO, Course, Kind
from caramel.analyzers.examples.vectors import example_axis, number_of, vector_of


def shape(at: At) -> list[Course]:
    """The shapes of all inputs, as vectors."""
    return [_shape_of(at, position) for position in range(len(at.inputs))]


def _shape_of(at: At, position: int) -> Course:
    course, rank = at.inputs[position], at.rank(position)
    if course.kind is not Kind.ROWS or course.axis == OF_ARRAY:
        return SHARED
    if rank is None or course.axis is None or course.axis >= rank:
        # The rank is not known, so the elements cannot be listed: the vector is marked as a shape.
        return Course(Kind.SHARED, index="shape", axis=course.axis, length=course.length)
    elements = [SHARED] * rank
    elements[course.axis] = number_of(course)
    return vector_of(elements)


def size(at: At) -> Course:
    """The number of elements."""
    return number_of(at.inputs[0]) if at.inputs[0].kind is Kind.ROWS else SHARED


def fill(at: At) -> Course:
    """One value in all places of a shape."""
    axis, number = example_axis(at, 0)
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
    # Every row holds a value that was computed from the worker's own batch.
    row = Course(Kind.ROWS, axis=axis, length=length)
    tensor = at.op.inputs[0]
    return not_linear([Operand(tensor, row, False), Operand(tensor, value, False)], at.where)


def broadcast(at: At) -> Course:
    """A tensor in a larger shape."""
    course = at.inputs[0]
    axis, number = example_axis(at, 1)
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
    axis, number = example_axis(at, 1)
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


def random(at: At) -> Course:
    """Random numbers: rows where the shape has the examples, else taken as a shared value."""
    if not at.inputs:
        return SHARED
    axis, number = example_axis(at, 0)
    if number is None or number.kind is not Kind.SHARED:
        # These read the batch itself, not its shape.
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
        _, number = example_axis(at, position)
        _, other = example_axis(at, 1 - position)
        # Only the other operand has the examples: the gradient of this one is summed over them.
        loses = number is None and other is not None
        found.append(Course(Kind.SHARED, index="lost axes" if loses else "kept axes"))
    return found


RULES: dict[str, Rule] = {
    **dict.fromkeys(_RANDOM, random),
    **dict.fromkeys(("Shape", "ShapeN"), shape),
    "BroadcastGradientArgs": gradient_axes,
    "BroadcastTo": broadcast,
    "Fill": fill,
    "OnesLike": ones_like,
    "Range": range_,
    "Rank": lambda at: SHARED,
    "Size": size,
    "Tile": tile,
    "ZerosLike": zeros_like,
}
