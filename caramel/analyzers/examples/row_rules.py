"""What ops that work on each example by itself do to courses, and kinds that nobody knows.

A kind that is not known is taken to work on each example by itself where the shape of what it puts
out allows that; else nobody knows what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, not_linear
from caramel.analyzers.examples.at import At
from caramel.analyzers.examples.chosen_rows import gather
from caramel.analyzers.examples.courses import (
    BY_COUNT,
    EXAMPLES,
    NOTHING,
    OF_ARRAY,
    SHARED,
    SHIFT,
    Course,
    Kind,
    local,
    unknown,
)
from caramel.analyzers.examples.rules import RULES
from caramel.core import op_types

_LINEAR_IN: dict[str, int] = {
    "AvgPool": 0,
    "AvgPool3D": 0,
    "AvgPoolGrad": 1,
    "AvgPool3DGrad": 1,
    "BatchToSpaceND": 0,
    "BiasAdd": 0,
    "BiasAddV1": 0,
    "Conv2D": 0,
    "Conv3D": 0,
    "Conv2DBackpropInput": 2,
    "Conv3DBackpropInputV2": 2,
    "DepthToSpace": 0,
    "DepthwiseConv2dNative": 0,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "EluGrad": 0,
    "InvGrad": 1,
    "LRNGrad": 0,
    "LeakyReluGrad": 0,
    "MaxPoolGrad": 2,
    "MaxPoolGradV2": 2,
    "MaxPool3DGrad": 2,
    "MaxPoolGradGrad": 2,
    "MirrorPadGrad": 0,
    "ReciprocalGrad": 1,
    "Relu6Grad": 0,
    "ReluGrad": 0,
    "ResizeBicubic": 0,
    "ResizeBicubicGrad": 0,
    "ResizeBilinear": 0,
    "ResizeBilinearGrad": 0,
    "ResizeNearestNeighbor": 0,
    "ResizeNearestNeighborGrad": 0,
    "Reverse": 0,
    "ReverseSequence": 0,
    "Roll": 0,
    "RsqrtGrad": 1,
    "SeluGrad": 0,
    "SigmoidGrad": 1,
    "SoftplusGrad": 0,
    "SoftsignGrad": 0,
    "SpaceToBatchND": 0,
    "SpaceToDepth": 0,
    "SqrtGrad": 1,
    "TanhGrad": 1,
}
"""In which input ops that work row by row are linear."""

_SAMPLERS = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "UniformCandidateSampler",
    }
)
_ALIGNED = frozenset(
    {"InTopK", "InTopKV2", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)
"""All that these read has as many rows."""

_BATCH_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_BATCH_NORM_GRADIENTS = frozenset(
    {"FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"}
)


def of_kind(at: At) -> Sequence[Course]:
    """The courses of an op's outputs."""
    kind, inputs, number = at.op.kind, at.inputs, max(1, len(at.op.outputs))
    if any(c.kind is Kind.UNKNOWN for c in inputs):
        return [next(c for c in inputs if c.kind is Kind.UNKNOWN)] * number
    if _works_on_one_example(at):
        trained = any(c.trained for c in inputs)
        return [Course(Kind.ROWS, axis=OF_ARRAY, trained=trained)] * number
    # Before the rules: some of these kinds are elementwise ops, too, which are not linear.
    if kind in _LINEAR_IN:
        return [_linear(at, _LINEAR_IN[kind])]
    if kind in RULES:
        found = RULES[kind](at)
        return found if isinstance(found, list) else [found]
    if kind == "ReadVariableOp":
        return [inputs[0]]
    if kind == "ResourceGather":
        return [gather(at)]
    if kind in _SAMPLERS:
        rows = replace(inputs[0], uniform=False, index="")
        # The candidates, the expected counts of the true classes, and of the candidates.
        return [SHARED, rows, SHARED]
    if kind in ("CTCLoss", "CTCLossV2"):
        first = Course(Kind.ROWS, axis=0, trained=inputs[0].trained)
        # The losses have the batch first, the gradients have time first.
        return [first, replace(first, axis=1)]
    if kind in _BATCH_NORMS and inputs[0].kind is Kind.ROWS:
        # The normalised batch counts as rows; its statistics, which are the worker's own, as local.
        row = not_linear([Operand(at.op.inputs[0], inputs[0], False)], at.where)
        rest = local(f"{at.where} normalises the worker's own batch", root=True, trained=True)
        return [row, *[rest] * (number - 1)]
    if kind in _BATCH_NORM_GRADIENTS and inputs[0].kind is Kind.ROWS:
        # Gradients of scale and offset are sums over the examples.
        total = replace(inputs[0], kind=Kind.SUM, axis=None, trained=True)
        return [inputs[0], total, total, *[SHARED] * max(0, number - 3)]
    if kind == "DenseBincount" and inputs[0].kind is Kind.ROWS and at.rank(0) == 2:
        return [not_linear([Operand(at.op.inputs[0], inputs[0], False)], at.where)]
    if kind == "SparseFillEmptyRows":
        return [Course(Kind.ROWS, axis=0)] * number
    if kind.startswith("SparseSegment") and any(c.kind is Kind.ROWS for c in inputs):
        return [Course(Kind.ROWS, axis=0, trained=inputs[0].trained)]
    return by_rows(at)


