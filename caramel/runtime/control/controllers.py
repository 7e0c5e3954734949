"""Which controller does a step? There is one for each step of a job, and for each joint one.

All work on the same variables, so before another one takes over, what is pending of the last step
is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from caramel.cluster.cluster import Cluster
from caramel.core.train_steps import StepName, chosen
from caramel.runtime.control.controller import Controller
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.stalls.watchdog import Watchdog


class Controllers:
    """The controllers of a session.

    Args:
        jobs: the steps of the job by name.
        settings: how plans are chosen, and when a step counts as stalled.
        runner: runs parts of the graph.
        cluster: the workers.
        earlier: what did the steps of these very jobs before a worker was lost, and is gone on
            with; None if nothing did.

    Attributes:
        active: the one that did the last step, or will do the first.
    """

    def __init__(
        self,
        jobs: Mapping[StepName, Job],
        settings: ControlSettings,
        runner: Runner,
        cluster: Cluster,
        earlier: Controllers | None = None,
    ) -> None:
        self._settings, self._runner, self._cluster = settings, runner, cluster
        before: Mapping[StepName, Controller] = {} if earlier is None else earlier._own
        self._own: Mapping[StepName, Controller] = {
            name: self._controller(job, before.get(name)) for name, job in jobs.items()
        }
        self._joint: dict[StepName, list[Controller]] = {name: [] for name in jobs}
        self._serving: dict[tuple[StepName, tuple[str, ...]], Controller] = {}
        self._last = dict(self._own)  # by name of the step what did it last
        self.active = next(iter(self._own.values()))

    @property
    def steps(self) -> tuple[StepName, ...]:
        """The names of the job's steps."""
        return tuple(self._own)

    @property
    def preparation(self) -> list[str]:
        """Ops to run before the first step."""
        return [op for controller in self._own.values() for op in controller.preparation]

    @property
    def train_ops(self) -> list[str]:
        """The train op of each step of the job."""
        return [controller.job.context.job.train_op for controller in self._own.values()]

    def own(self, step: StepName | None) -> Controller:
        """The controller of a step of the job.

        Raises:
            FeedError: there is no such step, or several and none is named.
        """
        return self._own[chosen(step, self._own)]

    def serving(self, step: StepName | None, fetched: Sequence[str]) -> Controller:
        """The controller that does a step and runs ops that are fetched.

        Raises:
            FeedError: there is no such step, or several and none is named.
            GraphError: workers would not do alike what is fetched.
        """
        name = chosen(step, self._own)
        key = (name, tuple(fetched))
        if key not in self._serving:
            self._serving[key] = self._find(name, fetched)
        self._last[name] = self._serving[key]
        return self._serving[key]

    def take_over(self, controller: Controller) -> None:
        """Let a controller do the next step.

        Raises:
            WorkerLostError, tf.errors.OpError: what was pending of the last one has failed.
        """
        if controller is not self.active:
            self.active.flush()
            self.active = controller

    def metrics(self, step: StepName | None) -> Metrics:
        """How training by a step goes; its joint steps count as such, too."""
        name = chosen(step, self._own)
        every = [self._own[name], *self._joint[name]]
        metrics = self._last[name].metrics()
        return dataclasses.replace(metrics, steps=sum(each.metrics().steps for each in every))

    def close(self) -> None:
        """End all threads, each also if another one's end is interrupted."""
        with ExitStack() as ending:
            for name, controller in self._own.items():
                for each in (controller, *self._joint[name]):
                    ending.callback(each.close)

    def _find(self, name: StepName, fetched: Sequence[str]) -> Controller:
        own = self._own[name]
        job = own.job.plans.joint(fetched)
        if job is None:
            return own
        known = [each for each in self._joint[name] if each.job is job]
        if known:
            return known[0]
        controller = self._controller(job)
        controller.begin()
        self._joint[name].append(controller)
        return controller

    def _controller(self, job: Job, earlier: Controller | None = None) -> Controller:
        """What does a step; plans are tried in it if there is something to try."""
        settings, plans = self._settings, job.plans
        watchdog = None
        if settings.stalls is not None:
            watchdog = Watchdog(self._runner, self._cluster, job, settings.stalls)
        if earlier is not None:
            return Controller(job, self._runner, earlier.plan, settings, None, watchdog, earlier)
        planning, tried = None, [plans.own]
        if settings.trials is not None:
            planning = plans.live_planning()
            tried = plans.tried(all_known=settings.tries_all)
        controller = Controller(job, self._runner, tried[0], settings, planning, watchdog)
        if settings.trials is not None and (settings.tries_all or len(tried) > 1):
            controller.try_plans(tried, settings.trials)
        return controller
