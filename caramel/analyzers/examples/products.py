"""What matrix products, contractions and gradients of filters do to courses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.analyzers.examples.arithmetic import Operand, multiplied
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import (
    EXAMPLES,
    OF_ARRAY,
    SHARED,
    Course,
    Kind,
    local,
    unknown,
)
from caramel.analyzers.examples.reductions import sum_of
from caramel.core import op_types


def matrix_product(at: At) -> Course:
    """Matrix products, of batches of matrices, too."""
    flags = ("adj_x", "adj_y") if at.op.kind.startswith("Batch") else ("transpose_a", "transpose_b")
    ranks = [at.rank(0), at.rank(1)]
    rank = max((r for r in ranks if r is not None), default=2)
    names = "abcdefghijklmnop"
    # As an einsum: the axes of batches, then `x` by `z` times `z` by `y`.
    ends = ["zx" if at.attribute(flags[0]) else "xz", "yz" if at.attribute(flags[1]) else "zy"]
    labels = [
        names[rank - (own or rank) : rank - 2] + end for own, end in zip(ranks, ends, strict=True)
    ]
    return _contracted(at, labels, names[: rank - 2] + "xy")


def sparse_product(at: At) -> Course:
    """A sparse matrix, whose rows its values stand for, times a matrix."""
    values, other = at.inputs[1], at.inputs[3]
    if values.kind is Kind.ROWS:
        # There are more values than examples; the rows that they stand for are as many as these.
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
        # One operand alone: times a shared scalar.
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
    # The batch is in two different axes: every example is multiplied by every other one.
    if len(at_examples) != 1:
        return local(
            f"{at.where} compares examples with each other", trained=first.trained or second.trained
        )
    label = at_examples.pop()
    aligned = [
        # The axis is found by its label below; `multiplied` only asks whether both have the same.
        replace(o, course=replace(o.course, axis=0)) if o.course.kind is Kind.ROWS else o
        for o in operands
    ]
    product = multiplied(aligned[0], aligned[1], at.where)
    if product.kind is not Kind.ROWS:
        return product
    if label in out:
        return replace(product, axis=out.index(label), index="")
    # The other operand has an entry for each position in the batch.
    if len(rows) == 1 and any(
        label in labels[n] for n, c in enumerate(at.inputs) if c.kind is not Kind.ROWS
    ):
        return local(f"{at.where} weighs examples by their position", trained=product.trained)
    return sum_of(product, product.powers)


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


def _summed_product(at: At, positions: Sequence[int]) -> Course:
    operands = [
        Operand(at.op.inputs[p], replace(at.inputs[p], axis=0), False)
        if at.inputs[p].kind is Kind.ROWS
        else Operand(at.op.inputs[p], at.inputs[p], False)
        for p in positions
    ]
    product = multiplied(operands[0], operands[1], at.where)
    return sum_of(product, product.powers) if product.kind is Kind.ROWS else product


RULES: dict[str, Rule] = {
    **dict.fromkeys(op_types.PRODUCTS.keys() - {"MatMul"}, filter_gradient),
    **dict.fromkeys(
        ("MatMul", "SparseMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), matrix_product
    ),
    "Einsum": einsum,
    "SparseTensorDenseMatMul": sparse_product,
}
