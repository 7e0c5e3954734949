"""How a tensor goes with the examples of a batch, as a value to reckon with.

A batch is split over workers. The *course* of a tensor says how its value on the whole batch
follows from the values on the parts:

- ``SHARED``: the same on every worker;
- ``ROWS``: the parts laid side by side along an axis, since every row belongs to one example;
- ``SUM``: the sum of the parts' values;
- ``LOCAL``: none of these (a norm, a maximum over the batch, a comparison of examples);
- ``UNKNOWN``: nobody knows what an op does.

Each of the first three may be multiplied by powers of *counts*: numbers that are sums over the
examples themselves, above all the number of examples. A mean is a ``SUM`` times the number of
examples to the power -1, and the number of examples is ``SHARED`` times itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from caramel.core.names import TensorRef


class Kind(Enum):
    """See the module's docstring; ``NOTHING`` is what a loop has not put out yet."""

    NOTHING = "nothing"
    SHARED = "shared"
    ROWS = "rows"
    SUM = "sum"
    LOCAL = "local"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class Leaf:
    """A scalar from which a count is computed: a sum over the examples, or their mean."""

    tensor: TensorRef
    of: Literal["sum", "mean"] = "sum"


@dataclass(frozen=True, slots=True)
class Count:
    """A number by which tensors are divided.

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
    if not is_scalar or course.marks or course.kind is Kind.ROWS:
        return None
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


# Operands ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operand:
    """What an elementwise op reads; the axis of its course counts in the op's output."""

    tensor: TensorRef
    course: Course
    is_scalar: bool

    @property
    def leaves(self) -> frozenset[Leaf] | None:
        """What it can be computed from again."""
        return leaves_of(self.tensor, self.course, is_scalar=self.is_scalar)


def _worst(courses: Iterable[Course]) -> Course | None:
    return next((course for course in courses if course.kind is Kind.UNKNOWN), None)


def _rows_of(courses: Sequence[Course], where: str) -> Course | None:
    """What the rows among operands have in common, without powers; None if there are none."""
    rows = [course for course in courses if course.kind is Kind.ROWS]
    if not rows:
        return None
    axes = {course.axis for course in rows if course.axis is not None}
    if len(axes) > 1:
        return local(f"{where} compares examples with each other")
    whole = len(rows) == len(courses) or all(c.kind is Kind.SHARED for c in courses)
    first = next((course for course in rows if course.length != EXAMPLES), rows[0])
    return Course(
        Kind.ROWS,
        axis=min(axes, default=None),
        length=first.length,
        uniform=all(
            course.uniform if course.kind is Kind.ROWS else course.kind is Kind.SHARED
            for course in courses
        )
        or (whole and all(course.uniform for course in rows)),
        trained=any(course.trained for course in courses),
        marks=frozenset().union(*(course.marks for course in rows)),
        index=first.index,
        blocks=_common_blocks(rows),
        why=next((course.why for course in rows if course.why), ""),
    )


def _common_blocks(rows: Sequence[Course]) -> int:
    blocks = {course.blocks for course in rows}
    return blocks.pop() if len(blocks) == 1 else 1


def _marked(course: Course, marks: Iterable[str], why: str) -> Course:
    marks = frozenset(marks)
    if not marks or course.kind is not Kind.ROWS:
        return course
    return replace(course, marks=course.marks | marks, uniform=False, why=course.why or why)


