"""The problem of a training step has its ops, what they read, and what must be together."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError
from caramel.core.facts import TrainingJob, Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.planning.placement.from_graph import problem_of
from caramel.planning.placement.problem import Device, Tensor, equal_rates

DEVICES = (Device("d0"), Device("d1"))
RESOURCE = TensorSpec("resource", ())
FOUR = TensorSpec("float32", (4,))


def graph_of(**ops):
    """Ops as ``name="Kind input input ^waited"``; each output has 16 bytes but for handles."""
    made = {}
    for name, text in ops.items():
        kind, *sources = text.split()
        inputs = [source.partition(":") for source in sources if source[0] != "^"]
        spec = RESOURCE if kind == "VarHandleOp" else FOUR
        made[name] = Op(
            name,
            kind,
            "",
            tuple(TensorRef(op, int(index or 0)) for op, _, index in inputs),
            tuple(source[1:] for source in sources if source[0] == "^"),
            () if kind == "NoOp" else (spec, spec),
        )
    return OpGraph(made)


def job(*handles):
    variables = tuple(
        Variable(name, name, "", "", FOUR, trainable=True, saved=True, full_name=name)
        for name in handles
    )
    return TrainingJob("train", TensorRef("loss", 0), variables=variables)


STEP = graph_of(
    x="Placeholder",
    w="VarHandleOp",
    read="ReadVariableOp w",
    y="MatMul x read",
    flat="Reshape y",
    loss="Mean flat",
    gradient="Mul flat y:1",
    update="ResourceApplyGradientDescent w gradient",
    train="NoOp ^update",
    unused="Neg y",
)


def named(found, names):
    order = [vertex.name for vertex in found.problem.vertices]
    return tuple(order.index(name) for name in names.split())


def test_a_step_has_its_ops_and_what_they_read():
    found = problem_of(STEP, job("w"), DEVICES, equal_rates(2, 1), seconds={"y": 3, "loss": 1})
    names = [vertex.name for vertex in found.problem.vertices]
    assert names == [name for name in STEP.ops if name != "unused"]
    assert [vertex.operations for vertex in found.problem.vertices] == [0, 0, 0, 3, 0, 1, 0, 0, 0]
    (w, read, y, flat, loss, gradient) = named(found, "w read y flat loss gradient")
    assert found.problem.vertices[w].resident_bytes == 16
    tensors = found.problem.tensors
    by_source = {tensor.source: tensor for tensor in tensors if tensor.bytes}
    assert by_source[read] == Tensor(read, 16, (y,), hands_on=0)
    assert tensors[0] == Tensor(w, 0, named(found, "read update"))
    assert by_source[flat].readers == (loss, gradient)
    assert tensors[by_source[flat].hands_on].source == y
    # The second output of y is a tensor of its own.
    assert [tensor.readers for tensor in tensors if tensor.source == y] == [(flat,), (gradient,)]


def test_all_that_touches_a_variable_is_together_and_feeds_arrive_on_the_first_device():
    found = problem_of(STEP, job("w"), DEVICES, equal_rates(2, 1))
    assert named(found, "w read update") in found.problem.groups
    (x,) = named(found, "x")
    assert found.problem.allowed[found.problem.group_of[x]] == (0,)
    placement = (0,) * 8 + (1,)
    assert found.devices_of(placement)["train"] == "d1"


def test_without_times_an_op_costs_what_it_puts_out():
    found = problem_of(STEP, job("w"), DEVICES, equal_rates(2, 1))
    (w, y, train) = named(found, "w y train")
    assert [found.problem.vertices[n].operations for n in (w, y, train)] == [0, 32, 0]


def test_a_conditional_is_together():
    graph = graph_of(
        a="Const",
        p="Const",
        low="Switch a p",
        no="Neg low",
        yes="Abs low:1",
        both="Merge no yes",
        loss="Mean both",
        train="NoOp ^loss",
    )
    found = problem_of(graph, job(), DEVICES, equal_rates(2, 1))
    assert named(found, "low no yes both") in found.problem.groups
    assert named(found, "loss") in found.problem.groups


def test_a_loop_is_one_vertex():
    graph = graph_of(
        a="Const",
        enter="Enter a",
        merge="Merge enter next",
        less="Less merge merge",
        cond="LoopCond less",
        switch="Switch merge cond",
        body="Neg switch:1",
        next="NextIteration body",
        exit="Exit switch",
        loss="Mean exit",
        train="NoOp ^loss",
    )
    found = problem_of(
        graph, job(), DEVICES, equal_rates(2, 1), seconds={"body": 2, "less": 1, "loss": 1}
    )
    vertices = found.problem.vertices
    assert [vertex.name for vertex in vertices] == ["a", "enter", "exit", "loss", "train"]
    assert vertices[1].operations == 3
    assert "body" in found.ops[1]


def test_what_the_caller_says_holds():
    found = problem_of(
        STEP,
        job("w"),
        DEVICES,
        equal_rates(2, 1),
        together=(("loss", "y", "unused"),),
        constraints={"gradient": ("d1",)},
        traced_bytes={"y:0": 5},
    )
    assert named(found, "y loss") in found.problem.groups
    (gradient,) = named(found, "gradient")
    assert found.problem.allowed[found.problem.group_of[gradient]] == (1,)
    with pytest.raises(PlanError, match="keeps the placeholder .x. from .d0."):
        problem_of(STEP, job("w"), DEVICES, equal_rates(2, 1), constraints={"x.*": ("d1",)})
