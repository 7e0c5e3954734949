"""What a worker computes, piece by piece, from literal graphs."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.deferral import Deferrals
from caramel.analyzers.workload import workload_of
from caramel.core.decision import Edge
from caramel.core.facts import GradientFrontier
from caramel.core.graph import TensorSpec
from caramel.core.planned_job import AggregatedGradient
from caramel.core.time_facts import TimingTable
from caramel.core.variable_access import state_access
from caramel.core.workload import Piece, Update, Workload
from tests.support.orders import FIGURE_1, FIGURE_1_SECONDS, step

SPEC = TensorSpec("float32", (2,))


def workload(job, seconds, edges=(), updates=()):
    """The workload of a step: what reads a raw gradient and computes no other one consumes it, and
    whatever is in `updates` does."""
    cuts = [cut.gradient for cut in job.frontier.cuts]
    backward = job.graph.ancestors([tensor.op for cut in cuts for tensor in cut.tensors])
    gradients = []
    for cut in cuts:
        ops = {tensor.op for tensor in cut.tensors}
        readers = [op.name for op in job.graph if any(tensor.op in ops for tensor in op.inputs)]
        consumers = tuple(name for name in readers if name not in backward or name in updates)
        gradients.append(
            AggregatedGradient(cut.parameter, cut.values, SPEC, consumers, cut.indices)
        )
    access = state_access(job.graph, job.job)
    deferrals = Deferrals(job.graph, job.job, access, job.frames, gradients)
    return workload_of(
        *(job.graph, job.job, job.frames, access, TimingTable(seconds), gradients, deferrals),
        edges,
    )


def only(job, *parameters):
    """The step with the gradients of these parameters only: the others are not trained."""
    cuts = tuple(cut for cut in job.frontier.cuts if cut.gradient.parameter in parameters)
    return replace(job, frontier=GradientFrontier(cuts))


def own(name, parameter, seconds):
    """The update of one parameter."""
    alone = frozenset([parameter])
    return Update(name, seconds, alone, alone, alone)


def test_two_layers():
    """Cut where a parameter is first needed and where a gradient is complete."""
    assert workload(FIGURE_1, FIGURE_1_SECONDS) == Workload(
        chain=(
            Piece("op_1", 2.0, 1, frozenset("A")),
            Piece("grad_b", 10.5, 5, frozenset("B"), ("B",)),
            Piece("grad_a", 5.0, 1, yields=("A",)),
        ),
        updates=(own("update_a", "A", 0.25), own("update_b", "B", 0.25)),
    )


def test_when_gradients_are_ready_and_parameters_needed():
    work = workload(FIGURE_1, FIGURE_1_SECONDS)
    assert work.computation_s == sum(FIGURE_1_SECONDS.values())
    assert work.ready_s == {"B": 12.5, "A": 17.5}
    assert work.needed_s == {"A": 0.0, "B": 2.0}


def test_control_edges_of_the_plan_change_the_order():
    edges = FIGURE_1.edges("A", "B")
    assert edges == (Edge("grad_a", "grad_b"),)
    chain = workload(FIGURE_1, FIGURE_1_SECONDS, edges).chain
    assert [piece.yields for piece in chain] == [(), ("A",), ("B",)]


TWO = {
    "x": "Placeholder",
    "read_a": "ReadVariableOp A",
    "read_b": "ReadVariableOp B",
    "y": "MatMul x read_a",
    "loss": "Mean y",
    "grad_b": "Mul y read_b",
    "grad_a": "Mul grad_b x",
}
TWO_SECONDS = {"y": 1.0, "grad_b": 1.0, "grad_a": 1.0, "loss": 0.0}


def test_after_a_global_norm_clip_every_update_waits_for_all_gradients():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        **TWO,
        norm="AddN grad_a grad_b",
        clip_a="Mul grad_a norm",
        clip_b="Mul grad_b norm",
        update_a="ResourceApplyGradientDescent A clip_a",
        update_b="ResourceApplyGradientDescent B clip_b",
        train="NoOp ^update_a ^update_b",
    )
    seconds = TWO_SECONDS | {"norm": 0.5, "clip_a": 0.25, "update_a": 0.125}
    both = frozenset("AB")
    assert workload(job, seconds).updates == (Update("update_a", 0.875, both, both, both),)


def test_what_only_waits_for_updates_is_an_update_that_stays():
    """Adam's powers: by a control edge they wait for every update, but move with none."""
    job = step(
        {"A": "grad_a", "B": "grad_b", "power": "grad_a"},
        **TWO,
        update_a="ResourceApplyGradientDescent A grad_a",
        update_b="ResourceApplyGradientDescent B grad_b",
        next="Const",
        assign="AssignVariableOp power next ^update_a ^update_b",
        train="NoOp ^assign",
    )
    updates = workload(
        only(job, "A", "B"), TWO_SECONDS | {"update_a": 0.5, "update_b": 0.25}
    ).updates
    assert updates[:2] == (own("update_a", "A", 0.5), own("update_b", "B", 0.25))
    assert updates[2] == Update("train", 0.0, frozenset("AB"), frozenset(), frozenset(["power"]))


