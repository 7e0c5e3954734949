"""What a session runs: a distributed graph with one plan or several, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caramel.capture.context import Context
from caramel.core.facts import InputPipelines, LoopFrames, LossScale, ReplicaState, StateAccess
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.modifiers.traffic_audit import Traffic
from caramel.runtime.execution.distributed_graph import DistributedGraph


@dataclass(frozen=True, slots=True)
class Variant:
    """One plan of a job, and where its nodes are.

    All variants of a job work on the same variables, iterators and tables, so that each step may be
    that of another.

    Attributes:
        name: unique in the job.
        number: unique in the distributed graph; 0 for the first, whose nodes have no prefix.
        plan: what it carries out.
        traffic: bytes that a step sends between each pair of tasks, from the graph's edges.
    """

    name: str
    number: int
    plan: Plan
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Job:
    """The distributed graph and what is known of it.

    Attributes:
        context: the single-device job.
        graph: the distributed graph.
        variants: its plans by name. The first one's nodes also do what is no training step:
            evaluation, reading and restoring variables. More may come while a session runs.
        state: which values differ between workers.
        access: which variables each op touches.
        pipelines: the input pipelines of the step.
        frames: the v1 loop that each op is in.
        undeferred: the name of a plan that defers nothing, and, if asked, sends no factors; it is
            added if there is none.
        plan_of: the plan of a variant; nothing is made for that.
        leave_factors: told the name of a plan that sends factors, which must not be sent any more;
            returns the names of plans that send none, of which the first is to go on, and all are
            worth a trial.
        has_room_for: whether a variant is there, or leaves enough memory if it is made.
        is_plain: whether a plan of this name does what the plain one does.
        forecast_s: how long a step of a plan of this name is predicted to take; None if nothing is.
        give_up: told the name of a plan whose step never ended; returns the plain one's.
        scale_of: how a scalar scales with the examples; None if nothing is known of it.
    """

    context: Context
    graph: DistributedGraph
    variants: Mapping[str, Variant]
    state: ReplicaState
    access: StateAccess
    pipelines: InputPipelines
    frames: LoopFrames
    undeferred: Callable[..., str]
    plan_of: Callable[[str], Plan]
    leave_factors: Callable[[str], list[str]]
    has_room_for: Callable[[str], bool]
    is_plain: Callable[[str], bool]
    forecast_s: Callable[[str], float | None]
    give_up: Callable[[str], str]
    scale_of: Callable[[TensorRef], LossScale | None]

    @property
    def plan(self) -> Plan:
        """The plan of the first variant."""
        return next(iter(self.variants.values())).plan
