"""Which edges order what a step reads and writes of variables, on graphs of a few ops."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core.facts import StateOrder, TrainingJob, Variable
from caramel.core.graph import ARGUMENT, Function, Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef

SPEC = TensorSpec("float32", (2,))


def graph_of(functions=(), **ops: str) -> OpGraph:
    """Ops in the order of definition, as ``name="Kind input input ^waited"``."""
    made = {}
    for name, text in ops.items():
        kind, *sources = text.split()
        inputs = [s.partition(":") for s in sources if s[0] != "^"]
        made[name] = Op(
            name,
            kind,
            "",
            tuple(TensorRef(op, int(index or 0)) for op, _, index in inputs),
            tuple(s[1:] for s in sources if s[0] == "^"),
            (SPEC, SPEC),
            functions=tuple(f.name for f in functions) if kind == "If" else (),
        )
    return OpGraph(made, {f.name: f for f in functions})


def order_in(graph: OpGraph, train_op: str = "train", trained: str = "w") -> StateOrder:
    handles = [op.name for op in graph if op.kind == "VarHandleOp"]
    variables = tuple(
        Variable(name, name, name, name, SPEC, name == trained, True, name) for name in handles
    )
    job = TrainingJob(train_op, TensorRef(train_op), variables=variables)
    return Analysis([graph, job], ANALYZERS).get(StateOrder)


def edges_in(graph: OpGraph) -> list[tuple[str, str]]:
    return list(order_in(graph).edges)


def test_a_read_comes_before_a_write():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        read="ReadVariableOp v",
        write="AssignAddVariableOp v one",
        train="NoOp ^read ^write",
    )
    assert edges_in(graph) == [("read", "write")]


def test_a_read_comes_before_a_write_that_is_defined_first():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        write="AssignAddVariableOp v one",
        read="ReadVariableOp v",
        more="Neg read",
        train="NoOp ^more ^write",
    )
    assert edges_in(graph) == [("read", "write")]


def test_what_waits_is_left_alone():
    graph = graph_of(
        v="VarHandleOp",
        read="ReadVariableOp v",
        more="Neg read",
        write="AssignVariableOp v more",
        after="ReadVariableOp v ^write",
        train="NoOp ^after",
    )
    assert edges_in(graph) == []


def test_what_the_step_does_not_run_is_left_alone():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        read="ReadVariableOp v",
        write="AssignAddVariableOp v one",
        train="NoOp ^write",
    )
    assert edges_in(graph) == []


def test_what_follows_from_other_edges_is_not_added():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        read="ReadVariableOp v",
        first="AssignAddVariableOp v one",
        second="AssignAddVariableOp v one ^first",
        train="NoOp ^read ^second",
    )
    assert edges_in(graph) == [("read", "first")]


def test_writes_come_in_the_order_of_definition():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        b="AssignAddVariableOp v one",
        a="AssignVariableOp v one",
        train="NoOp ^a ^b",
    )
    assert edges_in(graph) == [("b", "a")]


def test_what_waits_for_computation_comes_last():
    """The read waits for something that is computed from inputs and parameters."""
    graph = graph_of(
        v="VarHandleOp",
        w="VarHandleOp",
        one="Const",
        x="Placeholder",
        weights="ReadVariableOp w",
        y="MatMul x weights",
        write="AssignAddVariableOp v one",
        read="ReadVariableOp v ^y",
        train="NoOp ^read ^write",
    )
    found = order_in(graph)
    assert found.edges == (("write", "read"),)
    assert found.draws_in_writes


# Loops, conditions, functions --------------------------------------------------------------------

LOOP = {
    "v": "VarHandleOp",
    "one": "Const",
    "start": "Enter one",
    "handle": "Enter v",
    "turn": "Merge start following",
    "again": "LoopCond turn",
    "inner": "Switch turn again",
    "body": "Identity inner:1",
}


def test_what_waits_for_a_loop_waits_for_what_comes_out():
    graph = graph_of(
        **LOOP,
        read="ReadVariableOp handle ^body",
        following="NextIteration read",
        result="Exit inner",
        write="AssignAddVariableOp v one",
        train="NoOp ^result ^write",
    )
    assert edges_in(graph) == [("result", "write")]


def test_what_waits_in_a_loop_waits_where_its_variable_enters():
    graph = graph_of(
        **LOOP,
        read="ReadVariableOp v",
        write="AssignAddVariableOp handle body ^body",
        following="NextIteration body ^write",
        result="Exit inner",
        train="NoOp ^result ^read",
    )
    assert edges_in(graph) == [("read", "handle")]


def test_what_comes_out_of_a_loop_has_waited_for_all_its_turns():
    graph = graph_of(
        **LOOP,
        read="ReadVariableOp handle ^body",
        following="NextIteration read",
        result="Exit inner",
        write="AssignAddVariableOp v result",
        train="NoOp ^write",
    )
    assert edges_in(graph) == []


def test_what_waits_for_a_branch_waits_for_where_it_ends():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        yes="Const",
        handle="Switch v yes",
        other="Switch one yes",
        read="ReadVariableOp handle:1",
        double="Neg read",
        result="Merge other double",
        write="AssignAddVariableOp v one",
        train="NoOp ^result ^write",
    )
    assert edges_in(graph) == [("result", "write")]


def test_branches_that_exclude_each_other_are_left_alone():
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        yes="Const",
        handle="Switch v yes",
        other="Switch one yes",
        read="ReadVariableOp handle:1",
        write="AssignAddVariableOp handle other",
        done="Identity other ^write",
        result="Merge done read",
        train="NoOp ^result",
    )
    assert edges_in(graph) == []


READING = Function(
    "reading",
    ("v",),
    OpGraph(
        {
            "v": Op("v", ARGUMENT, "", (), (), (TensorSpec("resource", ()),)),
            "read": Op("read", "ReadVariableOp", "", (TensorRef("v"),), (), (SPEC, SPEC)),
        }
    ),
    (TensorRef("read"), TensorRef("read", 1)),
)


def test_what_waits_for_a_conditional_waits_for_what_reads_it():
    """TensorFlow puts the function in its place: its end is where its outputs are."""
    graph = graph_of(
        [READING],
        v="VarHandleOp",
        one="Const",
        call="If one v",
        result="Neg call",
        other="Neg call:1",
        write="AssignAddVariableOp v one",
        train="NoOp ^result ^other ^write",
    )
    assert edges_in(graph) == [("result", "write"), ("other", "write")]


def test_nothing_can_wait_for_a_conditional_that_nobody_reads():
    graph = graph_of(
        [READING],
        v="VarHandleOp",
        one="Const",
        call="If one v",
        write="AssignAddVariableOp v one",
        train="NoOp ^call ^write",
    )
    (pair,) = order_in(graph).pairs
    assert pair.edges == ()
    assert pair.obstacle == (
        "nothing can wait for 'call', which is part of a loop or calls a function"
    )


# Cycles ------------------------------------------------------------------------------------------


def test_ops_that_tensorflow_computes_as_one_do_not_wait_for_each_other():
    """The read first would let the gradient of the filter wait for that of the bias."""
    graph = graph_of(
        v="VarHandleOp",
        one="Const",
        dy="Const",
        bias="BiasAddGrad dy",
        write="AssignAddVariableOp v one",
        sizes="Const ^write",
        filter="Conv2DBackpropFilter one sizes dy",
        read="ReadVariableOp v ^bias",
        train="NoOp ^read ^filter",
    )
    assert edges_in(graph) == [("write", "read")]


@st.composite
def steps(draw):
    """Graphs of reads and writes of two variables that wait for some of those before them."""
    number = draw(st.integers(2, 10))
    ops = {"v": "VarHandleOp", "w": "VarHandleOp", "one": "Const", "x": "Placeholder"}
    names = []
    for index in range(number):
        before = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
        variable = draw(st.sampled_from(["v", "w"]))
        kind = draw(st.sampled_from(["read", "write", "add", "compute"]))
        text = {
            "read": f"ReadVariableOp {variable}",
            "write": f"AssignVariableOp {variable} one",
            "add": f"AssignAddVariableOp {variable} one",
            "compute": f"AddN {draw(st.sampled_from(['x', *names]))}",
        }[kind]
        name = f"op{index}"
        ops[name] = " ".join([text, *(f"^{each}" for each in dict.fromkeys(before))])
        names.append(name)
    ops["train"] = " ".join(["NoOp", *(f"^{name}" for name in names)])
    return graph_of(**ops)


@settings(max_examples=80)
@given(steps())
def test_everything_is_ordered_and_nothing_waits_for_itself(graph):
    found = order_in(graph)
    ordered = graph.with_edges(found.edges)
    ordered.topological_order()
    writes = [op.name for op in graph if op.kind.startswith("Assign")]
    touching = [*writes, *(op.name for op in graph if op.kind == "ReadVariableOp")]
    behind = {name: ordered.ancestors([name]) for name in touching}
    for write in writes:
        for other in touching:
            if graph[write].inputs[0] == graph[other].inputs[0]:
                assert write in behind[other] or other in behind[write]


@settings(max_examples=50)
@given(steps())
def test_a_graph_in_order_needs_no_more(graph):
    ordered = graph.with_edges(order_in(graph).edges)
    assert order_in(ordered).pairs == ()
