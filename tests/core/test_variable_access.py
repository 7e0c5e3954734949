"""What ops do to variables, also from inside functions."""

from __future__ import annotations

import pytest

from caramel.core.errors import UnsupportedOpError
from caramel.core.facts import StateAccess, TrainingJob, Variable
from caramel.core.graph import ARGUMENT, Function, Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.variable_access import state_access

FLOAT = TensorSpec("float32", ())


def body_of(nodes):
    """A function's body of ops, each a name, a kind and what it reads, with what comes in."""
    made = [("handle", ARGUMENT, ()), ("new", ARGUMENT, ()), *nodes]
    return OpGraph(
        {n: Op(n, kind, "", tuple(map(TensorRef, inputs)), ()) for n, kind, inputs in made}
    )


def called(*nodes):
    """The access of an op that calls a function of these nodes with a variable's handle."""
    handle = Op("v", "VarHandleOp", "", (), ())
    call = Op("call", "PartitionedCall", "", (TensorRef("v"),), (), functions=("f",))
    function = Function("f", ("handle",), body_of(nodes))
    variable = Variable("v", "v", "", "", FLOAT, trainable=True, saved=True, full_name="v")
    graph = OpGraph({op.name: op for op in (handle, call)}, {"f": function})
    return state_access(graph, TrainingJob("call", TensorRef("call"), variables=(variable,)))


WRITTEN = StateAccess({}, {"call": frozenset({"v"})})


def test_a_handle_is_followed_through_a_function():
    nodes = [("same", "Identity", ("handle",)), ("write", "AssignVariableOp", ("same", "new"))]
    assert called(*nodes) == WRITTEN


def test_nodes_of_a_function_may_come_in_any_order():
    nodes = [
        ("write", "AssignVariableOp", ("again", "new")),
        ("again", "Identity", ("same",)),
        ("same", "Identity", ("handle",)),
    ]
    assert called(*nodes) == WRITTEN


# Handles that come out of calls, loops and conditionals ----------------------------------------


def returning(name, *results, calls=()):
    """A function of two handles that returns some of its arguments, or what `calls` puts out."""
    made = {name: Op(name, ARGUMENT, "", (), ()) for name in "ab"}
    if calls:
        inputs = (TensorRef("a"), TensorRef("b"))
        made["call"] = Op("call", "PartitionedCall", "", inputs, (), functions=calls)
    made |= {f"out_{r}": Op(f"out_{r}", "Identity", "", (TensorRef(r),), ()) for r in results}
    return Function(name, ("a", "b"), OpGraph(made), tuple(TensorRef(f"out_{r}") for r in results))


def written_through(kind, functions, index=0, used="AssignVariableOp"):
    """The access of an op that takes what an op puts out that calls functions with "v" and "u"."""
    inputs = tuple(map(TensorRef, (["on"] if kind == "If" else []) + ["v", "u"]))
    ops = [
        Op("v", "VarHandleOp", "", (), ()),
        Op("u", "VarHandleOp", "", (), ()),
        Op("on", "Placeholder", "", (), ()),
        Op("call", kind, "", inputs, (), functions=tuple(f.name for f in functions)),
        Op("write", used, "", (TensorRef("call", index),), ()),
    ]
    variables = tuple(Variable(n, n, "", "", FLOAT, True, True, n) for n in "vu")
    graph = OpGraph({op.name: op for op in ops}, {f.name: f for f in functions})
    return state_access(graph, TrainingJob("write", TensorRef("v"), variables=variables))


STRAIGHT, SWAPPED = returning("straight", "a", "b"), returning("swapped", "b", "a")
CONDITION = returning("whether", "a")


@pytest.mark.parametrize(
    ("kind", "functions", "index", "variable"),
    [
        ("PartitionedCall", [STRAIGHT], 0, "v"),
        ("PartitionedCall", [SWAPPED], 0, "u"),
        ("If", [STRAIGHT, returning("other", "a", "b")], 1, "u"),
        ("While", [STRAIGHT, CONDITION], 1, "u"),
        ("While", [], 1, "u"),  # nothing is known of its body
    ],
)
def test_a_handle_is_followed_through_what_a_function_returns(kind, functions, index, variable):
    assert written_through(kind, functions, index).writes["write"] == {variable}


def test_a_handle_is_followed_through_what_functions_return_that_a_function_calls():
    outer = returning("outer", "call", calls=("swapped",))
    found = written_through("PartitionedCall", [outer, SWAPPED])
    assert found == StateAccess({}, {"write": frozenset({"u"})})


def test_a_loop_inside_a_function_hands_a_handle_on():
    loop = Op("loop", "While", "", (TensorRef("handle"), TensorRef("new")), (), functions=("f",))
    body = OpGraph(
        {op.name: op for op in body_of([("write", "AssignVariableOp", ("loop", "new"))])}
        | {"loop": loop}
    )
    function = Function("f", ("handle", "new"), body, (TensorRef("handle"), TensorRef("new")))
    call = Op("call", "PartitionedCall", "", (TensorRef("v"),), (), functions=("f",))
    handle = Op("v", "VarHandleOp", "", (), ())
    variable = Variable("v", "v", "", "", FLOAT, trainable=True, saved=True, full_name="v")
    graph = OpGraph({"v": handle, "call": call}, {"f": function})
    assert state_access(graph, TrainingJob("call", TensorRef("v"), variables=(variable,))) == (
        StateAccess({}, {"call": frozenset({"v"})})
    )


@pytest.mark.parametrize(
    ("kind", "functions"),
    [("If", [STRAIGHT, SWAPPED]), ("While", [SWAPPED, CONDITION])],
)
def test_one_of_several_variables_is_refused_but_not_if_nothing_uses_it(kind, functions):
    with pytest.raises(UnsupportedOpError) as info:
        written_through(kind, functions)
    assert str(info.value) == (
        "'write' (AssignVariableOp) uses variable 'u' or 'v', as a conditional, a loop or a "
        "function decides that puts out the handle 'call:0' when the step runs; read or write "
        "each variable by its own handle, inside the branches"
    )
    assert written_through(kind, functions, used="VariableShape") == StateAccess({}, {})


def test_a_function_that_calls_itself_is_followed_once():
    itself = returning("itself", "call", calls=("itself",))
    assert written_through("PartitionedCall", [itself]) == StateAccess({}, {})


def test_branches_of_version_1_may_hand_on_different_handles():
    ops = [
        *(Op(name, "VarHandleOp", "", (), ()) for name in "vu"),
        Op("one", "Merge", "", (TensorRef("v"), TensorRef("u")), ()),
        Op("write", "AssignVariableOp", "", (TensorRef("one"),), ()),
    ]
    variables = tuple(Variable(n, n, "", "", FLOAT, True, True, n) for n in "vu")
    job = TrainingJob("write", TensorRef("v"), variables=variables)
    with pytest.raises(UnsupportedOpError, match="'u' or 'v'"):
        state_access(OpGraph({op.name: op for op in ops}), job)
