"""One step of a model, as users see it: its plan, all plans that stand beside that, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

from caramel.analyzers.examples.batch import batch_of
from caramel.core.errors import PlanError
from caramel.core.explanation import Explanation
from caramel.core.facts import InputPipelines, LoopFrames, ReplicaState, StateAccess, WorkerInputs
from caramel.core.plan import Plan
from caramel.core.time_facts import TimingTable
from caramel.core.timeline import Timeline
from caramel.core.util.progress import working
from caramel.models.options import ModelOptions
from caramel.models.plan_choice import PlanChoice
from caramel.models.planned import PlannedStep
from caramel.models.variants import OWN, Variants
from caramel.planning.choose import Decision
from caramel.planning.placement.explain import explain_placed
from caramel.planning.placement.planner import PlacementPlanner
from caramel.planning.serving.explain import explain_order
from caramel.planning.serving.explain_step import explain_step
from caramel.planning.serving.ownership import taken_together
from caramel.planning.what_if.explain import explain
from caramel.report.shown import ShownExplanation
from caramel.report.shown_order import ShownOrder
from caramel.runtime.control.drift import ReplanSettings
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.job import Job


class StepModel:
    """A training step over many workers.

    Args:
        step: what is known of it, and its plan.
        variants: what carries its plans out.
        plans: which plans are tried.
        graph: the distributed graph.
        options: what the user has chosen.

    Attributes:
        plan: everything that will happen, as pure data.
        is_given: whether the user gave it.
        windows: when each parameter can be aggregated; None if nothing is known of times.
        variants: by name, the plans that a session can change between.
        traffic: bytes that a step of `plan` sends between each pair of tasks.
        plans: which plans are tried.
        job: what sessions are given of it.
    """

    def __init__(
        self,
        step: PlannedStep,
        variants: Variants,
        plans: PlanChoice,
        graph: DistributedGraph,
        options: ModelOptions,
    ) -> None:
        self._step, self._options = step, options
        self.plan, self.windows, self.is_given = step.plan, step.windows, step.is_given
        self.variants, self.plans = variants, plans
        self.traffic = variants[OWN].traffic
        known = step.known
        self.job = Job(
            known.context,
            graph,
            variants[OWN],
            known.get(ReplicaState),
            known.get(StateAccess),
            known.get(InputPipelines),
            known.get(LoopFrames),
            plans,
        )

    @property
    def decision(self) -> Decision:
        """Why the plan is what it is, and what else was looked at; if several, the last one."""
        return self.plans.decision

    def add_variant(self, plan: Plan, name: str) -> Plan:
        """Add another plan for the same step, for sessions to change to: see `ARModel`."""
        return self.plans.add(plan, name)

    @working("explaining the plan")
    def explain(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownExplanation:
        """What bounds a step of the plan, and why each group goes when it goes: see `ARModel`."""
        measured = (measured,) if isinstance(measured, Timeline) else measured
        if self.plan.placement is not None:
            return self._explain_placed(measured, measured_step_s)
        if self.plan.job.servers:
            raise PlanError(
                "with parameter servers, 'explain_order' explains what workers receive; this is "
                "about what they aggregate between them"
            )
        if self.plan.workers == 1:
            raise PlanError("there is nothing to explain: one worker aggregates nothing")
        if self.decision.outlook is None:
            raise PlanError(
                "nothing can be explained, because nothing is known of times: give "
                "ARModel(profile=...) a file that 'caramel profile' wrote, or explain after some "
                f"{ReplanSettings().first_after} steps of training with planner='search' (a job "
                f"whose steps take less than {ReplanSettings().least_step_s * 1e3:.0f} ms does not "
                "measure itself, unless its session has "
                "replanning=caramel.ReplanSettings(least_step_s=0, payback=0))"
            )
        planner = self._options.planner.name
        explanation = explain(
            self.plan_of(measured),
            self.decision.outlook,
            job=self.job.context.name,
            planner="none, the plan was given" if self.is_given else planner,
            deferrable=self.decision.deferrable,
            measured=measured,
            measured_step_s=measured_step_s,
        )
        return ShownExplanation.of(self._told(explanation))

    def _explain_placed(
        self, measured: Sequence[Timeline], measured_step_s: float | None
    ) -> ShownExplanation:
        planner, placement = self._options.planner, self.plan_of(measured).placement
        known = self._step.known
        assert isinstance(planner, PlacementPlanner), "only it places"
        assert placement is not None, "all its plans place"
        explanation = explain_placed(
            planner.layout_of(placement, known.analysis(known.measured)),
            job=self.job.context.name,
            planner="none, the plan was given" if self.is_given else planner.name,
            measured=measured,
            measured_step_s=measured_step_s,
        )
        return ShownExplanation.of(self._told(explanation))

    def explain_order(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownOrder:
        """Why each variable has its place in the order: see `PSModel.explain`.

        Raises:
            PlanError: traced steps were done by different plans, or there are no servers.
            ProfileError: no parameter was seen on its way in traced steps.
        """
        if not self.plan.job.servers:
            raise PlanError("without parameter servers nothing is received; see 'explain'")
        measured = (measured,) if isinstance(measured, Timeline) else measured
        plan = self.variants.completed(self.plan_of(measured))
        worker, step = self.decision.worker, None
        splits = self.job.context.row_splits
        together = taken_together(plan.job, self._step.known.get(StateAccess))
        order = explain_order(plan, self.decision.source, worker, measured, splits, together)
        if worker is not None:
            step = explain_step(
                plan,
                worker,
                order,
                job=self.job.context.name,
                measured=measured,
                measured_step_s=measured_step_s,
            )
        return ShownOrder.of(order, None if step is None else self._told(step))

    def _told(self, explanation: Explanation) -> Explanation:
        """The same with what it is about: the batch, and the day."""
        made = datetime.now().strftime("%Y-%m-%d %H:%M")
        examples = self.plans.examples or self._known_examples()
        return dataclasses.replace(explanation, examples=examples, made=made)

    def _known_examples(self) -> int | None:
        """How many examples a worker has in a step, as its graph or the profile tells."""
        known, planner = self._step.known, self._options.planner
        timing = next((fact for fact in known.measured if isinstance(fact, TimingTable)), None)
        sizes = dict(planner.sizes) if isinstance(planner, PlacementPlanner) else {}
        sizes |= {} if timing is None else timing.traced_bytes
        inputs = known.get(WorkerInputs)
        return batch_of(known.context.op_graph, known.context.job, inputs, sizes)

    def plan_of(self, measured: Sequence[Timeline]) -> Plan:
        """The plan that did traced steps; the decided one if there are none.

        Raises:
            PlanError: they were done by different plans, or by one of another model.
        """
        names = sorted({timeline.plan for timeline in measured if timeline.plan})
        if not names:
            return self.decision.plan
        if len(names) > 1:
            raise PlanError(
                "the traced steps were done by different plans, "
                + ", ".join(f"'{name}'" for name in names)
                + "; explain those of one plan at a time"
            )
        if names[0] not in self.variants:
            raise PlanError(
                f"the traced steps were done by a plan '{names[0]}', which this model does not have"
            )
        return self.variants.plan(names[0])
