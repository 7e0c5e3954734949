"""Who plans steps in which workers aggregate gradients between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from caramel.analyzers.analysis import Analysis
from caramel.core.payback import Payback
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.planning.choose import Decision, choose
from caramel.planning.options import Options
from caramel.planning.prospect import prospect_of
from caramel.planning.worth_a_trial import worth_a_trial

LIVE_BUDGET_TASKS = 400_000
"""Simulated tasks while training waits: some three to five seconds."""


@dataclass(frozen=True)
class AllReducePlanner:
    """Plans by `choose`; methods are described in `StepPlanner`."""

    options: Options

    @property
    def name(self) -> str:
        return self.options.planner

    @property
    def pattern(self) -> str:
        return self.options.pattern

    @property
    def plans(self) -> bool:
        return self.options.plans

    @property
    def may_defer(self) -> bool:
        return self.options.plans and self.options.scheduling

    def plain(self, plan: Plan, analysis: Analysis, sparse: SparseMethod) -> Plan:
        return plan

    def choose(self, plain: Plan, analysis: Analysis, kept: Plan | None = None) -> Decision:
        return choose(plain, analysis, self.options, kept=kept)

    def wants_times(self, decision: Decision) -> bool:
        return self.options.planner == "search" and decision.outlook is None

    def prospect(self, plain: Plan, analysis: Analysis) -> Payback | None:
        if self.options.planner != "search" or not self.plans:
            return None
        outlook = self.unplanned().choose(plain, analysis).outlook
        return None if outlook is None else prospect_of(outlook, self.options)

    def worth_a_trial(self, decision: Decision) -> Mapping[str, Plan]:
        return worth_a_trial(decision)

    def unplanned(self) -> AllReducePlanner:
        return self._with(planner="plain")

    def while_training(self) -> AllReducePlanner:
        return self._with(budget_tasks=LIVE_BUDGET_TASKS)

    def without_factors(self) -> AllReducePlanner:
        return self._with(factors=False)

    def _with(self, **changes: object) -> AllReducePlanner:
        return AllReducePlanner(dataclasses.replace(self.options, **changes))  # type: ignore[arg-type]
