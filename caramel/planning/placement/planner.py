"""Who plans steps of one replica that is spread over several devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeVar

from caramel.analyzers.analysis import Analysis
from caramel.analyzers.sendings import sendings
from caramel.analyzers.units import targets_of
from caramel.core.devices import task_of
from caramel.core.errors import MissingFactError, PlanError
from caramel.core.facts import Fusions, GradientFrontier, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.payback import Payback
from caramel.core.placement import Placement
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.planning.choose import Decision
from caramel.planning.compatibility import check_devices
from caramel.planning.placement.from_graph import PlacedGraph, problem_of, unknown_sizes
from caramel.planning.placement.memory import overruns, peaks, tensor_share
from caramel.planning.placement.order import planned_edges
from caramel.planning.placement.place import Placed, needed, place
from caramel.planning.placement.problem import Device, equal_rates
from caramel.planning.placement.search import search
from caramel.planning.placement.send_gates import planned_gates
from caramel.planning.placement.simulate import simulate
from caramel.planning.placement.step_ops import step_ops
from caramel.planning.placement.whole_graph import placed_everywhere
from caramel.planning.serving.planner import usual_in_flight_bytes
from caramel.planning.worth_a_trial import PLAIN

_log = logging.getLogger(__name__)

Fact = TypeVar("Fact")
SEARCH = "search"

Order = Literal["auto", "none", "schedule"]
"""Whether ops of a device are executed in the planned order: with "auto" both take turns."""

_PAYLOAD_BYTES_PER_S = 117.5e6  # of 1 Gbit/s, where nothing is known of the network
_LATENCY_S = 0.2e-3
_BUDGET = 1_000_000  # three times as much made steps of ResNet-50 1 % shorter, in thrice the time
_MEMORY_BYTES_PER_S = 1e9  # what an op puts out in a second, where nothing is known of times


@dataclass(frozen=True)
class Layout:
    """What was decided of where ops are, and how a step is predicted to go.

    Attributes:
        graph: the problem, and the ops of its vertices.
        placed: the placement of the vertices, and its simulated step.
        knows_times: whether times of ops were measured.
        unknown_sizes: how many tensors have a size that nobody knows.
    """

    graph: PlacedGraph
    placed: Placed
    knows_times: bool
    unknown_sizes: int = 0


@dataclass
class Kept:
    """What has been decided for the first step of a job, and holds for all of them: variables are
    in one place.

    Attributes:
        placement: of all ops that there were.
        layout: what it is made from; None where it was given.
    """

    placement: Placement | None = None
    layout: Layout | None = None


@dataclass(frozen=True)
class PlacementPlanner:
    """Decides on which device each op of the only replica is executed, and when.

    Attributes:
        devices: where ops may be.
        memory_bytes: what each device has; infinite if it is not limited.
        speeds: how fast each device is; with measured times, 1 is where they were measured.
        partitioner: one of `PARTITIONERS`, or "search".
        scheduler: one of `SCHEDULERS`.
        constraints: names of devices by regular expressions of ops' whole names.
        order: whether ops of a device are executed in the planned order.
        seed: of random choices.
        together: names of ops that must be on one device, in sets.
        sizes: bytes of tensors whose size the graph does not know, by name, where none were traced.
        targets: the ops that all steps of the job run.
        kept: what has been decided.
    """

    devices: tuple[str, ...]
    memory_bytes: tuple[float, ...]
    speeds: tuple[float, ...]
    partitioner: str = SEARCH
    scheduler: str = "pct"
    constraints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order: Order = "auto"
    seed: int = 0
    together: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    targets: tuple[str, ...] = field(default=(), repr=False)
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What its plans are called."""
        return self.partitioner

    @property
    def pattern(self) -> str:
        """No gradient is aggregated."""
        return "shuffle"

    @property
    def plans(self) -> bool:
        """Whether it decides anything but where ops are."""
        return self.order != "none"

    @property
    def may_defer(self) -> bool:
        """Nothing runs beside the next step."""
        return False

    def plain(self, plan: Plan, analysis: Analysis, sparse: SparseMethod) -> Plan:
        """The plan in which all ops have their devices, and are executed in any order.

        Raises:
            PlanError: no placement was found that fits, a constraint cannot hold, or a given
                placement is for other devices.
        """
        graph, kept = analysis.get(OpGraph), self.kept
        is_given = kept.placement is not None and kept.layout is None
        if kept.placement is None:
            kept.layout = layout = self._layout(analysis, self._place)
            known = layout.graph.numbers_of(layout.placed.placement)
            kept.placement = placed_everywhere(graph, known, self.devices, self.together)
        check_devices(kept.placement, self.devices)
        placement, number_of = kept.placement, kept.placement.number_of
        if number_of.keys() != graph.ops.keys():  # another step of the job
            known = {name: number for name, number in number_of.items() if name in graph}
            placement = placed_everywhere(graph, known, self.devices, self.together)
        elif is_given and min(self.memory_bytes) < math.inf:
            self._tell_room(self.layout_of(placement, analysis))
        return plan.deciding(placement=replace(placement, gates=()))

    def choose(self, plain: Plan, analysis: Analysis, kept: Plan | None = None) -> Decision:
        """The same, with ops in the planned order, and tensors sent in it."""
        if kept is not None and _are_alike(kept.placement, plain.placement):
            source = "what proved the fastest in an earlier run"
            return Decision(Plan(plain.job, kept.decision), source, plain, is_kept=True)
        source = f"placed by '{self.partitioner}'"
        layout = self.kept.layout
        if layout is None or not self._is_ordered(layout):
            return Decision(plain, source, plain)
        return Decision(self._ordered(plain, layout, analysis), source, plain)

    def wants_times(self, decision: Decision) -> bool:
        """What is in one place cannot be moved while it trains."""
        return False

    def prospect(self, plain: Plan, analysis: Analysis) -> Payback | None:
        """Nothing is searched while it trains."""
        return None

    def worth_a_trial(self, decision: Decision) -> Mapping[str, Plan]:
        """Without an order, if it may be tried."""
        return {PLAIN: decision.plain} if self.order == "auto" else {}

    def unplanned(self) -> PlacementPlanner:
        """One that orders nothing."""
        return replace(self, order="none")

    def while_training(self) -> PlacementPlanner:
        """Nothing is planned then."""
        return self

    def without_factors(self) -> PlacementPlanner:
        """There are none."""
        return self

    def on(self, tasks: Collection[str]) -> PlacementPlanner:
        """The same for some of the devices: it places anew; what is given stays where it is.

        Args:
            tasks: those that have these devices, by their usual devices.

        Raises:
            PlanError: what is given, or a constraint, needs another one.
        """
        there = [n for n, device in enumerate(self.devices) if task_of(device) in tasks]
        devices = tuple(self.devices[number] for number in there)
        given, kept = self.kept.placement, Kept()
        if given is not None and self.kept.layout is None:
            kept.placement = given.on(devices)
        return replace(
            self,
            devices=devices,
            memory_bytes=tuple(self.memory_bytes[number] for number in there),
            speeds=tuple(self.speeds[number] for number in there),
            constraints={
                text: _left(text, wanted, devices) for text, wanted in self.constraints.items()
            },
            kept=kept,
        )

    def _is_ordered(self, layout: Layout) -> bool:
        """Whether ops are to be executed in the planned order.

        Where all are on one device, none helps another one, and an order can only let cores idle.
        """
        is_spread = len(set(layout.placed.placement)) > 1
        worth_it = self.order == "auto" and layout.knows_times and is_spread
        return self.order == "schedule" or worth_it

    def _ordered(self, plain: Plan, layout: Layout, analysis: Analysis) -> Plan:
        """A plan that holds the order of the simulated step, as far as anything is ordered."""
        graph, job = analysis.get(OpGraph), analysis.get(TrainingJob)
        fusions = _within_devices(analysis.get(Fusions), layout)
        frontier = targets_of(analysis.get(GradientFrontier))
        ops = step_ops(layout.graph, graph, job)
        computed = [job.loss.op, *chain.from_iterable(frontier.values())]
        edges = planned_edges(layout.graph, layout.placed, graph, ops, computed, fusions)
        placement = plain.placement
        if not edges or placement is None:
            return plain
        gates = planned_gates(
            layout.graph,
            layout.placed,
            graph,
            ops,
            sendings(placement, graph, job),
            edges,
            fusions,
            in_flight_bytes=usual_in_flight_bytes(analysis),
        )
        return plain.deciding(edges=edges, placement=replace(placement, gates=gates))

    def layout_of(self, placement: Placement, analysis: Analysis) -> Layout:
        """How a step goes that is placed: as it was decided, or as it is simulated now if it was
        given, or if others of the job's steps count in what was decided.
        """
        number_of, kept = placement.number_of, self.kept.layout
        if kept is not None and not self._has_several(analysis):
            found = kept.graph.numbers_of(kept.placed.placement)
            if all(number_of.get(name) == number for name, number in found.items()):
                return kept

        def given(graph: PlacedGraph) -> Placed:
            numbers = tuple(number_of[names[0]] for names in graph.ops)
            schedule = simulate(graph.problem, numbers, self.scheduler, links="one")
            return Placed(numbers, schedule, tuple(peaks(graph.problem, numbers, schedule)))

        return self._layout(analysis, given, constrained=False)

    def _tell_room(self, layout: Layout) -> None:
        """Warn if what was given may need more memory than there is.

        That is no error: in which order a device executes ops is not known of it.
        """
        lack = max(overruns(layout.graph.problem, layout.placed.peaks), default=None)
        if lack is not None:
            told = needed(layout.graph.problem, layout.placed, lack[1])
            _log.warning("the given plan may not fit: %s", told)

    def _has_several(self, analysis: Analysis) -> bool:
        """Whether the job has other steps, too."""
        job = analysis.get(TrainingJob)
        return not {job.train_op, job.loss.op}.issuperset(self.targets)

    def _layout(
        self,
        analysis: Analysis,
        place_it: Callable[[PlacedGraph], Placed],
        *,
        constrained: bool = True,
    ) -> Layout:
        """Place the steps of the job; or, without constraints, only the one that is analysed."""
        timing = _known(analysis, TimingTable)
        network = _known(analysis, NetworkModel)
        unit = 1.0 if timing is not None else _MEMORY_BYTES_PER_S
        devices = [
            Device(name, speed * unit, memory)
            for name, speed, memory in zip(
                self.devices, self.speeds, self.memory_bytes, strict=True
            )
        ]
        rate = _PAYLOAD_BYTES_PER_S if network is None else network.bytes_per_s
        traced_bytes = self.sizes if timing is None else {**self.sizes, **timing.traced_bytes}
        graph = problem_of(
            analysis.get(OpGraph),
            analysis.get(TrainingJob),
            devices,
            equal_rates(len(devices), rate),
            latency_s=_LATENCY_S,
            seconds=None if timing is None else _one_by_one(timing),
            traced_bytes=traced_bytes,
            together=self.together,
            constraints=self.constraints if constrained else {},
            targets=self.targets if constrained else (),
        )
        unknown = unknown_sizes(analysis.get(OpGraph), graph, traced_bytes)
        return Layout(graph, place_it(graph), timing is not None, unknown)

    def _place(self, graph: PlacedGraph) -> Placed:
        problem = graph.problem
        share = tensor_share(problem)
        if self.partitioner == SEARCH:
            return search(problem, share=share, links="one", seed=self.seed, budget=_BUDGET)
        return place(
            problem, self.partitioner, self.scheduler, share=share, links="one", seed=self.seed
        )


