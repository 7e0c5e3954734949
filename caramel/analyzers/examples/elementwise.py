"""What ops that work on each element by itself do to courses."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.examples.arithmetic import (
    Operand,
    added,
    inverse,
    joined,
    multiplied,
    not_linear,
)
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import (
    NUMBER,
    Course,
    Kind,
    joined_leaves,
    local,
    multiplied_powers,
)
from caramel.core.dtypes import is_differentiable


def same(at: At) -> Course:
    """The course of the first input: ops that are linear, or only pass it on."""
    return at.inputs[0]


def cast(at: At) -> Course:
    """Numbers in another dtype; integers are not differentiated."""
    course = at.inputs[0]
    dtype = at.op.outputs[0].dtype if at.op.outputs else "float32"
    if course.trained and not is_differentiable(dtype):
        return replace(course, trained=False)
    return course


def stop_gradient(at: At) -> Course:
    """The same, but differentiation ends."""
    return replace(at.inputs[0], trained=False)


def add(at: At) -> Course:
    """Sums and differences."""
    # Elements of a shape are not followed through sums.
    return replace(added(at.operands(), at.where), elements=None)


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
    # With a batch of one example every number would be a multiple of it.
    if not numbers or not at.batch or at.batch == 1 or at.op.kind not in _DIVISIONS:
        return operand
    # A mean over all entries of a batch is divided by a multiple of the number of examples.
    is_size = all(number and number % at.batch == 0 for number in numbers)
    return replace(operand, course=NUMBER) if is_size else operand


def reciprocal(at: At) -> Course:
    """One divided by a tensor."""
    return inverse(at.operand(0), at.where).course


def elementwise(at: At) -> Course:
    """What is not linear and works on each element by itself."""
    dtype = at.op.outputs[0].dtype if at.op.outputs else "float32"
    root = at.op.kind in ("Rsqrt", "Sqrt")
    differentiable = is_differentiable(dtype)
    return not_linear(at.operands(), at.where, root=root, differentiable=differentiable)


def floor_divide(at: At) -> Course:
    """A quotient of integers: one of two sizes is taken to leave no rest."""
    first, second = at.inputs
    # Gradients of means divide the number of elements that were reduced by that of the means.
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
    # `relu(count * x)` is `count * relu(x)`, since counts are positive.
    if operand.course.kind is Kind.ROWS:
        return operand.course
    return not_linear([operand], at.where)


def select(at: At) -> Course:
    """One of two tensors, element by element."""
    condition, first, second = at.operands()
    # Zeros in one branch are a mask, which does not change how the other branch scales.
    branches = [o for o in (first, second) if not o.course.zero] or [first]
    if condition.course.kind is Kind.ROWS or any(o.course.kind is Kind.ROWS for o in branches):
        course = added(branches, at.where)
        if condition.course.kind is not Kind.ROWS:
            return replace(course, index="")
        # The condition only chooses: counts in it do not scale the result.
        bare = replace(condition, course=replace(condition.course, powers=course.powers))
        chosen = added([bare, *branches], at.where)
        return replace(chosen, index="", trained=course.trained, powers=course.powers)
    trained = any(o.course.trained for o in branches)
    if condition.course.kind is Kind.SHARED and not condition.course.powers:
        return joined([first.course, second.course], at.where)
    sums = [o for o in branches if o.course.kind is Kind.SUM]
    # A mean, or zero where there is nothing to average, as `tf.losses` compute it. A worker with
    # nothing to average has no weight either.
    if len(branches) == 1 or (sums and all(o.course.powers for o in sums)):
        return joined([o.course for o in branches], at.where)
    leaves = joined_leaves(o.leaves for o in (condition, first, second))
    return local(
        f"{at.where} chooses by a value of the whole batch", leaves=leaves, trained=trained
    )


_DIVISIONS = frozenset({"DivNoNan", "RealDiv", "Div", "TruncateDiv", "Xdivy"})

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

_SAME = [
    "Bitcast",
    "CheckNumerics",
    "CheckNumericsV2",
    "Conj",
    "DebugIdentity",
    "EnsureShape",
    "Enter",
    "Exit",
    "Identity",
    "Imag",
    "LoopCond",
    "Neg",
    "NextIteration",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Print",
    "PrintV2",
    "Real",
    "RefIdentity",
    "Snapshot",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(("Add", "AddV2", "AddN", "AccumulateNV2", "Complex", "Sub"), add),
    **dict.fromkeys(("Mul", "MulNoNan"), multiply),
    **dict.fromkeys(("RealDiv", "DivNoNan", "Div"), divide),
    **dict.fromkeys(("Relu", "Abs"), homogeneous),
    **dict.fromkeys(("Select", "SelectV2"), select),
    **dict.fromkeys(_SAME, same),
    "FloorDiv": floor_divide,
    "Cast": cast,
    "Reciprocal": reciprocal,
    "Inv": reciprocal,
    "Square": square,
    "StopGradient": stop_gradient,
}
