"""An op with the courses of what it reads, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caramel.analyzers.examples.arithmetic import Operand
from caramel.analyzers.examples.courses import OF_ARRAY, Course, Kind
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef


@dataclass(frozen=True, slots=True)
class At:
    """An op with the courses of what it reads.

    Attributes:
        batch: the static number of examples of a worker, where it is known.
    """

    graph: OpGraph
    op: Op
    inputs: tuple[Course, ...]
    batch: int | None
    shapes: Callable[[TensorRef], tuple[int | None, ...] | None]

    @property
    def where(self) -> str:
        """The op, for people."""
        return f"'{self.op.name}' ({self.op.kind})"

    def shape(self, position: int) -> tuple[int | None, ...] | None:
        """The static shape of an input."""
        return self.shapes(self.op.inputs[position])

    def rank(self, position: int) -> int | None:
        """The number of dimensions of an input."""
        shape = self.shape(position)
        return None if shape is None else len(shape)

    def out_shape(self, index: int = 0) -> tuple[int | None, ...] | None:
        """The static shape of an output."""
        return self.op.outputs[index].shape if index < len(self.op.outputs) else None

    def numbers(self, position: int) -> tuple[float, ...] | None:
        """The elements of an input that is a small constant, or computed from such."""
        if position >= len(self.op.inputs):
            return None
        return self._folded(self.op.inputs[position], _DEEPEST)

    def _folded(self, tensor: TensorRef, depth: int) -> tuple[float, ...] | None:
        op = self.graph[tensor.op]
        if op.kind == "Const":
            return self.graph.numbers.get(op.name)
        if op.kind == "Rank":
            shape = self.shapes(op.inputs[0])
            return None if shape is None else (len(shape),)
        if depth == 0 or op.kind not in _FOLDED:
            return None
        inputs = [self._folded(each, depth - 1) for each in op.inputs[: _FOLDED[op.kind]]]
        if not inputs or any(each is None for each in inputs):
            return None
        return _fold(op.kind, [each for each in inputs if each is not None])

    def integers(self, position: int) -> tuple[int, ...] | None:
        """The same as integers."""
        numbers = self.numbers(position)
        return None if numbers is None else tuple(map(int, numbers))

    def attribute(self, name: str, default: int = 0) -> int:
        """An attribute that is a number or a flag."""
        return int(self.op.attributes.get(name, default))

    def is_scalar(self, position: int) -> bool:
        """Whether an input has one element."""
        shape = self.shape(position)
        return shape is not None and all(size == 1 for size in shape)

    def operand(self, position: int) -> Operand:
        """An input of an elementwise op, its axis counted in the op's output."""
        course, axis = self.inputs[position], self.inputs[position].axis
        rank, out = self.rank(position), self.out_shape()
        if course.kind is not Kind.ROWS or axis in (None, OF_ARRAY):
            return Operand(self.op.inputs[position], course, self.is_scalar(position))
        if rank is not None and out is not None:
            # Broadcasting aligns shapes at their last axes.
            course = replace(course, axis=axis + len(out) - rank)
        return Operand(self.op.inputs[position], course, self.is_scalar(position))

    def operands(self) -> list[Operand]:
        """All inputs of an elementwise op."""
        return [self.operand(position) for position in range(len(self.inputs))]


_DEEPEST = 6  # ops that are folded one after the other


_FOLDED = {
    **dict.fromkeys(("Identity", "Enter", "Cast", "ExpandDims", "InvertPermutation"), 1),
    **dict.fromkeys(("Add", "AddV2", "Sub", "FloorMod"), 2),
    **dict.fromkeys(("Pack", "ConcatV2"), None),
    "Range": 3,
}


def _fold(kind: str, inputs: Sequence[tuple[float, ...]]) -> tuple[float, ...] | None:
    """What an op makes of constants."""
    match kind:
        case "Pack":
            return tuple(number for each in inputs for number in each)
        case "ConcatV2":
            return tuple(number for each in inputs[:-1] for number in each)
        case "Range":
            begin, end, step = (int(each[0]) for each in inputs)
            return tuple(range(begin, end, step)) if step else None
        case "InvertPermutation":
            order = inputs[0]
            return tuple(order.index(number) for number in range(len(order)))
        case "Add" | "AddV2" | "Sub" | "FloorMod":
            return _fold_pairs(kind, *inputs)
    return inputs[0]


def _fold_pairs(
    kind: str, first: tuple[float, ...], second: tuple[float, ...]
) -> tuple[float, ...] | None:
    size = max(len(first), len(second))
    # Vectors of different lengths do not broadcast.
    if {len(first), len(second)} - {1, size}:
        return None
    pairs = zip(first * (size // len(first)), second * (size // len(second)), strict=True)
    match kind:
        case "Sub":
            return tuple(a - b for a, b in pairs)
        case "FloorMod":
            return tuple(a % b if b else 0 for a, b in pairs)
    return tuple(a + b for a, b in pairs)


Rule = Callable[[At], Course | list[Course]]
