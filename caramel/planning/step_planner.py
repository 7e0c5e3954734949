"""Who plans a step: what a kind of model has to know to make its plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from caramel.analyzers.analysis import Analysis
from caramel.core.payback import Payback
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.planning.choose import Decision


class StepPlanner(Protocol):
    """Makes the plans of a step; a dataclass of what the user has chosen."""

    @property
    def name(self) -> str:
        """What its plans are called."""

    @property
    def pattern(self) -> str:
        """By which pattern gradients are aggregated in the plan that `plain` is given."""

    @property
    def plans(self) -> bool:
        """Whether it decides anything."""

    @property
    def may_defer(self) -> bool:
        """Whether what it plans may run beside the next step."""

    def plain(self, plan: Plan, analysis: Analysis, sparse: SparseMethod) -> Plan:
        """The plain plan of its kind of model.

        Args:
            plan: the one in which workers aggregate gradients between them.
            analysis: what is known of the step.
            sparse: how sparse gradients are aggregated.

        Raises:
            GraphError: a model of this kind cannot do the step.
        """

    def choose(self, plain: Plan, analysis: Analysis, kept: Plan | None = None) -> Decision:
        """What is decided, as far as facts are known.

        Args:
            plain: the plain plan.
            analysis: what is known of the step.
            kept: the plan that proved the fastest in an earlier run.

        Raises:
            PlanError: facts are about other workers.
        """

    def wants_times(self, decision: Decision) -> bool:
        """Whether it would decide otherwise if it knew times."""

    def prospect(self, plain: Plan, analysis: Analysis) -> Payback | None:
        """What a search costs and may bring; None if it takes no time that matters, or nothing is
        known of times.

        Args:
            plain, analysis: as for `choose`.
        """

    def worth_a_trial(self, decision: Decision) -> Mapping[str, Plan]:
        """The plans besides the decided one that sessions should try, by name."""

    def unplanned(self) -> StepPlanner:
        """One that decides nothing."""

    def while_training(self) -> StepPlanner:
        """One that takes no longer than training may wait."""

    def without_factors(self) -> StepPlanner:
        """One that sends no factors."""
