"""What a model hands to its sessions: each step of the job, and who gives it plans.

`PlanSource` is the only way from here up to the model. Whatever a session needs to know or to have
made, it asks for there; nothing else that it is given calls back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from caramel.capture.context import Context
from caramel.core.facts import InputPipelines, LoopFrames, LossScale, ReplicaState, StateAccess
from caramel.core.names import TensorRef
from caramel.core.orders import Orders
from caramel.core.payback import Payback
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.timeline import Timeline
from caramel.modifiers.traffic_audit import Traffic
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.stalls.diagnosis import Forecast


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
class LivePlanning:
    """What there is to plan when a session begins.

    Attributes:
        begins: whether nothing is known yet, so that the job is to measure itself.
        again: whether to plan again when steps take much longer than expected.
        expected_s: the step that is expected of the first plan; None if nothing is known.
    """

    begins: bool
    again: bool
    expected_s: float | None


class PlanSource(Protocol):
    """Gives a session the plans of one step, by their names, and learns how they did."""

    @property
    def names(self) -> Sequence[str]:
        """The plans that a session can change between. More may come while it runs."""

    @property
    def own(self) -> str:
        """The plan that does all steps if none are tried."""

    def plan(self, name: str) -> Plan:
        """What a plan decides; no graph is made for that."""

    def ensure(self, name: str) -> Variant:
        """What carries a plan out; its graph is made if it was not yet.

        Raises:
            TrafficError, GraphError: it cannot be made.
        """

    @property
    def build_s(self) -> float:
        """How long it took to build the graph of a plan, in seconds."""

    def has_room_for(self, name: str) -> bool:
        """Whether the graph of a plan is there, or leaves enough memory if it is made."""

    def is_plain(self, name: str) -> bool:
        """Whether a plan does what the plain one does."""

    def forecast(self, name: str) -> Forecast | None:
        """What is predicted of a plan's steps, if anything can be."""

    def undeferred(self, *, factored: bool = True) -> str:
        """A plan that defers nothing; it is added if there is none.

        Args:
            factored: whether it may send factors.

        Raises:
            TrafficError, GraphError: it cannot be made.
        """

    def orders(self, timelines: Sequence[Timeline]) -> Orders | None:
        """What traced steps tell of the order in which workers received parameters.

        Args:
            timelines: of steps by one plan, which they name.

        Returns:
            None without parameter servers, or if none was seen on its way.
        """

    def profile(
        self,
        running: str,
        traces: Sequence[Sequence[Any]],
        clock_offsets_s: Sequence[float],
        fed_bytes: Mapping[str, int],
    ) -> Profile:
        """What traced steps tell of ops and of the network, for another model of the job.

        Args:
            running: the plan that did them.
            traces: for each step the `StepStats` protos of its calls.
            clock_offsets_s: by how much each worker's clock is ahead of the first one's.
            fed_bytes: sizes of what a worker was fed, by name.

        Raises:
            ProfileError: gradients travel, but no transfer was seen.
        """

    def joint(self, fetched: Sequence[str]) -> Job | None:
        """The step that is done together with ops that are fetched; None if this one can.

        Raises:
            GraphError: workers would not do alike what is fetched.
            FeedError: it reads an input pipeline that is no step's.
        """

    def scale_of(self, tensor: TensorRef) -> LossScale | None:
        """How a scalar scales with the examples; None if nothing is known of it."""

    # Planning while the job runs

    def live_planning(self) -> LivePlanning | None:
        """What a session that begins now is to plan; None for nothing."""

    def tried(self, *, all_known: bool = False) -> list[str]:
        """The plans that a session is to try, beginning with the one of its first step.

        Args:
            all_known: whether all plans are to be tried, also those that the user has added.
        """

    def prospect(
        self, traces: Sequence[Sequence[Any]], clock_offsets_s: Sequence[float]
    ) -> Payback | None:
        """What it costs to plan from traced steps, and what that may bring at most.

        Args:
            traces, clock_offsets_s: as for `replan`.

        Returns:
            None if it is not known, or takes no time that matters.

        Raises:
            ProfileError: nothing can be learnt from the traces.
        """

    def replan(
        self,
        running: str,
        traces: Sequence[Sequence[Any]],
        clock_offsets_s: Sequence[float],
        examples: int | None = None,
    ) -> tuple[list[str], float | None]:
        """Plan from traced steps.

        Args:
            running: the plan that did them.
            traces: for each step the `StepStats` protos of its calls.
            clock_offsets_s: by how much each worker's clock is ahead of the first one's.
            examples: how many a worker had in them, if that is known.

        Returns:
            The plans to try besides the one that runs, and the step that is expected.

        Raises:
            ProfileError: nothing can be learnt from the traces.
        """

    def keep(self, name: str) -> None:
        """A plan has proved the fastest in trials."""

    def go_on(self, name: str) -> None:
        """A plan does the following steps, because no other could be made."""

    def give_up(self, name: str) -> str:
        """A step of a plan never ended; returns the plain plan, which goes on."""

    def leave_factors(self, running: str) -> list[str]:
        """Processors compute other bits from the same factors: no plan may send any more.

        Args:
            running: the plan that sent them.

        Returns:
            Plans that send none, of which the first is to go on; all are worth a trial.
        """


@dataclass(frozen=True, slots=True)
class Job:
    """A step of a job: the distributed graph that does it, and what is known of it.

    Attributes:
        context: the single-device job.
        graph: the distributed graph.
        own: the plan with which it was made. Its nodes also do what is no training step:
            evaluation, reading and restoring variables.
        state: which values differ between workers.
        access: which variables each op touches.
        pipelines: the input pipelines of the step.
        frames: the v1 loop that each op is in.
        plans: who gives a session its plans.
    """

    context: Context
    graph: DistributedGraph
    own: Variant
    state: ReplicaState
    access: StateAccess
    pipelines: InputPipelines
    frames: LoopFrames
    plans: PlanSource

    @property
    def plan(self) -> Plan:
        """The plan with which it was made."""
        return self.own.plan
