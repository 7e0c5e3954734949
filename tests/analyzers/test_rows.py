"""Which parameters may be split by rows: those whose updates are elementwise, on graphs of a few
ops."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.analyzers.rows import row_splits
from caramel.core.facts import Cut, RawGradient, TrainingJob, Variable
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.row_split import RowSplits
from caramel.core.variable_access import state_access
from tests.support.served_graphs import graph_of

STEP = {
    "w": "VarHandleOp",
    "slot": "VarHandleOp",
    "x": "Placeholder",
    "rate": "Const",
    "w_read": "ReadVariableOp w",
    "loss": "MatMul x w_read",
    "raw": "MatMul loss x",
    "half": "Mul raw rate",
    "apply": "ResourceApplyMomentum w slot rate half",
    "init": "AssignVariableOp w rate",
    "train": "NoOp ^apply",
}
SCALARS = ("rate", "norm", "ids")


def splits_of(changes=None, *, sparse: bool = False) -> RowSplits:
    """What is split of the step with other ops; those that are None are left out."""
    ops = {name: text for name, text in {**STEP, **(changes or {})}.items() if text is not None}
    graph = graph_of(**ops)
    whole, scalar = TensorSpec("float32", (4, 2)), TensorSpec("float32", ())
    graph = OpGraph(
        {
            op.name: dataclasses.replace(op, outputs=(scalar if op.name in SCALARS else whole,) * 2)
            for op in graph
        }
    )
    variables = tuple(
        Variable(v, v, "init", "w_read", whole, v == "w", True, v)
        for v in ("w", "slot")
        if v in graph
    )
    job = TrainingJob("train", TensorRef("loss"), variables=variables)
    gradient = RawGradient("w", TensorRef("raw"), TensorRef("ids") if sparse else None)
    readers = [n for t in gradient.tensors for n in graph.consumers[t.op]]
    cut = Cut(gradient, tuple(dict.fromkeys(readers)))
    return row_splits(graph, [(job, [cut])], state_access(graph, job), {"w": (2, 2)})


def test_slots_and_what_is_computed_from_the_gradient_go_with_the_parts():
    (split,) = splits_of().splits
    assert [v.name for v in split.variables] == ["w", "slot"]
    assert split.copied == ("half", "apply")


def test_slots_are_found_also_where_they_are_read():
    changes = {
        "old": "ReadVariableOp slot",
        "sum": "AddV2 old raw",
        "keep": "AssignVariableOp slot sum",
        "apply": "AssignSubVariableOp w sum",
        "train": "NoOp ^apply ^keep",
    }
    (split,) = splits_of(changes).splits
    assert [v.name for v in split.variables] == ["w", "slot"]
    assert set(split.copied) == {"sum", "keep", "apply"}


SPARSE = {
    "ids": "Placeholder",
    "unique": "Unique ids",
    "count": "Shape unique",
    "rows": "StridedSlice count rate rate rate",
    "half": "UnsortedSegmentSum raw unique:1 rows",
    "apply": "ResourceSparseApplyAdagrad w slot rate half unique",
}


def test_rows_of_a_sparse_gradient_go_with_the_parts():
    (split,) = splits_of(SPARSE, sparse=True).splits
    assert split.by_row == {"unique", "count", "rows", "half", "apply"} == set(split.copied)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"half": "MatMul raw rate"}, "'half' (MatMul) reads all of its gradient"),
        (
            {"norm": "L2Loss raw", "half": "Mul raw norm"},
            "'norm' (L2Loss) reads all of its gradient",
        ),
        (
            {"norm": "L2Loss w_read", "half": "Mul raw norm"},
            "its update reads 'norm', which is computed from 'w_read'",
        ),
        ({"call": "PartitionedCall w"}, "'call' (PartitionedCall) takes its handle"),
        ({"loop": "Enter w"}, "'loop' (Enter) takes its handle"),
        ({"other": "ResourceApplyGradientDescent w rate raw"}, "takes its handle"),
        ({"w/part_0": "Const"}, "the graph has an op called 'w/part_0'"),
    ],
)
def test_what_mixes_rows_stays_whole_with_the_reason(changes, reason):
    found = splits_of(changes)
    assert not found.splits
    assert found.reasons["w"].endswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"half": "L2Loss raw"}, "'half' (L2Loss) reads all of its gradient"),
        ({"unique": "AddV2 ids ids"}, "'unique' (AddV2) reads all of its gradient"),
        (
            {"apply": "ResourceSparseApplyAdagrad w slot rate half count"},
            "'apply' (ResourceSparseApplyAdagrad) updates other rows than its gradient's",
        ),
    ],
)
def test_what_mixes_rows_of_a_sparse_gradient_lets_it_stay_whole(changes, reason):
    found = splits_of({**SPARSE, **changes}, sparse=True)
    assert not found.splits
    assert found.reasons["w"] == reason
