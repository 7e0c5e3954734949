"""Literal graphs of training steps, without TensorFlow, for tests of order and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.activation import activation_order
from caramel.analyzers.frames import loop_frames
from caramel.analyzers.units import Units, units_of_step
from caramel.analyzers.windows import transfer_windows
from caramel.core.decision import Edge
from caramel.core.facts import Cut, GradientFrontier, LoopFrames, RawGradient, TrainingJob, Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.time_facts import ActivationOrder, TimingTable, TransferWindows
from caramel.core.variable_access import state_access
from caramel.planning.control_edges import serialize

LOSS, TRAIN = "loss", "train"


@dataclass(frozen=True)
class Step:
    """A training step: its graph, its job and its raw gradients."""

    graph: OpGraph
    job: TrainingJob
    frontier: GradientFrontier

    @property
    def frames(self) -> LoopFrames:
        return loop_frames(self.graph)

    @property
    def units(self) -> Units:
        return units_of_step(self.graph, self.job, self.frames)

    def order(self, seconds: Mapping[str, float]) -> ActivationOrder:
        timing = TimingTable(seconds)
        return activation_order(self.graph, self.job, self.frontier, self.frames, timing)

    def windows(self, seconds: Mapping[str, float], *parameters: str) -> TransferWindows:
        """The windows in the given order, or in the greedy one."""
        order = ActivationOrder(parameters) if parameters else self.order(seconds)
        access = state_access(self.graph, self.job)
        timing = TimingTable(seconds)
        return transfer_windows(
            self.graph, self.job, self.frontier, self.frames, access, order, timing
        )

    def edges(self, *parameters: str) -> tuple[Edge, ...]:
        order = ActivationOrder(parameters)
        return serialize(self.graph, self.job, self.frontier, self.frames, order)


def step(gradients: Mapping[str, str | Sequence[str]], **ops: str) -> Step:
    """A step from its ops, given as ``name="Kind input ^control"``.

    A parameter's handle has its name; what initialises and reads it outside the step is added.

    Args:
        gradients: for each parameter the op that puts out its gradient; values and indices if it is
            sparse.
    """
    added = {}
    for parameter in gradients:
        added[parameter] = "VarHandleOp"
        added[f"{parameter}/zeros"] = "Const"
        added[f"{parameter}/init"] = f"AssignVariableOp {parameter} {parameter}/zeros"
        added[f"{parameter}/value"] = f"ReadVariableOp {parameter}"
    named = {name: _op(name, text) for name, text in (added | ops).items()}
    job = TrainingJob(TRAIN, TensorRef(LOSS), variables=tuple(map(_variable, gradients)))
    cuts = []
    for parameter, given in gradients.items():
        tensors = [given] if isinstance(given, str) else given
        cuts.append(Cut(RawGradient(parameter, *map(TensorRef, tensors)), ()))
    return Step(OpGraph(named, {}), job, GradientFrontier(tuple(cuts)))


def _op(name: str, text: str) -> Op:
    kind, *sources = text.split()
    inputs = tuple(TensorRef(source) for source in sources if source[0] != "^")
    controls = tuple(source[1:] for source in sources if source[0] == "^")
    return Op(name, kind, "", inputs, controls)


def _variable(name: str) -> Variable:
    spec = TensorSpec("float32", (2,))
    return Variable(name, name, f"{name}/init", f"{name}/value", spec, True, True, name)


# Two dense layers: the toy of the papers' Figure 1. Parameter A is read by the first op of the
# forward pass, B by the second; the gradients are those of B and of A, which are independent.
FIGURE_1 = step(
    {"A": "grad_a", "B": "grad_b"},
    x="Placeholder",
    read_a="ReadVariableOp A",
    op_1="MatMul x read_a",
    read_b="ReadVariableOp B",
    op_2="MatMul op_1 read_b",
    loss="Mean op_2",
    back_2="LossGrad op_2",
    back_1="MatMul back_2 read_b",
    grad_b="MatMul op_1 back_2",
    grad_a="MatMul x back_1",
    update_a="ResourceApplyGradientDescent A grad_a",
    update_b="ResourceApplyGradientDescent B grad_b",
    train="NoOp ^update_a ^update_b",
)
FIGURE_1_SECONDS = {
    "op_1": 2.0,
    "op_2": 3.0,
    "loss": 0.5,
    "back_2": 1.0,
    "back_1": 2.0,
    "grad_b": 4.0,
    "grad_a": 5.0,
    "update_a": 0.25,
    "update_b": 0.25,
}
