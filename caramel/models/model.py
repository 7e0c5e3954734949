"""What all models have in common: facts, plan, graph and session, made one from the other.

=========== ============================== ========================================================
stage       what is made                   where
=========== ============================== ========================================================
facts       `JobFacts`, of `KnownStep`s    `find_facts`
plan        `PlannedStep`, for each step   `plan_step`
graph       `Variants`, for each step      `Assembly.add`, when a plan is made or first tried
session     `PlanChoice`, for each step    `Session`, which asks it for plans
=========== ============================== ========================================================
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.devices import task_of
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import SECONDS, checked
from caramel.core.util.gc_pause import held_back
from caramel.core.util.rows import html_table
from caramel.core.util.stopwatch import Stopwatch
from caramel.models.assembly import Assembly
from caramel.models.facts import find_facts
from caramel.models.options import ModelOptions, by_step
from caramel.models.steps import Steps
from caramel.planning.choose import Decision
from caramel.runtime.control.drift import ReplanSettings
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.execution.liveness import LOST_AFTER_S
from caramel.runtime.job import Job
from caramel.runtime.recovery.settings import Recovery
from caramel.runtime.resuming import check_directory
from caramel.runtime.session import Session
from caramel.runtime.stalls.diagnosis import DEFAULT as DEFAULT_STALLS
from caramel.runtime.stalls.diagnosis import StallSettings

START_TIMEOUT_S = 60.0
"""How long a session waits for its workers, unless the user says something else."""


class Model:
    """A training job over many workers.

    Args:
        context: the single-device job.
        cluster: the workers, and the parameter servers if there are any.
        options: what the user has chosen.

    Attributes:
        context: the single-device job.
        cluster: the workers.
        steps, plan, windows, variants, traffic: see `ARModel`.

    Raises:
        GraphError, ClusterError, PlanError, ProfileError: see `ARModel`.
    """

    @held_back()
    def __init__(self, context: Context, cluster: Cluster, options: ModelOptions) -> None:
        if not isinstance(context, Context):
            raise PlanError(
                f"{type(self).__name__} takes a caramel.Context, not {type(context).__name__}; "
                "make one with caramel.Context(graph, train_op=train_op, loss=loss)"
            )
        begin_s = time.perf_counter()
        self._options, self._others = options, dict[tuple[Task, ...], Model]()
        self._stopwatch = Stopwatch(options.verbose)
        plans = by_step(options.plan, list(context.steps), "plan")
        facts = find_facts(context, cluster, options)
        assembly = Assembly(self._stopwatch, check=options.check)
        self._steps = Steps(facts, options, plans, assembly, self._stopwatch)
        self._graph = assembly.graph
        self.context, self.cluster, self.steps = facts.context, facts.cluster, self._steps.own
        first = self._step = next(iter(self.steps.values()))
        self.plan, self.windows, self.variants = first.plan, first.windows, first.variants
        self.traffic = first.traffic
        self._jobs = {name: step.job for name, step in self.steps.items()}
        self._building_s = time.perf_counter() - begin_s

    def __repr__(self) -> str:
        plans = self._step.plans
        forecast = plans.forecast(plans.own)
        step = "" if forecast is None else f", predicted step {forecast.step_s * 1e3:,.1f} ms"
        return f"<{type(self).__name__}: {self.cluster!r}, {self.plan!r}{step}>"

    def _repr_html_(self) -> str:
        forecast = self._step.plans.forecast(self._step.plans.own)
        step = "unknown" if forecast is None else f"{forecast.step_s * 1e3:,.1f} ms"
        what = (type(self).__name__, repr(self.cluster))
        return html_table([what, *self.plan.rows(), ("predicted step", step)])

    @property
    def decision(self) -> Decision:
        """Why the plan is what it is, and what else was looked at; if several, the last one."""
        return self._step.decision

    @property
    def graph(self) -> tf.Graph:
        """The distributed graph, with all plans that it has so far.

        It is made when it is asked for, which takes about as long as all of the rewriting; a
        session does without it.
        """
        return self._graph.as_graph()

    @property
    def graph_size(self) -> tuple[int, int]:
        """How many nodes the distributed graph has, and how many bytes it takes to send it."""
        return self._graph.size

    @checked(PlanError)
    def add_variant(self, plan: Plan, name: str) -> Plan:
        """Add another plan for the same job, for sessions to change to.

        It works on the same variables, input pipelines and tables as the model's own plan, so each
        step may be done by another one. Sessions that are open can use it, too.

        Args:
            plan: as the model's `plan`: what it decides is taken from it, the rest from the job.
            name: what `Session.use` and `Session.metrics` call it.

        Returns:
            The plan as it is carried out, with all that follows from what it decides.

        Raises:
            PlanError: it does not fit the job, or the name is taken.
        """
        return self._step.add_variant(plan, name)

    @checked(
        PlanError,
        apart=("resume", "save_on_sigterm"),
        start_timeout_s=SECONDS,
        step_timeout_s=SECONDS,
        lost_after_s=SECONDS,
    )
    def session(
        self,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        step_timeout_s: float = 1800.0,
        lost_after_s: float = LOST_AFTER_S,
        config: Any = None,
        trials: TrialSettings | Literal["auto"] | None = "auto",
        replanning: ReplanSettings | None = None,
        stalls: StallSettings | None = DEFAULT_STALLS,
        initial_feeds: Mapping[Any, Any] | None = None,
        variables: Session | None = None,
        resume: str | os.PathLike[str] | None = None,
        save_on_sigterm: str | os.PathLike[str] | None = None,
        recover: Recovery | None = None,
    ) -> Session:
        """Connect to the workers and initialise all variables.

        No plan can stop a job: where one whose steps have not ended yet takes a hundred times as
        long as predicted or usual (at least half a minute; two where nothing is known), its step is
        done by the plain plan instead, and a warning in the log says so
        (`runtime.control.probation`).

        Args:
            start_timeout_s: how long to wait for the workers, in seconds.
            step_timeout_s: how long one step may take, in seconds, before it counts as failed. To
                place the graph of a plan, before its first step, may take longer.
            lost_after_s: how long a worker may not answer before it counts as lost, in seconds. It
                answers whatever it computes, but not if its process was stopped, its machine or the
                network has failed, or a proxy answers in its place. One whose process has ended is
                found at once.
            config: a `tf.compat.v1.ConfigProto` with options of the session.
            trials: let plans take turns during the first steps, each an ordinary exact step, and
                keep the fastest. With "auto" those that a search has found are tried, the plain one
                among them; with settings of your own also those that you have added to the model,
                and all of them again in every session. None lets the model's own plan do all steps,
                and nothing is planned while the job runs.
            replanning: when a job measures itself and plans while it runs; by default as usual.
            stalls: when a step counts as stalled, so that what it waits for is logged and told by
                `Session.metrics`; None for never.
            initial_feeds: values by tensor or name, of placeholders on which the initial values of
                variables depend.
            variables: with parameter servers, a session of the same job and servers with whose
                variables this one begins, also one that has lost a worker: nothing is lost with
                that. They are copied on the servers. Agents that only infer work on the very
                variables of that session, while it trains. What workers keep for themselves
                (moving averages) begins with the mean of the other session's workers.
            resume: a directory of checkpoints, for a program that may be started again (by
                ``caramel run``, say): the session goes on from the newest one that is whole, with
                all variables, and an iterator of the graph that is initialised goes on where it
                was. `Session.steps_done` tells where a loop is to go on. Where there is no
                checkpoint, or no such directory yet, training begins.
            save_on_sigterm: the path of a checkpoint, or a directory: if the process is told to end
                by SIGTERM (by a spot machine, say), the step that is under way is finished, that is
                saved, and the program exits with code 143. A handler that the program had installed
                before is called in place of the exit. It works in the main thread.
            recover: go on after the loss of a worker, as if nothing had happened: steps are done
                again from copies of the variables that others have in their memory. None ends the
                session with the loss. It is for workers that are processes.

        Raises:
            SessionError: the session whose variables are asked for is closed.
            FeedError: such a placeholder is not fed; names the variable.
            ClusterError: a device that `device_list` or the graph (by `tf.device`) asks for is not
                there; lists those that the workers have. For ops of the graph, a config with
                `allow_soft_placement` lets the CPU take its place.
            WorkerStartError: a worker cannot be reached; names its address.
            CheckpointError: no checkpoint to go on from is whole, or the newest does not fit.
            PlanError: an argument cannot be.
        """
        if config is not None and not isinstance(config, tf.compat.v1.ConfigProto):
            raise PlanError(f"config must be a tf.compat.v1.ConfigProto, or None, not {config!r}")
        if recover is not None:
            self._check_recoverable()
        if variables is not None:
            self._check_origin(variables)
            if recover is not None:
                raise PlanError(
                    "a session that can recover needs variables of its own: give variables or "
                    "recover, not both"
                )
            if resume is not None:
                raise PlanError(
                    "a session begins with the variables of another one, or with those of a "
                    "checkpoint: give variables or resume, not both"
                )

        if resume is not None:
            check_directory(resume)
        settings = ControlSettings(
            trials=TrialSettings() if trials == "auto" else trials,
            tries_all=trials != "auto",
            replanning=replanning or ReplanSettings(),
            stalls=stalls,
        )
        cluster = self.cluster if variables is None else self._those_of(variables)
        return Session(
            self._jobs_on(cluster),
            settings,
            cluster,
            start_timeout_s=start_timeout_s,
            step_timeout_s=step_timeout_s,
            lost_after_s=lost_after_s,
            config=config,
            stopwatch=self._stopwatch,
            building_s=self._building_s,
            initial_feeds=initial_feeds,
            variables=variables,
            shares=variables is not None and not self.plan.job.gradients,
            resume=resume,
            save_on_sigterm=save_on_sigterm,
            recover=recover,
            jobs_on=self._jobs_on,
        )

    def _jobs_on(self, cluster: Cluster) -> Mapping[StepName, Job]:
        """The steps for other workers of the same job; always the same for the same ones."""
        if cluster.tasks == self.cluster.tasks:
            return self._jobs
        if cluster.tasks not in self._others:
            # Variables are those that there are already: what is in parts stays so.
            chosen = self._chosen_on(cluster)
            self._others[cluster.tasks] = Model(self.context, cluster, chosen)
        return self._others[cluster.tasks]._jobs

    def _chosen_on(self, cluster: Cluster) -> ModelOptions:
        """What the user has chosen, for some of the tasks of the same job.

        Raises:
            PlanError: it cannot be done by them.
        """
        if any(job.pipelines.iterators for job in self._jobs.values()):
            # Each replica has a part of the data, and a place in it: all of them go on.
            return self._options.with_all_replicas(self.plan.job.devices, cluster)
        return self._options.on(cluster)

    def _those_of(self, other: Session) -> Cluster:
        """The cluster, but for tasks without which another session goes on after a loss."""
        missing = [task for task in other._missing if task in self.cluster.tasks]
        return self.cluster.without(missing) if missing else self.cluster

    def _check_recoverable(self) -> None:
        """Raise unless a session can go on after the loss of a worker.

        Raises:
            PlanError: it cannot.
        """
        why = None
        if self.cluster.kind == "embedded":
            why = "its workers are inside this process, and are lost only together with it"
        elif len({task_of(device) for device in (*self.plan.hosts, *self.plan.job.servers)}) == 1:
            why = "there is only one worker, so that nobody else has the variables"
        if why is not None:
            raise PlanError(f"recover cannot be used with this model: {why}")

    def _check_origin(self, variables: Session) -> None:
        """Raise unless a session is one whose variables another one can begin with."""
        if not (self.cluster.servers and variables.has_servers):
            raise PlanError(
                "a session can begin with the variables of another one only where both have "
                "parameter servers (caramel.PSModel); otherwise save a checkpoint and restore it"
            )
