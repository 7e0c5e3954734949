"""What each kind of op does to the courses of what it reads (`caramel.analyzers.examples.courses`).

A kind that is not known is taken to work on each example by itself where the shape of what it puts
out allows that; else nobody knows what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caramel.analyzers.examples.courses import (
    EXAMPLES,
    NUMBER,
    OF_ARRAY,
    SHARED,
    ZERO,
    Course,
    Kind,
    Operand,
    Powers,
    added,
    inverse,
    joined,
    joined_leaves,
    local,
    multiplied,
    multiplied_powers,
    not_linear,
    unknown,
)
from caramel.core import op_types
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


# Elementwise ------------------------------------------------------------------------------------


def same(at: At) -> Course:
    """The course of the first input: ops that are linear, or only pass it on."""
    return at.inputs[0]


def cast(at: At) -> Course:
    """Numbers in another dtype; integers are not differentiated."""
    course = at.inputs[0]
    dtype = at.op.outputs[0].dtype if at.op.outputs else "float32"
    if course.trained and not dtype.startswith(("float", "bfloat", "complex")):
        return replace(course, trained=False)
    return course


def stop_gradient(at: At) -> Course:
    """The same, but differentiation ends."""
    return replace(at.inputs[0], trained=False)


def add(at: At) -> Course:
    """Sums and differences."""
    course = added(at.operands(), at.where)
    return _with_elements(at, course) if _are_vectors(at) else course


def _are_vectors(at: At) -> bool:
    return any(c.elements is not None for c in at.inputs)


def _with_elements(at: At, course: Course) -> Course:
    """A vector of numbers of which nothing is known one by one, if one has to do with examples."""
    return replace(course, elements=None)


def multiply(at: At) -> Course:
    """A product of two tensors."""
    return multiplied(at.operand(0), _static_number(at, 1), at.where)


def divide(at: At) -> Course:
    """A quotient of two tensors."""
    divisor = _static_number(at, 1)
    return multiplied(at.operand(0), inverse(divisor, at.where), at.where)


def _static_number(at: At, position: int) -> Operand:
    """An operand; a constant that is the static number of examples counts as that number."""
    operand, numbers = at.operand(position), at.numbers(position)
    if not numbers or not at.batch or at.batch == 1 or at.op.kind not in _DIVISIONS:
        return operand
    is_size = all(number and number % at.batch == 0 for number in numbers)
    return replace(operand, course=NUMBER) if is_size else operand


def reciprocal(at: At) -> Course:
    """One divided by a tensor."""
    return inverse(at.operand(0), at.where).course


def elementwise(at: At) -> Course:
    """What is not linear and works on each element by itself."""
    dtype = at.op.outputs[0].dtype if at.op.outputs else "float32"
    differentiable = dtype.startswith(("float", "bfloat", "complex"))
    root = at.op.kind in ("Rsqrt", "Sqrt")
    return not_linear(at.operands(), at.where, root=root, differentiable=differentiable)


def floor_divide(at: At) -> Course:
    """A quotient of integers: one of two sizes is taken to leave no rest."""
    first, second = at.inputs
    sizes = first.kind is Kind.SHARED and second.kind is Kind.SHARED
    if sizes and first.powers and at.numbers(1) is None:
        return multiplied(at.operand(0), inverse(at.operand(1), at.where), at.where)
    return elementwise(at)


def square(at: At) -> Course:
    """The square: of counts their powers are doubled."""
    operand = at.operand(0)
    if operand.course.kind in (Kind.SHARED, Kind.ROWS):
        powers = multiplied_powers(operand.course.powers, operand.course.powers)
        return replace(operand.course, powers=powers, elements=None, index="")
    return not_linear([operand], at.where)


def homogeneous(at: At) -> Course:
    """Relu and the like: a positive factor may be taken out."""
    operand = at.operand(0)
    if operand.course.kind is Kind.ROWS:
        return operand.course
    return not_linear([operand], at.where)


def select(at: At) -> Course:
    """One of two tensors, element by element."""
    condition, first, second = at.operands()
    branches = [o for o in (first, second) if not o.course.zero] or [first]
    if condition.course.kind is Kind.ROWS or any(o.course.kind is Kind.ROWS for o in branches):
        course = added(branches, at.where)
        if condition.course.kind is not Kind.ROWS:
            return replace(course, index="")
        bare = replace(condition, course=replace(condition.course, powers=course.powers))
        chosen = added([bare, *branches], at.where)
        return replace(chosen, index="", trained=course.trained, powers=course.powers)
    trained = any(o.course.trained for o in branches)
    if condition.course.kind is Kind.SHARED and not condition.course.powers:
        return joined([first.course, second.course], at.where)
    sums = [o for o in branches if o.course.kind is Kind.SUM]
    if len(branches) == 1 or (sums and all(o.course.powers for o in sums)):
        return joined([o.course for o in branches], at.where)
    leaves = joined_leaves(o.leaves for o in (condition, first, second))
    return local(
        f"{at.where} chooses by a value of the whole batch", leaves=leaves, trained=trained
    )


# Reductions -------------------------------------------------------------------------------------


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


def reduce_(at: At) -> Course:
    """Sums, means, and other reductions over some axes."""
    course = at.inputs[0]
    if course.kind is not Kind.ROWS:
        return _reduced_whole(at, course)
    reads = at.inputs[1]
    if course.axis == OF_ARRAY:
        return course
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
    before = 0 if keeps else sum(axis < course.axis for axis in axes)
    left = replace(course, axis=course.axis - before, index="")
    if at.op.kind in _LINEAR_REDUCTIONS:
        return left
    return not_linear([Operand(at.op.inputs[0], left, False)], at.where)


def _floating(course: Course) -> Course:
    """Rows along an axis that the next reshape tells."""
    return replace(course, axis=None)


def _over_examples(at: At, course: Course) -> Course:
    if at.op.kind not in _LINEAR_REDUCTIONS:
        if course.uniform and not course.powers:
            return SHARED
        return local(f"{at.where} is no sum over the examples", trained=course.trained)
    powers = course.powers
    if at.op.kind == "Mean":
        powers = multiplied_powers(powers, ((course.length, -1),))
    return _sum_of(course, powers)


def _sum_of(course: Course, powers: Powers) -> Course:
    """The sum of rows, with other powers."""
    if course.zero:
        return ZERO
    if course.uniform and not course.marks:
        powers = multiplied_powers(powers, ((course.length, 1),))
        return Course(Kind.SHARED, powers=powers, trained=course.trained)
    return Course(
        Kind.SUM, powers=powers, trained=course.trained, marks=course.marks, why=course.why
    )


def _reduced_whole(at: At, course: Course) -> Course:
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
    if at.is_scalar(0):
        return replace(course, elements=None)
    return not_linear([Operand(at.op.inputs[0], course, False)], at.where)


def l2_loss(at: At) -> Course:
    """Half the sum of squares."""
    squared = square(at)
    if squared.kind is Kind.ROWS:
        return _sum_of(replace(squared, uniform=False), squared.powers)
    return squared


# Contractions -----------------------------------------------------------------------------------


def matrix_product(at: At) -> Course:
    """Matrix products, of batches of matrices, too."""
    flags = ("adj_x", "adj_y") if at.op.kind.startswith("Batch") else ("transpose_a", "transpose_b")
    ranks = [at.rank(0), at.rank(1)]
    rank = max((r for r in ranks if r is not None), default=2)
    names = "abcdefghijklmnop"
    ends = ["zx" if at.attribute(flags[0]) else "xz", "yz" if at.attribute(flags[1]) else "zy"]
    labels = [
        names[rank - (own or rank) : rank - 2] + end for own, end in zip(ranks, ends, strict=True)
    ]
    return _contracted(at, labels, names[: rank - 2] + "xy")


def sparse_product(at: At) -> Course:
    """A sparse matrix, whose rows its values stand for, times a matrix."""
    values, other = at.inputs[1], at.inputs[3]
    if values.kind is Kind.ROWS:
        values = replace(values, axis=0, length=EXAMPLES, index="")
    op = replace(at.op, inputs=(at.op.inputs[1], at.op.inputs[3]))
    labels = ["zx" if at.attribute("adjoint_a") else "xz"]
    labels.append("yz" if at.attribute("adjoint_b") else "zy")
    return _contracted(replace(at, op=op, inputs=(values, other)), labels, "xy")


def einsum(at: At) -> Course:
    """A product of tensors that is summed over the axes that the result lacks."""
    text = str(at.op.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    labels = left.split(",")
    if not arrow or len(labels) != len(at.inputs):
        return unknown(at.where)
    if "..." in text:
        counts = [
            (at.rank(n) or len(each)) - len(each.replace("...", ""))
            for n, each in enumerate(labels)
        ]
        width, names = max(counts), "ABCDEFGHIJKLMNOP"
        labels = [
            e.replace("...", names[width - c : width]) for e, c in zip(labels, counts, strict=True)
        ]
        right = right.replace("...", names[:width])
    if len(labels) == 1:
        labels, inputs = [labels[0], ""], (at.inputs[0], SHARED)
        return _contracted(replace(at, inputs=inputs), labels, right)
    return _contracted(at, labels, right) if len(labels) == 2 else unknown(at.where)


def _contracted(at: At, labels: Sequence[str], out: str) -> Course:
    """A product of two tensors, whose axes have labels, summed over what `out` lacks."""
    first, second = at.inputs
    if any(c.kind in (Kind.UNKNOWN, Kind.NOTHING) for c in at.inputs):
        return next(c for c in at.inputs if c.kind in (Kind.UNKNOWN, Kind.NOTHING))
    rows = [(c, labels[n]) for n, c in enumerate(at.inputs) if c.kind is Kind.ROWS]
    operands = [
        Operand(tensor, course, False)
        for tensor, course in zip((*at.op.inputs, at.op.inputs[0]), at.inputs, strict=False)
    ]
    if not rows:
        return multiplied(operands[0], operands[1], at.where)
    at_examples = {own[c.axis or 0] for c, own in rows if (c.axis or 0) < len(own)}
    if any(c.axis == OF_ARRAY for c, _ in rows):
        return _of_elements(at, operands, out, rows)
    if len(at_examples) != 1:
        return local(
            f"{at.where} compares examples with each other", trained=first.trained or second.trained
        )
    label = at_examples.pop()
    aligned = [
        replace(o, course=replace(o.course, axis=0)) if o.course.kind is Kind.ROWS else o
        for o in operands
    ]
    product = multiplied(aligned[0], aligned[1], at.where)
    if product.kind is not Kind.ROWS:
        return product
    if label in out:
        return replace(product, axis=out.index(label), index="")
    if len(rows) == 1 and any(
        label in labels[n] for n, c in enumerate(at.inputs) if c.kind is not Kind.ROWS
    ):
        return local(f"{at.where} weighs examples by their position", trained=product.trained)
    return _sum_of(product, product.powers)


def _of_elements(
    at: At, operands: Sequence[Operand], out: str, rows: Sequence[tuple[Course, str]]
) -> Course:
    """A product of which one operand is an element of an array that has the examples."""
    product = multiplied(operands[0], operands[1], at.where)
    if len({course.axis for course, _ in rows}) > 1:
        return local(f"{at.where} compares examples with each other", trained=product.trained)
    return replace(product, index="") if product.kind is Kind.ROWS else product


def filter_gradient(at: At) -> Course:
    """The gradient of a filter: a sum over examples of products of two tensors of rows."""
    first, second = op_types.PRODUCTS[at.op.kind]
    return _summed_product(at, (first, second))


def bias_gradient(at: At) -> Course:
    """The sum of rows over all axes but the last."""
    course = at.inputs[0]
    return _sum_of(course, course.powers) if course.kind is Kind.ROWS else course


def _summed_product(at: At, positions: Sequence[int]) -> Course:
    operands = [
        Operand(at.op.inputs[p], replace(at.inputs[p], axis=0), False)
        if at.inputs[p].kind is Kind.ROWS
        else Operand(at.op.inputs[p], at.inputs[p], False)
        for p in positions
    ]
    product = multiplied(operands[0], operands[1], at.where)
    return _sum_of(product, product.powers) if product.kind is Kind.ROWS else product


# Kinds ------------------------------------------------------------------------------------------

_DIVISIONS = frozenset({"DivNoNan", "RealDiv", "Div", "TruncateDiv", "Xdivy"})
_LINEAR_REDUCTIONS = frozenset({"Sum", "Mean"})

_ELEMENTWISE = [
    "Abs",
    "Acos",
    "Acosh",
    "ApproximateEqual",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "BesselI0e",
    "BesselI1e",
    "Betainc",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Ceil",
    "ClipByValue",
    "ComplexAbs",
    "Cos",
    "Cosh",
    "Digamma",
    "Elu",
    "EluGrad",
    "Equal",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Expm1",
    "Floor",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Igamma",
    "IgammaGradA",
    "Igammac",
    "Inv",
    "InvGrad",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "LeakyReluGrad",
    "Less",
    "LessEqual",
    "Lgamma",
    "Log",
    "Log1p",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mod",
    "Ndtri",
    "NextAfter",
    "NotEqual",
    "Polygamma",
    "Pow",
    "ReciprocalGrad",
    "Relu6",
    "Relu6Grad",
    "ReluGrad",
    "Rint",
    "Round",
    "Rsqrt",
    "RsqrtGrad",
    "Selu",
    "SeluGrad",
    "Sigmoid",
    "SigmoidGrad",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "SoftplusGrad",
    "Softsign",
    "SoftsignGrad",
    "Sqrt",
    "SqrtGrad",
    "SquaredDifference",
    "Tan",
    "Tanh",
    "TanhGrad",
    "TruncateMod",
    "Xlog1py",
    "Xlogy",
    "Zeta",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(("Add", "AddV2", "AddN", "AccumulateNV2", "Complex", "Sub"), add),
    **dict.fromkeys(("Mul", "MulNoNan"), multiply),
    **dict.fromkeys(("RealDiv", "DivNoNan", "Div"), divide),
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm"), reduce_),
    **dict.fromkeys(("Relu", "Abs"), homogeneous),
    **dict.fromkeys(("Select", "SelectV2"), select),
    **dict.fromkeys(
        ("MatMul", "SparseMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), matrix_product
    ),
    "SparseTensorDenseMatMul": sparse_product,
    **dict.fromkeys(op_types.PRODUCTS.keys() - {"MatMul"}, filter_gradient),
    **dict.fromkeys(
        (
            "Identity",
            "Neg",
            "Snapshot",
            "PreventGradient",
            "CheckNumerics",
            "CheckNumericsV2",
            "Real",
            "Imag",
            "Conj",
            "EnsureShape",
            "Enter",
            "Exit",
            "NextIteration",
            "LoopCond",
            "RefIdentity",
            "DebugIdentity",
            "Print",
            "PrintV2",
            "Bitcast",
            "PlaceholderWithDefault",
        ),
        same,
    ),
    "BiasAddGrad": bias_gradient,
    "FloorDiv": floor_divide,
    "Cast": cast,
    "Einsum": einsum,
    "L2Loss": l2_loss,
    "Reciprocal": reciprocal,
    "Inv": reciprocal,
    "Square": square,
    "StopGradient": stop_gradient,
}
