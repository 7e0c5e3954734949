"""The steps of a model, each made by the four stages, and what they become with fetches that write.

A step whose fetches write what has to be aggregated or ordered, or read what has to be ordered, is
a step of its own, a *joint* one, with facts, a plan, a graph and sessions of its own.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence

from caramel.analyzers.beside import Beside
from caramel.core.errors import CaramelError
from caramel.core.plan import Plan
from caramel.core.train_steps import StepName
from caramel.core.util.gc_pause import held_back
from caramel.core.util.stopwatch import Stopwatch
from caramel.models.assembly import Assembly
from caramel.models.facts import JobFacts, KnownStep
from caramel.models.joint_facts import beside, joint_facts, racing_with
from caramel.models.options import ModelOptions
from caramel.models.plan_choice import PlanChoice
from caramel.models.planned import plan_step
from caramel.models.step_model import StepModel
from caramel.models.variants import Variants

_log = logging.getLogger(__name__)

_ADVICE = (
    "in session.step each worker runs what is fetched on its own part of the batch; do it in a "
    "call of its own, as one of several steps (Context(steps={...}), session.step(..., step=...)) "
    "or by session.run (on worker 0, with what is fed whole), or name its gradients "
    "(Context(gradients=...))"
)


class Steps:
    """The steps of a model; joint ones are made once, when they are first asked for.

    Args:
        facts: what is known of the job.
        options: what the user has chosen.
        plans: by name of the step, plans to carry out in place of new ones.
        assembly: the graph in which the plans of all steps stand.
        stopwatch: told how long each part of the build takes.

    Attributes:
        own: the steps of the job by name.

    Raises:
        GraphError, PlanError: as `ARModel`.
    """

    def __init__(
        self,
        facts: JobFacts,
        options: ModelOptions,
        plans: Mapping[StepName, Plan],
        assembly: Assembly,
        stopwatch: Stopwatch,
    ) -> None:
        self._facts, self._options, self._stopwatch = facts, options, stopwatch
        self._assembly = assembly
        self._joining = threading.Lock()  # sessions in several threads may ask for one joint step
        self._beside: dict[StepName, Beside] = {}
        self._joint: dict[tuple[StepName, frozenset[str]], StepModel | None] = {}
        self.own = {
            name: self._made(name, step, options, plans.get(name))
            for name, step in facts.steps.items()
        }

    def _made(
        self, name: StepName, known: KnownStep, options: ModelOptions, given: Plan | None = None
    ) -> StepModel:
        """A step, from its facts to what sessions are given of it."""
        planned = plan_step(known, self._facts, options, given, self._stopwatch)
        variants = Variants(self._assembly, planned)
        plans = PlanChoice(name, planned, variants, options, cores=self._facts.cores, steps=self)
        return StepModel(planned, variants, plans, self._assembly.graph, options)

    def joint(self, name: StepName, fetched: Sequence[str]) -> StepModel | None:
        """The joint step that does a step and what is fetched; None if the step itself can.

        Args:
            name: of the step.
            fetched: the ops that are fetched.

        Raises:
            GraphError: workers would not do alike what is fetched, or it cannot be distributed.
            FeedError: it reads an input pipeline that is no step's.
        """
        in_order = racing_with(self._facts.steps[name], fetched)
        only = in_order.reading  # may be done without, if need be
        if len(self._facts.devices) == 1 and not self._facts.cluster.servers:
            joined = only = (*in_order.writing, *in_order.reading)
        else:
            joined = (*self._to_join(name, fetched), *in_order.reading)
        key = (name, frozenset(joined))
        if not joined:
            return None
        with self._joining:
            if key not in self._joint:
                is_needed = key[1] != set(only)
                self._joint[key] = self._tried(name, sorted(key[1]), fetched, is_needed=is_needed)
            return self._joint[key]

    def _tried(
        self, name: StepName, joined: Sequence[str], fetched: Sequence[str], *, is_needed: bool
    ) -> StepModel | None:
        """A joint step; None if there can be none, and it may be done without."""
        try:
            return self._joined(name, joined, fetched)
        except CaramelError as error:
            told = ", ".join(f"'{op}'" for op in joined)
            if is_needed:
                raise type(error)(f"cannot fetch {told} in a step: {error}; {_ADVICE}") from None
            _log.warning("%s may run before or behind what the step does: %s", told, error)
            return None

    def _to_join(self, name: StepName, fetched: Sequence[str]) -> tuple[str, ...]:
        if name not in self._beside:
            self._beside[name] = beside(self._facts.steps[name])
        return self._beside[name].to_join(fetched, self.own[name].plan.job.served)

    @held_back()
    def _joined(self, name: StepName, joined: Sequence[str], fetched: Sequence[str]) -> StepModel:
        steps, options = self._facts.steps, self._options
        known = joint_facts(steps[name], steps.values(), joined, fetched)
        if self.own[name].is_given:  # what the user decides is not planned
            options = dataclasses.replace(options, planner=options.planner.unplanned())
        return self._made(name, known, options)
