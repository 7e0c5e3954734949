"""How a tensor goes with the examples of a batch, as a value to reckon with: its *course*.

A batch is split over workers. A course says how the value of a tensor on the whole batch follows
from its values on the workers' parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from caramel.core.names import TensorRef


class Kind(Enum):
    """How the value on the whole batch follows from those on the parts."""

    # What a loop has not put out yet.
    NOTHING = "nothing"
    # The value is the same on every worker.
    SHARED = "shared"
    # The parts laid side by side along an axis: every row belongs to one example.
    ROWS = "rows"
    # The sum of the parts' values.
    SUM = "sum"
    # None of these: a norm, a maximum over the batch, a comparison of examples.
    LOCAL = "local"
    # Computed by an op of which nobody knows what it does.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class Leaf:
    """A scalar from which a count is computed: a sum over the examples, or their mean."""

    tensor: TensorRef
    of: Literal["sum", "mean"] = "sum"


@dataclass(frozen=True, slots=True)
class Count:
    """A number that is a sum over the examples itself, and by which tensors are divided.

    Attributes:
        of: the number of "examples"; the "value" of a scalar tensor; the number of the "rows" of a
            tensor.
        tensor: which one.
        leaves: what the value is computed from.
    """

    of: Literal["examples", "value", "rows"]
    tensor: TensorRef | None = None
    leaves: frozenset[Leaf] = frozenset()


OF_ARRAY = -1
EXAMPLES = Count("examples")

Powers = tuple[tuple[Count, int], ...]
# A mean over the examples is a sum times this.
PER_EXAMPLE: Powers = ((EXAMPLES, -1),)

SHIFT, SCALE, ROOT, BY_COUNT = "shift", "scale", "root", "by count"
"""What has been done to rows with values of the worker's own batch: something was added, or
multiplied by, something that is the inverse of a root; or an op that is not linear saw a count."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a tensor goes with the examples.

    Attributes:
        axis: of rows, that along which they are laid side by side; None if it is not known, and
            `OF_ARRAY` where they are the elements of an array, which a loop takes one by one.
        powers: the counts that it is multiplied by, each with its exponent.
        length: of rows, the count that is in proportion to how many there are.
        uniform: whether all rows are equal, and the same on every worker.
        affine: whether a sum has a part that is the same on every worker.
        zero: whether all elements are known to be 0.
        trained: whether differentiation finds a way to a parameter.
        leaves: what a scalar can be computed from again; None if it cannot.
        marks: what has been done with values of the worker's own batch.
        elements: of a short vector of integers, the course of each.
        index: of rows, what their values point at: "positions" of rows in the worker's part, or
            rows that are "selected"; of shapes and axes, what they are about.
        blocks: of rows, how many batches lie one behind the other.
        why: for people: what made it `LOCAL` or `UNKNOWN`, or left the first mark.
    """

    kind: Kind
    axis: int | None = None
    powers: Powers = ()
    length: Count = EXAMPLES
    uniform: bool = False
    affine: bool = False
    zero: bool = False
    trained: bool = False
    leaves: frozenset[Leaf] | None = None
    marks: frozenset[str] = frozenset()
    elements: tuple[Course, ...] | None = None
    index: str = ""
    blocks: int = 1
    why: str = ""


NOTHING = Course(Kind.NOTHING)
SHARED = Course(Kind.SHARED)
PARAMETER = Course(Kind.SHARED, trained=True)
ZERO = Course(Kind.SHARED, zero=True)
# The number of examples: 1, which is the same everywhere, times the number of examples.
NUMBER = Course(Kind.SHARED, powers=((EXAMPLES, 1),))


def local(why: str, *, root: bool = False, **options: object) -> Course:
    """Neither rows nor a sum, and why."""
    marks = frozenset({ROOT}) if root else frozenset()
    return Course(Kind.LOCAL, marks=marks, why=why, **options)  # type: ignore[arg-type]


def unknown(why: str) -> Course:
    """What nobody knows, and why."""
    return Course(Kind.UNKNOWN, why=why)


def multiplied_powers(first: Powers, second: Powers, exponent: int = 1) -> Powers:
    """The product of two products of powers, the second one to an exponent."""
    if not second:
        return first
    found = dict(first)
    for count, power in second:
        found[count] = found.get(count, 0) + exponent * power
    return tuple(sorted(((c, p) for c, p in found.items() if p), key=str))


def as_sum(course: Course) -> Course:
    """A shared number of parts as their sum: what is shared is its own mean."""
    if course.kind is not Kind.SHARED:
        return course
    powers = multiplied_powers(course.powers, PER_EXAMPLE)
    return replace(course, kind=Kind.SUM, powers=powers, elements=None)


def leaves_of(tensor: TensorRef, course: Course, *, is_scalar: bool) -> frozenset[Leaf] | None:
    """What a tensor can be computed from again where sums over all workers are known."""
    if course.kind is Kind.SHARED and not course.powers:
        return frozenset()
    # Only scalars are sent between the workers to be added up.
    if not is_scalar or course.marks or course.kind is Kind.ROWS:
        return None
    # It is no sum itself, but may be computed from sums: `maximum(count, 1)`, say.
    if course.kind is Kind.LOCAL or course.affine:
        return course.leaves
    powers = as_sum(course).powers
    if course.kind in (Kind.SHARED, Kind.SUM) and powers in ((), PER_EXAMPLE):
        return frozenset({Leaf(tensor, "mean" if powers else "sum")})
    return None


def joined_leaves(several: Iterable[frozenset[Leaf] | None]) -> frozenset[Leaf] | None:
    """What all can be computed from again, if each can."""
    found: frozenset[Leaf] = frozenset()
    for leaves in several:
        if leaves is None:
            return None
        found |= leaves
    return found
