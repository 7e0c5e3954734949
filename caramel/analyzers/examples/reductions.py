"""What sums, means and other reductions do to courses."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, not_linear
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import (
    OF_ARRAY,
    SHARED,
    ZERO,
    Course,
    Kind,
    Powers,
    local,
    multiplied_powers,
    unknown,
)
from caramel.analyzers.examples.elementwise import square

_LINEAR_REDUCTIONS = frozenset({"Sum", "Mean"})


def reduce_(at: At) -> Course:
    """Sums, means, and other reductions over some axes."""
    course = at.inputs[0]
    if course.kind is not Kind.ROWS:
        return _reduced_whole(at, course)
    reads = at.inputs[1]
    # An element of an array belongs to one example: none of its axes has the examples.
    if course.axis == OF_ARRAY:
        return course
    # Gradients of broadcasts are summed over the axes that a `BroadcastGradientArgs` tells.
    if reads.index in ("kept axes", "lost axes"):
        return _over_examples(at, course) if reads.index == "lost axes" else _floating(course)
    axes = _axes(at)
    if _is_total(at) or (axes is not None and course.axis in axes):
        return _over_examples(at, course)
    if axes is None or course.axis is None:
        return unknown(
            f"{at.where} reduces over axes of which it is not known whether the examples "
            "are among them"
        )
    keeps = bool(at.attribute("keep_dims"))
    # Axes that are removed before it shift it to the front.
    before = 0 if keeps else sum(axis < course.axis for axis in axes)
    left = replace(course, axis=course.axis - before, index="")
    if at.op.kind in _LINEAR_REDUCTIONS:
        return left
    return not_linear([Operand(at.op.inputs[0], left, False)], at.where)


def _axes(at: At) -> list[int] | None:
    """The axes that a reduction runs over, of a course of rows; None if they are not known."""
    rank, given = at.rank(0), at.integers(1)
    if given is None:
        return None
    if rank is None:
        return list(given) if all(axis >= 0 for axis in given) else None
    return sorted({axis % rank if rank else axis for axis in given})


def _is_total(at: At) -> bool:
    """Whether a reduction runs over all axes."""
    if at.out_shape() == ():
        return True
    axes = at.graph[at.op.inputs[1].op]
    return (
        axes.kind == "Range"
        and at.graph.constants.get(axes.inputs[0].op) == 0
        and (at.graph[axes.inputs[1].op].kind == "Rank")
    )


def _floating(course: Course) -> Course:
    """Rows along an axis that the next reshape tells."""
    return replace(course, axis=None)


def _over_examples(at: At, course: Course) -> Course:
    if at.op.kind not in _LINEAR_REDUCTIONS:
        # The maximum of equal rows is one of them.
        if course.uniform and not course.powers:
            return SHARED
        return local(f"{at.where} is no sum over the examples", trained=course.trained)
    powers = course.powers
    if at.op.kind == "Mean":
        powers = multiplied_powers(powers, ((course.length, -1),))
    return sum_of(course, powers)


def sum_of(course: Course, powers: Powers) -> Course:
    """The sum of rows, with other powers."""
    if course.zero:
        return ZERO
    # Equal rows add up to one of them times their number.
    if course.uniform and not course.marks:
        powers = multiplied_powers(powers, ((course.length, 1),))
        return Course(Kind.SHARED, powers=powers, trained=course.trained)
    return Course(
        Kind.SUM, powers=powers, trained=course.trained, marks=course.marks, why=course.why
    )


def _reduced_whole(at: At, course: Course) -> Course:
    # The number of elements of a tensor, as a product of its shape.
    if at.op.kind == "Prod" and course.elements is not None:
        powers: Powers = ()
        for element in course.elements:
            if element.kind is not Kind.SHARED:
                return replace(element, elements=None)
            powers = multiplied_powers(powers, element.powers)
        return Course(Kind.SHARED, powers=powers)
    if course.index == "shape":  # which of its elements these are is not known
        return unknown(f"{at.where} is of a shape whose rank is not known")
    if at.op.kind in _LINEAR_REDUCTIONS or course.kind in (Kind.UNKNOWN, Kind.NOTHING):
        return replace(course, elements=None, leaves=None)
    # The maximum or the product of one element is that element.
    if at.is_scalar(0):
        return replace(course, elements=None)
    return not_linear([Operand(at.op.inputs[0], course, False)], at.where)


def l2_loss(at: At) -> Course:
    """Half the sum of squares."""
    squared = square(at)
    if squared.kind is Kind.ROWS:
        return sum_of(replace(squared, uniform=False), squared.powers)
    return squared


def bias_gradient(at: At) -> Course:
    """The sum of rows over all axes but the last."""
    course = at.inputs[0]
    return sum_of(course, course.powers) if course.kind is Kind.ROWS else course


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm"), reduce_),
    "BiasAddGrad": bias_gradient,
    "L2Loss": l2_loss,
}
