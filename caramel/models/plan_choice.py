"""Which plans of a model do its sessions try, and which one proved the fastest?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caramel.analyzers.analysis import Analysis
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.core.util.disk_cache import drop_plan, keep_plan
from caramel.models.live_planning import (
    PLAIN,
    SEARCHED,
    WORTH_PLANNING,
    expected_of,
    forecast_of,
    plan_from_traces,
    worth_a_trial,
)
from caramel.models.variants import Variants
from caramel.planning.choose import Decision
from caramel.planning.compatibility import decides_alike
from caramel.planning.options import Options
from caramel.runtime.control.controller import Planning
from caramel.runtime.control.drift import ReplanSettings
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.stalls.diagnosis import Forecast

OWN = "own"
"""The name of the plan that a model is made with."""


class ModelPlans:
    """The plans of a model, over all its sessions.

    Args:
        variants: what carries them out, of the model's own plan so far.
        decision: why that one was taken, and what else was looked at.
        plain: the job's plain plan.
        graph: the single-device graph.
        analysis_of: an analysis of the job that knows some more facts.
        options: what the user wants.
        is_given: whether the user gave the plan, so that nothing is to be decided.
        again: whether to plan again when steps take much longer than expected.
        cache_key: under which the plan is kept that proves the fastest; None to keep none.
        cores: how many each worker's processor has, if that is known.

    Attributes:
        decision: what was decided last.
        first: the name of the plan with which a session begins.
    """

    def __init__(
        self,
        variants: Variants,
        decision: Decision,
        plain: Plan,
        graph: OpGraph,
        analysis_of: Callable[[Sequence[Any]], Analysis],
        options: Options,
        *,
        is_given: bool,
        again: bool,
        cache_key: str | None,
        cores: int | None,
    ) -> None:
        self._variants, self._plain, self._graph = variants, plain, graph
        self._analysis_of, self._options = analysis_of, options
        self._is_given, self._again = is_given, again
        self._cache_key, self._cores = cache_key, cores
        self.decision = decision
        self.first = OWN
        self._is_chosen = False  # whether one has proved the fastest
        self._are_factors_left = False
        self._users_own: set[str] = set()  # names of variants that the user has added
        self._worth_a_trial: list[str] | None = None  # names of variants, once they are added
        self._given_up: set[str] = set()  # likewise

    def add(self, plan: Plan, name: str) -> Plan:
        """Add a plan of the user's; returns it as it is carried out.

        Raises:
            PlanError: it does not fit the job, or the name is taken.
        """
        completed = self._variants.add(plan, name)
        self._users_own.add(name)
        return completed

    def forecast(self, plan: Plan) -> Forecast | None:
        """What is predicted of a plan's steps, if anything can be."""
        return forecast_of(plan, self.decision)

    def forecast_s(self, name: str) -> float | None:
        """How long a step of a variant is predicted to take, if that can be."""
        forecast = self.forecast(self._variants.plan(name))
        return None if forecast is None else forecast.step_s

    def is_plain(self, name: str) -> bool:
        """Whether a variant does what the plain plan does."""
        return decides_alike(self._variants.plan(name), self.decision.plain)

    def planning(
        self, trials: TrialSettings, settings: ReplanSettings | None = None
    ) -> Planning | None:
        """How a session plans while it runs; None if it does not.

        Args:
            trials: how the plans are tried.
            settings: when a job plans.
        """
        if self._is_given or not self._options.plans or self._plain.workers == 1:
            return None
        searches = self._options.planner == "search"
        forecast = self.forecast(self._variants.plan(self.first))
        return Planning(
            replan=self._plan_live,
            chosen=self._keep,
            untried=self._go_on,
            trials=trials,
            settings=settings or ReplanSettings(),
            begins=searches and self.decision.outlook is None,
            again=self._again,
            expected_s=None if forecast is None else forecast.step_s,
        )

    def tried(self, *, all_known: bool = False) -> list[str]:
        """Names of the plans that a session is to try, beginning with the one of its first step.

        Those that a search has found are added once. What carries them out is made when they are
        tried: the first steps need not wait for it. Where a plan has proved the fastest in a
        session of this model, or the user has added plans, none are tried unless asked for.

        Args:
            all_known: whether all plans of the model are to be tried, also those that the user has
                added.
        """
        is_asked = all_known or not (self._is_chosen or self._users_own)
        if is_asked and self._worth_a_trial is None and not self._is_chosen:
            self._worth_a_trial = self._named(worth_a_trial(self.decision))
        names = [self.first]
        if all_known:
            names += self._variants
        elif is_asked:
            names += self._worth_a_trial or ()
        if self._are_factors_left:
            names = [name for name in names if not self._variants.plan(name).factored]
        return [name for name in dict.fromkeys(names) if name not in self._given_up]

    @property
    def own(self) -> str:
        """The name of the model's own plan, or, where factors were left, of one like it."""
        name = self._variants.unfactored(OWN) if self._are_factors_left else OWN
        return self._plain_name if name in self._given_up else name

    @property
    def _plain_name(self) -> str:
        """The name of the plain plan; it is added if need be."""
        return self._named({PLAIN: self.decision.plain})[0]

    def give_up(self, name: str) -> str:
        """A step of a plan never ended: no session is to begin with it or to try it any more.

        Returns:
            The name of the plain plan, which goes on.
        """
        self._given_up.add(name)
        self._variants.avoid(name)
        plain = self._plain_name
        if self.first == name:
            self.first = plain
        if decides_alike(self.decision.plan, self._variants.plan(name)):
            self._go_on(plain)
            if self._cache_key is not None:
                drop_plan(self._cache_key)
        return plain

    def leave_factors(self, running: str) -> list[str]:
        """Processors compute other bits from the same factors: no plan may send any more.

        Args:
            running: the plan that sent them.

        Returns:
            Names of plans that send none, of which the first is to go on; all are worth a trial.
        """
        plain = [] if self._is_given else self._named({PLAIN: self.decision.plain})
        known = [*(self._worth_a_trial or ()), *plain]
        unfactored = [name for name in known if not self._variants.plan(name).factored]
        planned = [name for name in unfactored if name not in plain]
        if not planned:
            planned = [self._variants.unfactored(running)]
        self._options = dataclasses.replace(self._options, factors=False)
        self._are_factors_left, self._is_chosen = True, False
        self.first, *self._worth_a_trial = dict.fromkeys([*planned, *unfactored])
        self._go_on(self.first)
        if self._cache_key is not None:
            drop_plan(self._cache_key)
        return [self.first, *self._worth_a_trial]

    def _plan_live(
        self,
        running: str,
        traces: Sequence[Sequence[Any]],
        clock_offsets_s: Sequence[float],
    ) -> tuple[list[str], float | None]:
        """Plan from traced steps.

        Where the plain plan runs and no plan is predicted to be faster, it goes on. Any other plan
        has to compete with the plain one in any case: it may have become slower than that.

        Args:
            running: the plan that did them.
            traces: for each step the `StepStats` protos of its calls.
            clock_offsets_s: by how much each worker's clock is ahead of the first one's.

        Returns:
            Names of the plans to try besides the one that runs, and the step that is expected.
        """
        decision = plan_from_traces(
            traces,
            clock_offsets_s,
            self._plain,
            self._analysis_of,
            self._graph,
            self._options,
            self._cores,
        )
        if self._cache_key is not None:  # it stands for facts that hold no longer
            drop_plan(self._cache_key)
            self._cache_key = None
        found, run = decision.found, self._variants.plan(running)
        is_plain = decides_alike(run, decision.plain)
        if found is not None and found.best.step_s > WORTH_PLANNING * found.plain.step_s:
            if is_plain:  # it stays, but more is known of it
                self.decision = dataclasses.replace(decision, plan=run)
                return [], expected_of(self.decision)
            decision = dataclasses.replace(decision, plan=decision.plain)
        plans = {PLAIN: decision.plain, **worth_a_trial(decision)}
        if not decides_alike(decision.plan, decision.plain):
            name = SEARCHED if found is not None else self._options.planner
            plans = {name: decision.plan, **plans}
        self.decision, self._worth_a_trial = decision, self._named(plans)
        others = [name for name in self._worth_a_trial if name != running]
        return others, expected_of(decision)

    def _named(self, plans: Mapping[str, Plan]) -> list[str]:
        """The variants that do what plans decide; those that are missing are added."""
        names = (self._variants.like(plan, name) for name, plan in plans.items())
        return list(dict.fromkeys(names))

    def _keep(self, name: str) -> None:
        """Remember the plan that proved the fastest.

        If it is not the one that did so in an earlier run, the next run searches again: only the
        plain plan was tried beside that.
        """
        is_outdated = self.decision.is_kept and name != OWN
        self.first, self._is_chosen = name, True
        self._go_on(name)
        if self._cache_key is None or name in self._users_own:
            return
        if is_outdated:
            drop_plan(self._cache_key)
        else:
            keep_plan(self._cache_key, self.decision.plan)

    def _go_on(self, name: str) -> None:
        """Whatever was decided, this is the plan that steps are done by."""
        self.decision = dataclasses.replace(self.decision, plan=self._variants.plan(name))
