"""Courses of what a function returns, as they are seen where it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caramel.analyzers.examples.courses import Count, Course, Leaf, Powers
from caramel.core.names import TensorRef

_HIDDEN = "@"  # begins what stands for an op in a function, which cannot be read from outside


class Outside:
    """Courses as they are seen outside the function in which they were found.

    Args:
        inputs: the courses that the function was called with.
        outer: for each argument the tensor that was passed.
    """

    def __init__(self, inputs: Sequence[Course], outer: Mapping[str, TensorRef]) -> None:
        self._counts = {count for course in inputs for count, _ in course.powers}
        self._counts |= {course.length for course in inputs}
        self._leaves = {leaf for course in inputs for leaf in course.leaves or ()}
        self._leaves |= {leaf for count in self._counts for leaf in count.leaves}
        self._outer = outer

    def course(self, course: Course) -> Course:
        """The course with its counts as they can be read outside, or else hidden."""
        powers: Powers = tuple((self._count(count), power) for count, power in course.powers)
        length = self._count(course.length)
        leaves = course.leaves
        if leaves is not None:
            leaves = frozenset(map(self._leaf, leaves))
            leaves = None if any(is_hidden(leaf.tensor) for leaf in leaves) else leaves
        if (powers, leaves, length) == (course.powers, course.leaves, course.length):
            return course
        return replace(course, powers=powers, leaves=leaves, length=length)

    def _count(self, count: Count) -> Count:
        if count in self._counts or count.tensor is None:
            return count
        leaves = frozenset(map(self._leaf, count.leaves))
        return replace(count, tensor=self._tensor(count.tensor), leaves=leaves)

    def _leaf(self, leaf: Leaf) -> Leaf:
        return leaf if leaf in self._leaves else replace(leaf, tensor=self._tensor(leaf.tensor))

    def _tensor(self, tensor: TensorRef) -> TensorRef:
        if tensor.op in self._outer:
            return self._outer[tensor.op]
        return tensor if is_hidden(tensor) else TensorRef(_HIDDEN + tensor.op, tensor.index)


def is_hidden(tensor: TensorRef) -> bool:
    """Whether a tensor is inside a function."""
    return tensor.op.startswith(_HIDDEN)
