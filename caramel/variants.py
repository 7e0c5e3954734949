"""The plans of one job that stand side by side in its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from caramel.assembly import Assembly
from caramel.collector import held_back
from caramel.errors import PlanError
from caramel.job import Variant
from caramel.plan import Plan
from caramel.planning.fit import decides_alike

UNDEFERRED = "undeferred"
"""What a plan like the first one that defers nothing is called."""


class Variants(Mapping[str, Variant]):
    """Plans of one job by name; those that are needed and missing are added.

    Args:
        assembly: the job's graph.
        completed: from a plan to what is carried out for it.
        name, plan: the first one, complete already.

    Raises:
        TrafficError: as `Assembly.add`.
    """

    def __init__(
        self, assembly: Assembly, completed: Callable[[Plan], Plan], name: str, plan: Plan
    ) -> None:
        self._assembly, self._completed = assembly, completed
        self._first = plan
        self._by_name = {name: Variant(name, 0, plan, assembly.add(plan, 0))}

    def __getitem__(self, name: str) -> Variant:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @held_back()
    def add(self, plan: Plan, name: str) -> Plan:
        """Add a plan; returns it as it is carried out.

        Raises:
            PlanError: it does not fit the job, or the name is empty or taken.
        """
        if not name or name in self._by_name:
            raise PlanError(f"a plan needs a name of its own; '{name}' is empty or taken")
        completed = self._completed(plan)
        number = len(self._by_name)
        traffic = self._assembly.add(completed, number)
        self._by_name[name] = Variant(name, number, completed, traffic)
        return completed

    def like(self, plan: Plan, name: str) -> str:
        """The name of a variant that does what a plan decides.

        If there is none, one is added, under this name or a similar one.
        """
        for variant in self._by_name.values():
            if decides_alike(variant.plan, plan):
                return variant.name
        new = self._new_name(name)
        self.add(plan, new)
        return new

    def undeferred(self) -> str:
        """The name of a plan that defers nothing.

        If there is none, one is added that has the groups of the first plan, and so computes the
        same bits with every pattern.
        """
        for variant in self._by_name.values():
            if not variant.plan.deferral.moved:
                return variant.name
        groups = [dataclasses.replace(group, deferred=False) for group in self._first.groups]
        name = self._new_name(UNDEFERRED)
        self.add(dataclasses.replace(self._first, groups=tuple(groups), gates=()), name)
        return name

    def _new_name(self, name: str) -> str:
        """A name that no variant has yet."""
        number, new = 1, name
        while new in self._by_name:
            number += 1
            new = f"{name} {number}"
        return new