def test_updates_of_one_gradient_are_one():
    job = step(
        {"A": "grad_a", "m": "grad_a"},
        x="Placeholder",
        read="ReadVariableOp A",
        loss="Mul x read",
        grad_a="Mul loss x",
        slot="AssignSubVariableOp m grad_a",
        update="ResourceApplyGradientDescent A grad_a",
        train="NoOp ^update ^slot",
    )
    seconds = {"loss": 1.0, "grad_a": 1.0, "slot": 0.5, "update": 0.25}
    assert workload(only(job, "A"), seconds).updates == (
        Update("update", 0.75, frozenset("A"), frozenset("A"), frozenset(["A", "m"])),
    )


def test_gradients_that_are_complete_together_are_yielded_by_one_piece():
    job = step(
        {"A": "both", "B": "both"},
        x="Placeholder",
        loss="Mul x x",
        both="Mul loss x",
        update_a="ResourceApplyGradientDescent A both",
        update_b="ResourceApplyGradientDescent B both",
        rest="Mul loss loss",
        train="NoOp ^update_a ^update_b ^rest",
    )
    assert workload(job, {"loss": 1.0, "both": 2.0, "rest": 0.5}).chain == (
        Piece("both", 3.0, 2, yields=("A", "B")),
        Piece("rest", 0.5, 1),
    )


def test_a_gradient_that_waits_for_an_aggregated_one_is_complete_at_the_end():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        x="Placeholder",
        loss="Mul x x",
        grad_a="Mul loss x",
        update_a="ResourceApplyGradientDescent A grad_a",
        rest="Mul loss loss",
        grad_b="Mul loss x ^update_a",
        update_b="ResourceApplyGradientDescent B grad_b",
        train="NoOp ^update_b ^rest",
    )
    seconds = {"loss": 1.0, "grad_a": 2.0, "rest": 0.5, "grad_b": 4.0}
    chain = workload(job, seconds, updates=["update_a"]).chain
    assert [(piece.name, piece.yields) for piece in chain] == [("grad_a", ("A",)), ("rest", ("B",))]


def test_a_sparse_gradient_is_complete_with_its_indices():
    job = step(
        {"E": ("values", "indices")},
        ids="Placeholder",
        rows="ResourceGather E ids",
        loss="Mean rows",
        values="Mul loss rows",
        indices="Reshape ids values",
        update="ResourceScatterSub E indices values",
        train="NoOp ^update",
    )
    chain = workload(job, {"rows": 1.0, "values": 1.0, "indices": 0.5, "update": 1.0}).chain
    assert chain == (Piece("indices", 2.5, 3, frozenset("E"), ("E",)),)


def test_variables_that_no_update_writes_are_not_waited_for():
    job = step(
        {"A": "grad_a", "B": "grad_b"},
        **TWO,
        update_b="ResourceApplyGradientDescent B grad_b",
        train="NoOp ^update_b ^grad_a",
    )
    chain = workload(job, TWO_SECONDS).chain
    assert [piece.needs for piece in chain] == [frozenset(), frozenset("B"), frozenset()]
    assert [piece.yields for piece in chain] == [(), ("B",), ("A",)]


def test_a_variable_that_is_needed_twice_is_waited_for_once():
    job = step(
        {"A": "grad"},
        x="Placeholder",
        read="ReadVariableOp A",
        first="MatMul x read",
        second="MatMul first read",
        loss="Mean second",
        grad="Mul second read",
        update="ResourceApplyGradientDescent A grad",
        train="NoOp ^update",
    )
    chain = workload(job, {"x": 0.5, "first": 1.0, "second": 1.0, "grad": 2.0}).chain
    assert chain == (Piece("x", 0.5), Piece("grad", 4.0, 3, frozenset("A"), ("A",)))
