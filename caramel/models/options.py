"""What the user of a model has chosen, but for the job and its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from caramel.analyzers.analysis import Analyzer
from caramel.cluster.cluster import Cluster
from caramel.core.devices import moved_replicas, task_of
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.core.profile import Profile
from caramel.core.train_steps import StepName, told
from caramel.planning.step_planner import StepPlanner
from caramel.runtime.control.drift import Replan

Given = TypeVar("Given")
GivenProfile = Profile | str | os.PathLike[str]


@dataclass(frozen=True)
class ModelOptions:
    """What the user has chosen; `ARModel` says what each of these is.

    Attributes:
        planner: who plans, and what may be planned.
        may_share: whether several replicas may be on one device.

    Raises:
        PlanError: something cannot be, by itself or together with something else.
    """

    planner: StepPlanner
    profile: GivenProfile | Mapping[StepName, GivenProfile] | None = None
    replan: Replan = "never"
    sparse: SparseMethod = "gather"
    device_list: Sequence[str] | None = None
    plan: Plan | Mapping[StepName, Plan] | None = None
    marks: bool = True
    analyzers: Sequence[Analyzer] = ()
    verbose: bool = False
    check: bool = False
    may_share: bool = False

    def __post_init__(self) -> None:
        if self.sparse not in get_args(SparseMethod):
            raise PlanError(f"sparse must be 'gather' or 'dense', not {self.sparse!r}")
        plans = self.plan.values() if isinstance(self.plan, Mapping) else [self.plan]
        if other := [each for each in plans if not isinstance(each, Plan | None)]:
            raise PlanError(
                f"plan must be a caramel.Plan, or a mapping of them by step, not {other[0]!r}; "
                "Plan.from_json reads one"
            )
        if self.replan not in get_args(Replan):
            raise PlanError(f"replan must be 'never' or 'auto', not {self.replan!r}")
        if self.replan == "auto" and (self.plan is not None or not self.planner.plans):
            why = "a plan is given" if self.plan is not None else "nothing is planned"
            raise PlanError(f"replan='auto' cannot plan again where {why}: leave it out")

    def on(self, cluster: Cluster) -> ModelOptions:
        """What is chosen for some of the workers: nothing that was given for all of them."""
        devices = self.device_list
        if devices is not None:
            devices = [device for device in devices if task_of(device) in cluster.devices]
        return replace(self, plan=None, profile=None, device_list=devices)

    def with_all_replicas(self, devices: Sequence[str], cluster: Cluster) -> ModelOptions:
        """The same where all replicas stay: those of workers that are gone move to others.

        Args:
            devices: of the replicas, when all workers are there.
            cluster: some of the workers.
        """
        moved = moved_replicas(devices, cluster.devices)
        return replace(self.on(cluster), device_list=moved, may_share=True)


def by_step(
    given: Given | Mapping[StepName, Given] | None, steps: Sequence[StepName], what: str
) -> Mapping[StepName, Given]:
    """What is given for each step, by its name.

    Args:
        given: for the only step, or a mapping by name.
        steps: the names of the steps.
        what: what is given, for messages.

    Raises:
        PlanError: one thing is given for several steps, or something for a step that there is not.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(steps) > 1:
            raise PlanError(
                f"{what} must be a mapping by step, since the job has several: {told(steps)}"
            )
        return dict.fromkeys(steps, given)
    if unknown := [name for name in given if name not in steps]:
        raise PlanError(f"{what}: there is no step {unknown[0]!r}; the steps are {told(steps)}")
    return given
