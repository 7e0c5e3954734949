"""The courses of sums, products, quotients and of what is not linear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from caramel.analyzers.examples.courses import (
    BY_COUNT,
    EXAMPLES,
    NOTHING,
    PARAMETER,
    PER_EXAMPLE,
    ROOT,
    SCALE,
    SHARED,
    SHIFT,
    ZERO,
    Count,
    Course,
    Kind,
    Leaf,
    Powers,
    as_sum,
    joined_leaves,
    leaves_of,
    local,
    multiplied_powers,
)
from caramel.core.names import TensorRef


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


def added(operands: Sequence[Operand], where: str) -> Course:
    """The course of a sum (or a difference) of tensors.

    Args:
        where: names the op, for people.
    """
    given = [o for o in operands if o.course.kind is not Kind.NOTHING]
    # Adding zeros changes nothing.
    operands = [o for o in given if not o.course.zero] or given[:1]
    courses = [o.course for o in operands]
    if not courses:
        return NOTHING
    trained = any(o.course.trained for o in given)
    if (worst := _worst(courses)) is not None:
        return worst
    # Zeros count here for their shape: rows of zeros plus a number are rows.
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
        # The terms scale differently with the examples, so their sum has no power of a count.
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
    # A number that is the same everywhere is its own mean, so a mean plus this number is still a
    # mean. In a sum it must count once, and not once for each worker.
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
        # Not where the sum has a shared part, such as a weight decay: that would scale differently.
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
    # The value of this factor on the whole batch can be computed (the sum of a mask, say). So it is
    # a count, like the number of examples.
    if count is not None and ROOT not in factor.course.marks:
        return replace(rows, powers=multiplied_powers(rows.powers, ((count, 1),)), uniform=False)
    return _marked(replace(rows, powers=powers), {SCALE, *factor.course.marks}, where)


def count_of(operand: Operand) -> Count | None:
    """A scalar as a count, if it can be computed again on every worker and is not trained."""
    # If it depends on a parameter, gradients have a term for it, too.
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
        # A function of a count, such as its logarithm, does not scale by any power of it.
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
        # `pop` has emptied the set if there was one common power. Otherwise there were several.
        return _marked(rows, {*others, *({BY_COUNT} if powers else ())}, where)
    if any(c.kind is Kind.LOCAL for c in distinct):
        return replace(next(c for c in distinct if c.kind is Kind.LOCAL), trained=trained)
    if all(c.kind is Kind.SHARED for c in distinct) and len({c.powers for c in distinct}) == 1:
        return Course(Kind.SHARED, powers=distinct[0].powers, trained=trained)
    return _added_sums(distinct, trained, None, where)


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