def _works_on_one_example(at: At) -> bool:
    """Whether an op in a loop over the examples reads nothing but one of them, and what is shared.

    Whatever it does then, it does to each example by itself.
    """
    rows = [c for c in at.inputs if c.kind is Kind.ROWS]
    others = [c for c in at.inputs if c.kind is not Kind.ROWS]
    return (
        bool(rows)
        and all(c.axis == OF_ARRAY and not c.powers and not c.marks and not c.index for c in rows)
        and all(c.kind is Kind.SHARED and not c.powers for c in others)
        and all(spec.dtype != "variant" for spec in at.op.outputs)
        # These have rules that know more.
        and at.op.kind not in op_types.SHAPE_ONLY | op_types.PASS_THROUGH
        and not at.op.kind.startswith(("TensorArray", "TensorList"))
    )


def _linear(at: At, position: int) -> Course:
    """An op that works row by row and is linear in one input; the others may be rows, too."""
    course = at.inputs[position]
    if course.kind is Kind.NOTHING:
        return NOTHING
    # Shapes among the inputs, as those of gradients of convolutions, do not count.
    others = [c for n, c in enumerate(at.inputs) if n != position and c.elements is None]
    if all(c.kind is Kind.SHARED for c in others):
        trained = course.trained or any(c.trained for c in others)
        return replace(course, trained=trained, uniform=False, elements=None, index="")
    operands = [
        Operand(
            tensor,
            # The op is linear in this input, so its powers pass through. Of the others only the
            # kind matters.
            replace(other, powers=()) if n == position else replace(other, axis=None),
            at.is_scalar(n),
        )
        for n, (tensor, other) in enumerate(zip(at.op.inputs, at.inputs, strict=True))
        if other.elements is None
    ]
    found = not_linear(operands, at.where)
    return replace(found, powers=course.powers) if found.kind is Kind.ROWS else found


def by_rows(at: At) -> Sequence[Course]:
    """An op of any other kind, which may work on each example by itself."""
    number = max(1, len(at.op.outputs))
    inputs = [c for c in at.inputs if c.elements is None]
    if any(c.kind is Kind.NOTHING for c in inputs):
        return [NOTHING] * number
    trained = any(c.trained for c in inputs)
    if all(c.kind is Kind.SHARED and not c.powers for c in inputs):
        return [replace(SHARED, trained=trained)] * number
    rows = max(
        (c for c in inputs if c.kind is Kind.ROWS),
        # Rows with a count of their own decide over those that are as many as the examples.
        key=lambda course: course.length != EXAMPLES,
        default=None,
    )
    lengths = {c.length for c in inputs if c.kind is Kind.ROWS}
    if len(lengths) > 1 and at.op.kind not in _ALIGNED:
        return [unknown(f"{at.where} reads rows of different numbers")] * number
    if rows is None:
        return [local(f"{at.where} is not known to be linear", trained=trained)] * number
    return [_row_output(at, rows, index, trained) for index in range(number)]


def _row_output(at: At, rows: Course, index: int, trained: bool) -> Course:
    shape, axis = at.out_shape(index), rows.axis or 0
    if shape is not None:
        known = {
            at.batch,
            *(s[axis] for n in range(len(at.inputs)) if (s := at.shape(n)) and len(s) > axis),
        }
        # The axis of the examples is gone, or has another length.
        if len(shape) <= axis or (shape[axis] is not None and shape[axis] not in known):
            return unknown(f"nobody knows how {at.where} goes with the examples")
    marks = rows.marks | ({BY_COUNT} if rows.powers else frozenset())
    others = [c for c in at.inputs if c.kind in (Kind.SUM, Kind.LOCAL)]
    marks = marks.union({SHIFT} if others else (), *(c.marks for c in others))
    return Course(
        Kind.ROWS,
        axis=rows.axis,
        length=rows.length,
        trained=trained,
        marks=marks,
        why=rows.why or (at.where if marks else ""),
    )
