"""What ops do to variables, also from inside functions."""

from __future__ import annotations

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
