"""The fourth stage of a model: which plans do sessions try, and which one proved the fastest?

A job that was started with measured facts has its plan from the begin, and tries the best ones. One
without measures itself in its first steps. Both keep what proved the fastest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from caramel.analyzers.analysis import Analysis
from caramel.core.errors import ProfileError
from caramel.core.facts import LossScale
from caramel.core.names import TensorRef
from caramel.core.orders import Orders
from caramel.core.payback import Payback
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.disk_cache import drop_plan, keep_plan
from caramel.models.facts_from_traces import (
    observed_network,
    observed_profile,
    observed_timing,
    observed_transfers,
)
from caramel.models.options import ModelOptions
from caramel.models.planned import PlannedStep
from caramel.models.scalar_scales import ScalarScales
from caramel.models.variants import OWN, Variants
from caramel.planning.candidate import Candidate
from caramel.planning.choose import Decision
from caramel.planning.compatibility import decides_alike
from caramel.planning.prospect import WORTH_PLANNING
from caramel.planning.serving.observed_orders import observed_orders
from caramel.planning.step_planner import StepPlanner
from caramel.planning.worth_a_trial import PLAIN
from caramel.runtime.job import Job, LivePlanning, PlanSource, Variant
from caramel.runtime.stalls.diagnosis import Forecast

if TYPE_CHECKING:
    from caramel.models.steps import Steps

SEARCHED = "searched"
"""What a plan is called that was found while the job runs."""


def forecast_of(plan: Plan, decision: Decision) -> Forecast | None:
    """What is predicted of any plan for a decision's job; None if nothing is known of times."""
    if decision.outlook is None:
        return None
    prediction = decision.outlook.predict(Candidate.of(plan, "decided"))
    ends_s = {name: times.end_s for name, times in prediction.groups.items()}
    return Forecast(prediction.step_s, ends_s)


def plan_from_traces(
    traces: Sequence[Sequence[Any]],
    clock_offsets_s: Sequence[float],
    step: PlannedStep,
    planner: StepPlanner,
    cores: int | None = None,
) -> Decision:
    """What is decided from traced steps of a running job.

    Args:
        traces: for each step the `StepStats` protos of its calls.
        clock_offsets_s: by how much each worker's clock is ahead of the first one's.
        step: what they are steps of.
        planner: how to plan.
        cores: how many each worker's processor has, if that is known.

    Raises:
        ProfileError: nothing can be learnt from the traces.
    """
    analysis = _learnt(traces, clock_offsets_s, step, cores)
    return planner.while_training().choose(step.plain, analysis)


def _learnt(
    traces: Sequence[Sequence[Any]],
    clock_offsets_s: Sequence[float],
    step: PlannedStep,
    cores: int | None,
) -> Analysis:
    """What is known after traced steps; see `plan_from_traces`."""
    job = step.plain.job
    facts: list[Any] = [
        observed_timing(traces, step.known.graph, job.devices, cores),
        observed_network(traces, job.devices, clock_offsets_s),
    ]
    if job.servers:
        facts.append(observed_transfers(traces, job))
    return step.known.analysis([*step.known.measured, *facts])