def added(operands: Sequence[Operand], where: str) -> Course:
    """The course of a sum (or a difference) of tensors.

    Args:
        where: names the op, for people.
    """
    given = [o for o in operands if o.course.kind is not Kind.NOTHING]
    operands = [o for o in given if not o.course.zero] or given[:1]
    courses = [o.course for o in operands]
    if not courses:
        return NOTHING
    trained = any(o.course.trained for o in given)
    if (worst := _worst(courses)) is not None:
        return worst
    rows = _rows_of([o.course for o in given], where)
    if rows is not None:
        return _added_rows(rows, courses, where) if rows.kind is Kind.ROWS else rows
    if len(courses) == 1:
        return replace(courses[0], trained=trained)
    leaves = joined_leaves(o.leaves for o in operands)
    if any(course.kind is Kind.LOCAL for course in courses):
        why = next((c.why for c in courses if c.kind is Kind.LOCAL), where)
        root = any(ROOT in c.marks for c in courses)
        return local(why, root=root, leaves=leaves, trained=trained)
    if all(c.kind is Kind.SHARED and c.powers == courses[0].powers for c in courses):
        return Course(Kind.SHARED, powers=courses[0].powers, trained=trained)
    return _added_sums(courses, trained, leaves, where)


def _added_rows(rows: Course, courses: Sequence[Course], where: str) -> Course:
    marks = set()
    powers = {c.powers for c in courses if c.kind in (Kind.ROWS, Kind.SHARED)}
    if len(powers) > 1:
        marks.add(BY_COUNT)
    others = [c for c in courses if c.kind in (Kind.SUM, Kind.LOCAL)]
    if others:
        marks.add(SHIFT)
        marks.update(mark for c in others for mark in c.marks)
    rows = replace(rows, powers=powers.pop() if len(powers) == 1 else ())
    return _marked(rows, marks, where)


def _added_sums(
    courses: Sequence[Course], trained: bool, leaves: frozenset[Leaf] | None, where: str
) -> Course:
    """The sum of sums, and of numbers that are the same on every worker."""
    shared = any(c.kind is Kind.SHARED and not c.powers for c in courses)
    sums = [as_sum(c) for c in courses if c.kind is not Kind.SHARED or c.powers]
    powers = {c.powers for c in sums}
    if len(powers) > 1:
        why = f"{where} adds numbers that do not scale alike with the examples"
        return local(why, leaves=leaves, trained=trained)
    own = powers.pop()
    return Course(
        Kind.SUM,
        powers=own,
        affine=any(c.affine for c in sums) or (shared and own != PER_EXAMPLE),
        trained=trained,
        leaves=leaves,
        marks=frozenset().union(*(c.marks for c in sums)),
        why=next((c.why for c in sums if c.why), ""),
    )


def multiplied(first: Operand, second: Operand, where: str) -> Course:
    """The course of a product."""
    a, b = first.course, second.course
    if Kind.NOTHING in (a.kind, b.kind):
        return NOTHING
    if (worst := _worst((a, b))) is not None:
        return worst
    if a.zero or b.zero:
        rows = _rows_of((a, b), where)
        return ZERO if rows is None else replace(rows, zero=True, uniform=True)
    trained = a.trained or b.trained
    powers = multiplied_powers(a.powers, b.powers)
    rows = _rows_of((a, b), where)
    if rows is not None:
        if rows.kind is not Kind.ROWS:
            return rows
        factor = next((o for o in (first, second) if o.course.kind is not Kind.ROWS), None)
        return _scaled_rows(rows, powers, factor, where)
    if a.kind is Kind.SHARED and b.kind is Kind.SHARED:
        return Course(Kind.SHARED, powers=powers, trained=trained)
    if a.kind is Kind.SHARED or b.kind is Kind.SHARED:
        shared, other = (a, b) if a.kind is Kind.SHARED else (b, a)
        if other.kind is Kind.SUM and not (other.affine and shared.powers):
            leaves = None if shared.powers else other.leaves
            return replace(other, powers=powers, trained=trained, leaves=leaves)
    leaves = joined_leaves((first.leaves, second.leaves))
    root = ROOT in a.marks | b.marks
    why = a.why or b.why or f"{where} multiplies two values of the whole batch"
    return local(why, root=root, leaves=leaves, trained=trained)


