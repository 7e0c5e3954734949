"""Who plans steps with parameter servers: in which order do parameters and gradients travel?"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import MappingProxyType
from typing import Literal, get_args

from caramel.analyzers.analysis import Analysis
from caramel.core.decision import Pull
from caramel.core.errors import MissingFactError, PlanError
from caramel.core.facts import LoopFrames, ReplicaState, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.payback import Payback
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.core.time_facts import NetworkModel
from caramel.planning.choose import Decision
from caramel.planning.compatibility import decides_alike
from caramel.planning.gates import gates_of
from caramel.planning.ordering.execution_order import execution_order
from caramel.planning.ordering.makespan import Makespan
from caramel.planning.ordering.search import search_order
from caramel.planning.ordering.tac import tac
from caramel.planning.ordering.tic import tic
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph
from caramel.planning.serving.ahead import Ahead, choose_ahead
from caramel.planning.serving.course import Begins
from caramel.planning.serving.prospect import prospect_of
from caramel.planning.serving.pushes import order_pushes
from caramel.planning.serving.received import (
    WorkerStep,
    first_readers,
    received,
    served_step,
    time_oracle,
    variable_of,
)
from caramel.planning.serving.served_plan import served_plan
from caramel.planning.worth_a_trial import PLAIN

Ordering = Literal["search", "tac", "tic", "execution_ordering", "random"]


IN_ORDER = "in order"
"""What a plan is called that pulls nothing ahead."""

AS_READY = "gradients as they are ready"
"""What a plan is called that only orders what workers receive."""


@dataclass(frozen=True)
class ServingPlanner:
    """Orders what workers receive and send; methods are described in `StepPlanner`.

    Attributes:
        servers: the devices of the parameter servers.
        ordering: how; None for no order.
        in_flight_bytes: that may be on their way between a worker and a server at a time, each way;
            None for as many as usually are best.
        seed: of a random order.
        trains: False for agents that only infer.
        overlap: whether variables may be sent for the next step as soon as they are updated.
        order_gradients: whether gradients may wait for each other, too.

    Raises:
        PlanError: an unknown ordering, or less than no bytes.
    """

    servers: tuple[str, ...]
    ordering: Ordering | None = "search"
    in_flight_bytes: int | None = None
    seed: int = 0
    trains: bool = True
    overlap: bool = True
    order_gradients: bool = True

    def __post_init__(self) -> None:
        if self.ordering is not None and self.ordering not in get_args(Ordering):
            known = ", ".join(f"'{name}'" for name in get_args(Ordering))
            raise PlanError(f"ordering must be one of {known}, or None, not {self.ordering!r}")
        limit = self.in_flight_bytes
        if limit is not None and not (isinstance(limit, Integral) and limit >= 0):
            raise PlanError(f"in_flight_bytes must be a number of bytes, at least 0, not {limit!r}")

    @property
    def name(self) -> str:
        return self.ordering or PLAIN

    @property
    def pattern(self) -> str:
        return "shuffle"  # adds in the order in which servers do

    @property
    def plans(self) -> bool:
        return self.ordering is not None

    @property
    def may_defer(self) -> bool:
        return False

    def plain(self, plan: Plan, analysis: Analysis, sparse: SparseMethod) -> Plan:
        return served_plan(
            plan,
            self.servers,
            analysis.get(OpGraph),
            analysis.get(TrainingJob),
            analysis.get(StateAccess),
            analysis.get(LoopFrames),
            analysis.get(ReplicaState),
            sparse=sparse,
            trains=self.trains,
        )

    def choose(self, plain: Plan, analysis: Analysis, kept: Plan | None = None) -> Decision:
        if kept is not None and self.ordering is not None:
            source = "what proved the fastest in an earlier run"
            return Decision(Plan(plain.job, kept.decision), source, plain, is_kept=True)
        if self.ordering is None or len(plain.decision.pulls) < 2:
            return Decision(plain, "unordered", plain)
        graph = received(plain, analysis)
        oracle = time_oracle(plain, analysis)
        prospect = self._prospect_of(graph, oracle, plain, analysis)
        is_vain = prospect is not None and not prospect.saved_s
        transfers, source = self._order(graph, None if is_vain else oracle)
        order = [variable_of(name) for name in transfers]
        limit = self._limit(analysis)
        arranged = partial(
            ordered, order=order, in_flight_bytes=limit, readers=first_readers(graph)
        )
        plan = arranged(plain)
        if oracle is None:
            return Decision(plan, source, plain)
        if is_vain:
            return Decision(plan, VAIN, plain, worker=WorkerStep(graph, oracle))
        worker, others = WorkerStep(graph, oracle), dict[str, Plan]()
        if self.trains:
            may = self._may_go_ahead(plain, analysis)
            begins = Begins(plain, worker, order)
            ahead, gated = choose_ahead(begins, may), plain
            if ahead.variables:
                others[IN_ORDER], plan = plan, arranged(plain, ahead=ahead.variables)
            if self.order_gradients:
                better, found = order_pushes(begins, may, limit)
                if found.decision.gates and MUCH_BETTER * better.step_s < ahead.step_s:
                    ahead, gated = better, found
                    others[AS_READY], plan = plan, arranged(gated, ahead=ahead.variables)
            source += _more(order, ahead, gated)
        return Decision(plan, source, plain, alternatives=tuple(others.items()), worker=worker)

    def _may_go_ahead(self, plain: Plan, analysis: Analysis) -> list[str]:
        """The variables that may be pulled ahead."""
        if not self.overlap:
            return []
        readings = served_step(plain, analysis).serving().readings
        return [each.variable for each in readings if each.readers and each.is_of_step]

    def wants_times(self, decision: Decision) -> bool:
        is_known = decision.worker is not None or decision.is_kept
        return self.ordering in ("search", "tac") and not is_known

    def prospect(self, plain: Plan, analysis: Analysis) -> Payback | None:
        if len(plain.decision.pulls) < 2:
            return None
        graph, oracle = received(plain, analysis), time_oracle(plain, analysis)
        return self._prospect_of(graph, oracle, plain, analysis)

    def _prospect_of(
        self, graph: TransferGraph, oracle: TimeOracle | None, plain: Plan, analysis: Analysis
    ) -> Payback | None:
        """See `prospect`; for a worker's step whose transfers can be ordered."""
        if self.ordering != "search" or oracle is None:
            return None
        order = [variable_of(name) for name in tic(graph)]
        begins = Begins(plain, WorkerStep(graph, oracle), order)
        return prospect_of(begins, self._may_go_ahead(plain, analysis) if self.trains else ())

    def worth_a_trial(self, decision: Decision) -> Mapping[str, Plan]:
        if decides_alike(decision.plan, decision.plain):
            return {}
        return {PLAIN: decision.plain, **dict(decision.alternatives)}

    def unplanned(self) -> ServingPlanner:
        return dataclasses.replace(self, ordering=None)

    def while_training(self) -> ServingPlanner:
        return self

    def without_factors(self) -> ServingPlanner:
        return self

    def on(self, servers: Sequence[str]) -> ServingPlanner:
        """The same for other servers.

        Args:
            servers: their devices.
        """
        return dataclasses.replace(self, servers=tuple(servers))

    def _order(self, graph: TransferGraph, oracle: TimeOracle | None) -> tuple[Sequence[str], str]:
        """The order, and a word on how it was made."""
        match self.ordering:
            case "random":
                names = [recv.name for recv in graph.recvs]
                random.Random(self.seed).shuffle(names)
                return names, "a random order"
            case "execution_ordering":
                return execution_order(graph), "by Order(read)"
            case "tac" if oracle is not None:
                return tac(graph, oracle), "by TAC, from measured times"
            case "search" if oracle is not None:
                return _searched(graph, oracle)
            case "tic":
                return tic(graph), "by TIC"
        return tic(graph), "by TIC, because nothing is known of times"

    def _limit(self, analysis: Analysis) -> int:
        if self.in_flight_bytes is not None:
            return self.in_flight_bytes
        return usual_in_flight_bytes(analysis)


