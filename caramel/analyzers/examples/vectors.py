"""Shapes as vectors of integers, whose elements are followed one by one."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.analyzers.examples.at import At
from caramel.analyzers.examples.courses import SHARED, Course, Kind, unknown

LONGEST = 16  # vectors whose elements are followed one by one


def number_of(course: Course) -> Course:
    """The number of rows, or of elements in them."""
    return Course(Kind.SHARED, powers=((course.length, 1),))


def is_number(course: Course) -> bool:
    """Whether it is a number of rows."""
    return course.kind is Kind.SHARED and [power for _, power in course.powers] == [1]


def is_plain(course: Course) -> bool:
    return course.kind is Kind.SHARED and not course.powers


def vector_of(elements: Sequence[Course]) -> Course:
    # Nothing in it has to do with examples: no need to follow it.
    if all(e == SHARED for e in elements):
        return SHARED
    worst = next((e for e in elements if e.kind not in (Kind.SHARED, Kind.NOTHING)), None)
    if worst is not None and any(e.kind is Kind.UNKNOWN for e in elements):
        return unknown(worst.why)
    return Course(Kind.SHARED, elements=tuple(elements))


def elements_of(at: At, position: int) -> tuple[Course, ...] | None:
    """The elements of a vector of integers, one by one."""
    course = at.inputs[position]
    if course.elements is not None:
        return course.elements
    if not is_plain(course) or course.index == "shape":
        return None
    numbers, static = at.integers(position), at.shape(position)
    if numbers is not None:
        return (SHARED,) * len(numbers)
    if static is not None and len(static) == 1 and static[0] is not None and static[0] <= LONGEST:
        return (SHARED,) * static[0]
    return None


def example_axis(at: At, position: int) -> tuple[int | None, Course | None]:
    """Which element of a shape goes with the examples, and its course."""
    course = at.inputs[position]
    if course.index == "shape":
        return course.axis, number_of(course)
    for axis, element in enumerate(course.elements or ()):
        if element.powers or element.kind is not Kind.SHARED:
            return axis, element
    return None, None