def _left(text: str, wanted: Sequence[str], devices: Sequence[str]) -> tuple[str, ...]:
    """What is left of the devices of a constraint."""
    left = tuple(device for device in wanted if device in devices)
    if not left:
        raise PlanError(
            f"the constraint '{text}' allows no other devices than {', '.join(wanted)}: allow more"
        )
    return left


def _one_by_one(timing: TimingTable) -> dict[str, float]:
    """Seconds of ops as if a device executed one at a time, which together are a step's."""
    return {name: timing.slowdown * seconds for name, seconds in timing.seconds.items()}


def _within_devices(fusions: Fusions, layout: Layout) -> Fusions:
    """What TensorFlow may compute as one on one device: it sees the ops of each by themselves."""
    number_of = layout.graph.numbers_of(layout.placed.placement)
    found: dict[tuple[int, int], list[str]] = {}
    for number, group in enumerate(fusions.groups):
        for name in group:
            if name in number_of:
                found.setdefault((number, number_of[name]), []).append(name)
    return Fusions(tuple(tuple(own) for own in found.values() if len(own) > 1))


def _are_alike(placement: Placement | None, other: Placement | None) -> bool:
    """Whether two placements have ops in the same places, whatever waits for what."""
    if placement is None or other is None:
        return False
    return (placement.devices, placement.ops) == (other.devices, other.ops)


def _known(analysis: Analysis, kind: type[Fact]) -> Fact | None:
    """A fact, if it is known."""
    try:
        return analysis.get(kind)
    except MissingFactError:
        return None