def _scaled_rows(rows: Course, powers: Powers, factor: Operand | None, where: str) -> Course:
    if factor is None or factor.course.kind is Kind.SHARED:
        return replace(rows, powers=powers)
    count = count_of(factor)
    if count is not None and ROOT not in factor.course.marks:
        return replace(rows, powers=multiplied_powers(rows.powers, ((count, 1),)), uniform=False)
    return _marked(replace(rows, powers=powers), {SCALE, *factor.course.marks}, where)


def count_of(operand: Operand) -> Count | None:
    """A scalar as a count, if it can be computed again on every worker and is not trained."""
    if operand.course.trained or not operand.leaves:
        return None
    return Count("value", operand.tensor, operand.leaves)


def inverse(operand: Operand, where: str) -> Operand:
    """One divided by a tensor."""
    course = operand.course
    match course.kind:
        case Kind.SHARED | Kind.ROWS:
            powers = multiplied_powers((), course.powers, -1)
            course = replace(course, powers=powers, zero=False, elements=None)
        case Kind.SUM | Kind.LOCAL:
            count = count_of(operand)
            if count is not None and ROOT not in course.marks:
                course = Course(Kind.SHARED, powers=((count, -1),))
            else:
                why = course.why or f"{where} divides by a value of the whole batch"
                course = local(why, root=ROOT in course.marks, trained=course.trained)
    return Operand(operand.tensor, course, operand.is_scalar)


def not_linear(
    operands: Sequence[Operand], where: str, *, root: bool = False, differentiable: bool = True
) -> Course:
    """The course of what an op that is not linear makes of each element by itself."""
    courses = [o.course for o in operands]
    if any(c.kind is Kind.NOTHING for c in courses):
        return NOTHING
    if (worst := _worst(courses)) is not None:
        return worst
    trained = differentiable and any(c.trained for c in courses)
    rows = _rows_of(courses, where)
    if rows is not None:
        if rows.kind is not Kind.ROWS:
            return rows
        marks = {BY_COUNT} if any(c.powers for c in courses) else set()
        others = [c for c in courses if c.kind in (Kind.SUM, Kind.LOCAL)]
        marks |= {SHIFT} if others else set()
        marks.update(mark for c in others for mark in c.marks)
        return _marked(replace(rows, trained=trained, index=""), marks, where)
    if all(c.kind is Kind.SHARED and not c.powers for c in courses):
        return PARAMETER if trained else SHARED
    leaves = joined_leaves(o.leaves for o in operands)
    why = next((c.why for c in courses if c.why), f"{where} is not linear in the sum over examples")
    is_root = root or any(ROOT in c.marks for c in courses)
    return local(why, root=is_root, leaves=leaves, trained=trained)


def joined(courses: Sequence[Course], where: str) -> Course:
    """The course of a tensor that is one of several, the same choice on every worker."""
    there = [c for c in courses if c.kind is not Kind.NOTHING]
    distinct = list(dict.fromkeys(there))
    if len(distinct) <= 1:
        return distinct[0] if distinct else NOTHING
    if (worst := _worst(distinct)) is not None:
        return worst
    trained = any(c.trained for c in distinct)
    distinct = [c for c in distinct if not c.zero] or distinct
    rows = _rows_of(distinct, where)
    if rows is not None:
        if rows.kind is not Kind.ROWS:
            return rows
        powers = {c.powers for c in distinct if c.kind is Kind.ROWS}
        others = {m for c in distinct if c.kind in (Kind.SUM, Kind.LOCAL) for m in c.marks}
        rows = replace(rows, powers=powers.pop() if len(powers) == 1 else (), trained=trained)
        return _marked(rows, {*others, *({BY_COUNT} if powers else ())}, where)
    if any(c.kind is Kind.LOCAL for c in distinct):
        return replace(next(c for c in distinct if c.kind is Kind.LOCAL), trained=trained)
    if all(c.kind is Kind.SHARED for c in distinct) and len({c.powers for c in distinct}) == 1:
        return Course(Kind.SHARED, powers=distinct[0].powers, trained=trained)
    return _added_sums(distinct, trained, None, where)
