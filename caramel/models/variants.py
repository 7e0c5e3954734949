"""The third stage of a model: the plans of one step that stand side by side in the graph."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping

from caramel.core.decision import FACTORS
from caramel.core.errors import CaramelError, PlanError
from caramel.core.plan import Plan
from caramel.core.util.gc_pause import held_back
from caramel.models.assembly import Assembly
from caramel.models.planned import PlannedStep
from caramel.planning.choose import UNFACTORED
from caramel.planning.compatibility import decides_alike
from caramel.runtime.job import Variant

OWN = "own"
"""What the plan is called that a model is made with."""

UNDEFERRED = "undeferred"
"""What a plan like the first one that defers nothing is called."""


class Variants(Mapping[str, Variant]):
    """Plans of one job by name; those that are needed and missing are added.

    A plan may be known before its graph is made. What is looked up is what carries it out, which
    there is only once `ensure` has made it; its plan is there in any case. Sessions of one model in
    several threads add plans, and make graphs, one after the other.

    Args:
        assembly: the graph in which they stand.
        step: whose plans they are; the first one is its own.

    Attributes:
        build_s: how long it took to build the last graph, in seconds.

    Raises:
        TrafficError, GraphError: as `Assembly.add`.
    """

    def __init__(self, assembly: Assembly, step: PlannedStep) -> None:
        self._assembly, self._step = assembly, step
        self._plans = {OWN: step.plan}
        self._made: dict[str, Variant] = {}
        self._avoided: set[str] = set()
        self._changing = threading.RLock()  # what is there; some changes are made of others
        self.build_s = 0.0
        self._make(OWN)

    def __getitem__(self, name: str) -> Variant:
        """What carries a plan out.

        Raises:
            KeyError: there is no such plan.
            PlanError: its graph was not made yet.
        """
        if name in self._plans and name not in self._made:
            raise PlanError(
                f"plan '{name}' is known, but no graph carries it out yet, since no session has "
                f"tried it; variants.plan({name!r}) tells what it decides, and "
                f"variants.ensure({name!r}) makes its graph"
            )
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, name: object) -> bool:
        return name in self._plans

    def plan(self, name: str) -> Plan:
        """What a plan decides; no graph is made for that."""
        return self._plans[name]

    def completed(self, plan: Plan) -> Plan:
        """A plan with all that follows from what it decides."""
        return self._step.completed(plan)

    def ensure(self, name: str) -> Variant:
        """What carries a plan out; its graph is made if it was not yet.

        Raises:
            KeyError: there is no such plan.
            TrafficError, GraphError: as `Assembly.add`.
        """
        with self._changing:
            if name not in self._made:
                self._make(name)
            return self._made[name]

    def has_room_for(self, name: str) -> bool:
        """Whether a variant is there, or leaves enough memory if it is made."""
        return name in self._made or self._assembly.graph.has_room()

    def add(self, plan: Plan, name: str) -> Plan:
        """Add a plan; returns it as it is carried out.

        Raises:
            PlanError: it does not fit the job, or the name is empty or taken.
            TrafficError, GraphError: as `Assembly.add`; it is not added.
        """
        with self._changing:
            self._promise(plan, name)
            try:
                self._make(name)
            except CaramelError:
                del self._plans[name]
                raise
            return self._plans[name]

    def like(self, plan: Plan, name: str) -> str:
        """The name of a variant that does what a plan decides.

        If there is none, one is added, under this name or a similar one. Its graph is made when it
        is asked for.
        """
        with self._changing:
            for known, own in self._plans.items():
                if decides_alike(own, plan):
                    return known
            new = self._new_name(name)
            self._promise(plan, new)
            return new

    def avoid(self, name: str) -> None:
        """Take a plan no more for others that do the same; it stays."""
        self._avoided.add(name)

    def undeferred(self, *, factored: bool = True) -> str:
        """The name of a plan that defers nothing.

        If there is none, one is added that has the groups of the first plan, and so computes the
        same bits with every pattern.

        Args:
            factored: whether it may send factors.
        """
        with self._changing:
            for known, own in self._plans.items():
                may_be = known not in self._avoided and (factored or not own.factored)
                if may_be and not own.consequences.deferral.moved:
                    return known
            first = self._step.plan
            plain = first if factored else _without_factors(first)
            groups = [dataclasses.replace(group, deferred=False) for group in plain.decision.groups]
            name = self._new_name(UNDEFERRED)
            self.add(plain.deciding(groups=tuple(groups), gates=()), name)
            return name

    def unfactored(self, name: str) -> str:
        """The name of a plan like another one that sends no factors; it is added if need be."""
        return self.like(_without_factors(self._plans[name]), UNFACTORED)

    def _promise(self, plan: Plan, name: str) -> None:
        """Add a plan whose graph is made when it is asked for."""
        if not name or name in self._plans:
            raise PlanError(f"a plan needs a name of its own; '{name}' is empty or taken")
        self._plans[name] = self._step.completed(plan)

    @held_back()
    def _make(self, name: str) -> None:
        begin_s, plan = time.perf_counter(), self._plans[name]
        number, traffic = self._assembly.add(self._step.known.context, plan)
        self._made[name] = Variant(name, number, plan, traffic)
        self.build_s = time.perf_counter() - begin_s

    def _new_name(self, name: str) -> str:
        """A name that no variant has yet."""
        number, new = 1, name
        while new in self._plans:
            number += 1
            new = f"{name} {number}"
        return new


def _without_factors(plan: Plan) -> Plan:
    """The plan with all gradients themselves sent."""
    groups = [
        dataclasses.replace(group, pattern="shuffle", reason="")
        if group.pattern == FACTORS
        else group
        for group in plan.decision.groups
    ]
    return plan.deciding(groups=tuple(groups))