def _more(order: Sequence[str], ahead: Ahead, gated: Plan) -> str:
    """What is done besides ordering what workers receive."""
    text = f", {len(ahead.variables)} of {len(order)} ahead" if ahead.variables else ""
    return f"{text}, gradients in order" if gated.decision.gates else text


def _searched(graph: TransferGraph, oracle: TimeOracle) -> tuple[Sequence[str], str]:
    """The order of a search, unless that of TIC is predicted to be about as good.

    What orders differ by may be noise of the measured times: with ResNet-50 computed by processors
    TIC's order took 0.92 s, and that of a search, which was predicted to take as long, 0.96 s.
    """
    makespan, simple = Makespan(graph, oracle), tic(graph)
    found = search_order(graph, oracle)
    if makespan(simple) <= AS_GOOD * makespan(found):
        return simple, "by TIC, which is predicted to be as good as what a search finds"
    return found, "by a search, from measured times"


VAIN = "by TIC, because no plan can make these steps much shorter"
"""What an order is made from where nothing is searched."""


AS_GOOD = 1.01
"""What is simpler is taken if its step is predicted to be at most so many times as long."""


MUCH_BETTER = 1.05
"""Gradients are ordered only if a step without that is predicted to be so many times as long.

What tells a worker that a gradient has arrived comes behind the parameters that go the same way,
which predictions do not know. With ResNet-50, two workers and one server, steps were predicted 2 %
shorter and took 6 % longer; with Inception v3 on a busy machine 13 %.
"""


