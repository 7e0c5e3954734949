"""Steps of a few ops with parameter servers, written down without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.serving import serving
from caramel.core.consequences import Serving
from caramel.core.decision import Decided, Group, Owner
from caramel.core.facts import (
    LoopFrames,
    ReplicaState,
    StateAccess,
    TrainingJob,
    Variable,
)
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.op_types import PLACEHOLDERS
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob

SPEC = TensorSpec("float32", (2,))


def graph_of(*, elements: Mapping[str, int] | None = None, **ops: str) -> OpGraph:
    """Ops in the order of definition, as ``name="Kind input input ^waited"``.

    Args:
        elements: of the variables that have not two.
    """
    sizes = elements or {}
    made = {}
    for name, text in ops.items():
        kind, *sources = text.split()
        inputs = [s.partition(":") for s in sources if s[0] != "^"]
        spec = TensorSpec("float32", (sizes.get(name, 2),))
        made[name] = Op(
            name,
            kind,
            "",
            tuple(TensorRef(op, int(index or 0)) for op, _, index in inputs),
            tuple(s[1:] for s in sources if s[0] == "^"),
            (spec, spec),
        )
    return OpGraph(made)


class ServedGraph:
    """A graph whose train op is called "train" and whose loss "loss", on two workers.

    Args:
        graph: the single-device graph. Its variables are its ops of kind VarHandleOp.
        gradients: op that computes the raw gradient of a parameter, by that.
        servers: the variables of each server.
        local: variables that differ between workers.
        train_op: what a step runs.
    """

    def __init__(
        self,
        graph: OpGraph,
        gradients: Mapping[str, str],
        servers: Sequence[str],
        *,
        local: Sequence[str] = (),
        train_op: str = "train",
    ) -> None:
        handles = [op.name for op in graph if op.kind == "VarHandleOp"]
        variables = tuple(
            Variable(v, v, f"{v}/init", f"{v}/read", graph[v].outputs[0], True, True, v)
            for v in handles
        )
        cuts = tuple(
            AggregatedGradient(v, TensorRef(raw), SPEC, tuple(graph.consumers[raw]))
            for v, raw in gradients.items()
        )
        job = TrainingJob("train", TensorRef("loss"), variables=variables)
        state = ReplicaState(
            tuple(gradients), (), tuple(local), worker_dependent=_dependent(graph, cuts)
        )
        self._known = [graph, job, state]
        self.analysis = self.knowing()
        planned = PlannedJob(
            ("/job:worker/task:0", "/job:worker/task:1"),
            "mean",
            variables,
            cuts,
            local=frozenset(local),
            train_op=train_op,
            loss="loss",
            servers=tuple(f"/job:ps/task:{number}" for number in range(len(servers))),
        )
        pattern = "server" if servers else "shuffle"
        groups = tuple(Group(f"group_{n}", (c.parameter,), pattern) for n, c in enumerate(cuts))
        owners = tuple(
            Owner(name, server) for server, names in enumerate(servers) for name in names.split()
        )
        self.plan = Plan(planned, Decided(groups, owners=owners))

    def knowing(self, *facts: Any) -> Analysis:
        """What follows from the step and some more facts."""
        return Analysis([*self._known, *facts], ANALYZERS)

    def serving(self) -> Serving:
        """What is done once, and what by each worker."""
        get = self.analysis.get
        return serving(
            self.plan,
            get(OpGraph),
            get(TrainingJob),
            get(StateAccess),
            get(LoopFrames),
            get(ReplicaState),
        )


def _dependent(graph: OpGraph, cuts: Sequence[AggregatedGradient]) -> frozenset[str]:
    """What depends on placeholders, but for what reads raw gradients, which are aggregated."""
    cut = {(gradient.values.op, name) for gradient in cuts for name in gradient.consumers}
    found = {op.name for op in graph if op.kind in PLACEHOLDERS}
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        for reader in graph.consumers[name]:
            reads = any(tensor.op == name for tensor in graph[reader].inputs)
            if reads and reader not in found and (name, reader) not in cut:
                found.add(reader)
                waiting.append(reader)
    return frozenset(found)