class PlanChoice(PlanSource):
    """The plans of a step, over all sessions of its model.

    Args:
        name: of the step.
        step: its own plan, and what is known of it.
        variants: what carries its plans out.
        options: what the user has chosen.
        cores: how many each worker's processor has, if that is known.
        steps: finds what does the step together with more.

    Attributes:
        decision: what was decided last.
        examples: how many a worker had in the steps from which it was decided; None if that is not
            known, or it was decided from a profile.
        first: the name of the plan with which a session begins.
    """

    def __init__(
        self,
        name: StepName,
        step: PlannedStep,
        variants: Variants,
        options: ModelOptions,
        *,
        cores: int | None,
        steps: Steps,
    ) -> None:
        self._name, self._step, self._variants = name, step, variants
        self._planner, self._again = options.planner, options.replan == "auto"
        self._cores, self._steps = cores, steps
        self._scales = ScalarScales(step.known)
        self._cache_key = step.cache_key
        self.decision = step.decision
        self.examples: int | None = None
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

    # What there is

    @property
    def names(self) -> tuple[str, ...]:
        """The plans that a session can change between."""
        return tuple(self._variants)

    @property
    def own(self) -> str:
        """The name of the model's own plan, or, where factors were left, of one like it."""
        name = self._variants.unfactored(OWN) if self._are_factors_left else OWN
        return self._plain_name if name in self._given_up else name

    def plan(self, name: str) -> Plan:
        """What a plan decides."""
        return self._variants.plan(name)

    def ensure(self, name: str) -> Variant:
        """What carries a plan out; its graph is made if it was not yet."""
        return self._variants.ensure(name)

    @property
    def build_s(self) -> float:
        """How long it took to build the graph of a plan, in seconds."""
        return self._variants.build_s

    def has_room_for(self, name: str) -> bool:
        """Whether the graph of a plan is there, or leaves enough memory if it is made."""
        return self._variants.has_room_for(name)

    def is_plain(self, name: str) -> bool:
        """Whether a plan does what the plain one does."""
        return decides_alike(self.plan(name), self.decision.plain)

    def forecast(self, name: str) -> Forecast | None:
        """What is predicted of a plan's steps, if anything can be."""
        return forecast_of(self.plan(name), self.decision)

    def orders(self, timelines: Sequence[Timeline]) -> Orders | None:
        """What traced steps of one plan tell of the order of parameters; None if nothing."""
        if not self._step.plain.job.servers:
            return None
        try:
            return observed_orders(self.plan(timelines[0].plan), timelines)
        except ProfileError:
            return None

    def profile(
        self,
        running: str,
        traces: Sequence[Sequence[Any]],
        clock_offsets_s: Sequence[float],
        fed_bytes: Mapping[str, int],
    ) -> Profile:
        """What traced steps tell, for planning again."""
        return observed_profile(
            traces,
            clock_offsets_s,
            self.plan(running),
            self._step.known,
            cores=self._cores,
            fed_bytes=fed_bytes,
        )

    def undeferred(self, *, factored: bool = True) -> str:
        """A plan that defers nothing; it is added if there is none."""
        return self._variants.undeferred(factored=factored)

    def joint(self, fetched: Sequence[str]) -> Job | None:
        """The step that is done together with ops that are fetched; None if this one can."""
        found = self._steps.joint(self._name, fetched)
        return None if found is None else found.job

    def scale_of(self, tensor: TensorRef) -> LossScale | None:
        """How a scalar scales with the examples; None if it is the same on every worker."""
        return self._scales.of(tensor)

    # What is tried, planned and kept

    def live_planning(self) -> LivePlanning | None:
        """What a session that begins now is to plan; None for nothing."""
        if self._step.is_given or not self._planner.plans or not self._step.plain.is_distributed:
            return None
        forecast = self.forecast(self.first)
        return LivePlanning(
            begins=self._planner.wants_times(self.decision),
            again=self._again,
            expected_s=None if forecast is None else forecast.step_s,
        )

    def tried(self, *, all_known: bool = False) -> list[str]:
        """The plans that a session is to try, beginning with the one of its first step.

        Those that a search has found are added once. What carries them out is made when they are
        tried: the first steps need not wait for it. Where a plan has proved the fastest in a
        session of this model, or the user has added plans, none are tried unless asked for.
        """
        is_asked = all_known or not (self._is_chosen or self._users_own)
        if is_asked and self._worth_a_trial is None and not self._is_chosen:
            self._worth_a_trial = self._named(self._planner.worth_a_trial(self.decision))
        names = [self.first]
        if all_known:
            names += self._variants
        elif is_asked:
            names += self._worth_a_trial or ()
        if self._are_factors_left:
            names = [name for name in names if not self.plan(name).factored]
        return [name for name in dict.fromkeys(names) if name not in self._given_up]

    def give_up(self, name: str) -> str:
        """A step of a plan never ended: no session is to begin with it or to try it any more."""
        self._given_up.add(name)
        self._variants.avoid(name)
        plain = self._plain_name
        if self.first == name:
            self.first = plain
        if decides_alike(self.decision.plan, self.plan(name)):
            self.go_on(plain)
            if self._cache_key is not None:
                drop_plan(self._cache_key)
        return plain

    def leave_factors(self, running: str) -> list[str]:
        """Processors compute other bits from the same factors: no plan may send any more."""
        plain = [] if self._step.is_given else self._named({PLAIN: self.decision.plain})
        known = [*(self._worth_a_trial or ()), *plain]
        unfactored = [name for name in known if not self.plan(name).factored]
        planned = [name for name in unfactored if name not in plain]
        if not planned:
            planned = [self._variants.unfactored(running)]
        self._planner = self._planner.without_factors()
        self._are_factors_left, self._is_chosen = True, False
        self.first, *self._worth_a_trial = dict.fromkeys([*planned, *unfactored])
        self.go_on(self.first)
        if self._cache_key is not None:
            drop_plan(self._cache_key)
        return [self.first, *self._worth_a_trial]

    def prospect(
        self, traces: Sequence[Sequence[Any]], clock_offsets_s: Sequence[float]
    ) -> Payback | None:
        """What it costs to plan from traced steps, and what that may bring at most."""
        planner = self._planner.while_training()
        analysis = _learnt(traces, clock_offsets_s, self._step, self._cores)
        return planner.prospect(self._step.plain, analysis)

    def replan(
        self,
        running: str,
        traces: Sequence[Sequence[Any]],
        clock_offsets_s: Sequence[float],
        examples: int | None = None,
    ) -> tuple[list[str], float | None]:
        """Plan from traced steps.

        Where the plain plan runs and no plan is predicted to be faster, it goes on. Any other plan
        has to compete with the plain one in any case: it may have become slower than that.
        """
        decision = plan_from_traces(
            traces,
            clock_offsets_s,
            self._step,
            self._planner,
            self._cores,
        )
        self.examples = examples
        if self._cache_key is not None:  # it stands for facts that hold no longer
            drop_plan(self._cache_key)
            self._cache_key = None
        found, run = decision.found, self.plan(running)
        is_plain = decides_alike(run, decision.plain)
        if found is not None and found.best.step_s > WORTH_PLANNING * found.plain.step_s:
            if is_plain:  # it stays, but more is known of it
                self.decision = dataclasses.replace(decision, plan=run)
                return [], self._expected_s()
            decision = dataclasses.replace(decision, plan=decision.plain)
        plans = {PLAIN: decision.plain, **self._planner.worth_a_trial(decision)}
        if not decides_alike(decision.plan, decision.plain):
            name = SEARCHED if found is not None else self._planner.name
            plans = {name: decision.plan, **plans}
        self.decision, self._worth_a_trial = decision, self._named(plans)
        others = [name for name in self._worth_a_trial if name != running]
        return others, self._expected_s()

    def keep(self, name: str) -> None:
        """A plan has proved the fastest: remember it.

        If it is not the one that did so in an earlier run, the next run searches again: only the
        plain plan was tried beside that. Nothing is remembered where the user has said what to do.
        """
        if self._step.is_given or not self._planner.plans:
            return
        is_outdated = self.decision.is_kept and name != OWN
        self.first, self._is_chosen = name, True
        self.go_on(name)
        if self._cache_key is None or name in self._users_own:
            return
        if is_outdated:
            drop_plan(self._cache_key)
        else:
            keep_plan(self._cache_key, self.decision.plan)

    def go_on(self, name: str) -> None:
        """Whatever was decided, this is the plan that steps are done by."""
        self.decision = dataclasses.replace(self.decision, plan=self.plan(name))

    def _expected_s(self) -> float | None:
        """The predicted step of what was decided last."""
        forecast = forecast_of(self.decision.plan, self.decision)
        return None if forecast is None else forecast.step_s

    def _named(self, plans: Mapping[str, Plan]) -> list[str]:
        """The variants that do what plans decide; those that are missing are added."""
        names = (self._variants.like(plan, name) for name, plan in plans.items())
        return list(dict.fromkeys(names))

    @property
    def _plain_name(self) -> str:
        """The name of the plain plan; it is added if need be."""
        return self._named({PLAIN: self.decision.plain})[0]