def usual_in_flight_bytes(analysis: Analysis) -> int:
    """Bytes in flight by which a link is not idle while a gate opens, as far as is known."""
    try:
        return in_flight_bytes_at(analysis.get(NetworkModel).bytes_per_s)
    except MissingFactError:
        return DEFAULT_IN_FLIGHT_BYTES


def in_flight_bytes_at(bytes_per_s: float) -> int:
    """The same for a link of some rate."""
    return max(LEAST_IN_FLIGHT_BYTES, round(IN_FLIGHT_S * bytes_per_s))


IN_FLIGHT_S = 0.02
"""With what a link of 1 Gbit/s carries in this time in flight, which is four transfers, a forward
pass of ResNet-50's size took 0.88 s; with one transfer 0.97 s, without an order 1.05 s. The wire
alone needs 0.82 s."""
DEFAULT_IN_FLIGHT_BYTES = 2_500_000
LEAST_IN_FLIGHT_BYTES = 250_000


def ordered(
    plain: Plan,
    order: Sequence[str],
    in_flight_bytes: int,
    readers: Mapping[str, str] = MappingProxyType({}),
    ahead: frozenset[str] = frozenset(),
) -> Plan:
    """A plan whose workers receive variables in an order.

    Each channel, from one server to one worker, has its part of the order and a limit of its own.

    Args:
        plain: the plan without an order.
        order: of all that is pulled.
        in_flight_bytes: that may be on their way on a channel; with 0 there is exactly one order.
        readers: the op that needs each variable first, for people.
        ahead: what is sent for the next step as soon as it is updated.
    """
    sizes = {name: plain.job.variable_of[name].spec.bytes or 0 for name in order}
    pulls = ordered_pulls(order, plain.decision.server_of, sizes, in_flight_bytes, readers, ahead)
    return plain.deciding(pulls=pulls)


def ordered_pulls(
    order: Sequence[str],
    server_of: Mapping[str, int],
    sizes: Mapping[str, int],
    in_flight_bytes: int,
    readers: Mapping[str, str] = MappingProxyType({}),
    ahead: frozenset[str] = frozenset(),
) -> tuple[Pull, ...]:
    """What workers receive in an order, as `ordered` plans it.

    Args:
        server_of: the server of each variable.
        sizes: its bytes.
    """
    after: dict[str, str] = {}
    for server in sorted({server_of[name] for name in order}):
        own = [(n, sizes[n]) for n in order if server_of[n] == server and n not in ahead]
        gates = gates_of(own, in_flight_bytes=in_flight_bytes)
        after.update((gate.group, gate.after) for gate in gates)
    return tuple(
        Pull(
            name,
            (after[name],) if name in after else (),
            name in ahead,
            f"'{readers[name]}' needs it" if name in readers else "",
        )
        for name in order
    )
