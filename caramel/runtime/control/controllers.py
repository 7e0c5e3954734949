"""Which stepper does a step? There is one for each step of a job, and for each joint one.

All work on the same variables, so before another one takes over, what is pending of the last step
is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from caramel.cluster.cluster import Cluster
from caramel.core.train_steps import StepName, chosen
from caramel.runtime.control.controller import Stepper
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.stalls.watchdog import Watchdog


class Steppers:
    """The steppers of a session.

    Args:
        jobs: the steps of the job by name.
        settings: how plans are chosen, and when a step counts as stalled.
        runner: runs parts of the graph.
        cluster: the workers.

    Attributes:
        active: the one that did the last step, or will do the first.
    """

    def __init__(
        self,
        jobs: Mapping[StepName, Job],
        settings: ControlSettings,
        runner: Runner,
        cluster: Cluster,
    ) -> None:
        self._settings, self._runner, self._cluster = settings, runner, cluster
        self._own = {name: self._stepper(job) for name, job in jobs.items()}
        self._joint: dict[StepName, list[Stepper]] = {name: [] for name in jobs}
        self._serving: dict[tuple[StepName, tuple[str, ...]], Stepper] = {}
        self._last = dict(self._own)  # by name of the step what did it last
        self.active = next(iter(self._own.values()))

    @property
    def preparation(self) -> list[str]:
        """Ops to run before the first step."""
        return [op for stepper in self._own.values() for op in stepper.preparation]

    @property
    def train_ops(self) -> list[str]:
        """The train op of each step of the job."""
        return [stepper.job.context.job.train_op for stepper in self._own.values()]

    def own(self, step: StepName | None) -> Stepper:
        """The stepper of a step of the job.

        Raises:
            FeedError: there is no such step, or several and none is named.
        """
        return self._own[chosen(step, self._own)]

    def serving(self, step: StepName | None, fetched: Sequence[str]) -> Stepper:
        """The stepper that does a step and runs ops that are fetched.

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

    def take_over(self, stepper: Stepper) -> None:
        """Let a stepper do the next step.

        Raises:
            WorkerLostError, tf.errors.OpError: what was pending of the last one has failed.
        """
        if stepper is not self.active:
            self.active.flush()
            self.active = stepper

    def metrics(self, step: StepName | None) -> Metrics:
        """How training by a step goes; its joint steps count as such, too."""
        name = chosen(step, self._own)
        every = [self._own[name], *self._joint[name]]
        metrics = self._last[name].metrics()
        return dataclasses.replace(metrics, steps=sum(each.metrics().steps for each in every))

    def close(self) -> None:
        """End all threads, each also if another one's end is interrupted."""
        with ExitStack() as ending:
            for name, stepper in self._own.items():
                for each in (stepper, *self._joint[name]):
                    ending.callback(each.close)

    def _find(self, name: StepName, fetched: Sequence[str]) -> Stepper:
        own = self._own[name]
        job = own.job.plans.joint(fetched)
        if job is None:
            return own
        known = [each for each in self._joint[name] if each.job is job]
        if known:
            return known[0]
        stepper = self._stepper(job)
        stepper.begin()
        self._joint[name].append(stepper)
        return stepper

    def _stepper(self, job: Job) -> Stepper:
        """What does a step; plans are tried in it if there is something to try."""
        settings, plans = self._settings, job.plans
        planning, tried = None, [plans.own]
        if settings.trials is not None:
            planning = plans.live_planning()
            tried = plans.tried(all_known=settings.tries_all)
        watchdog = None
        if settings.stalls is not None:
            watchdog = Watchdog(self._runner, self._cluster, job, settings.stalls)
        stepper = Stepper(job, self._runner, tried[0], settings, planning, watchdog)
        if settings.trials is not None and (settings.tries_all or len(tried) > 1):
            stepper.try_plans(tried, settings.trials)
        return stepper
