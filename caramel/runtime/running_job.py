"""What a session works with while it is open: workers, variables, and what does the steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from caramel.capture.initial_values import check_initial_feeds
from caramel.cluster.cluster import Cluster
from caramel.core.plan import Plan
from caramel.core.train_steps import StepName
from caramel.core.util.stopwatch import Stopwatch
from caramel.runtime.control.controllers import Controllers
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.device_check import check_devices
from caramel.runtime.execution.containers import Containers
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.remains import told_of_loss
from caramel.runtime.steps.missing_feeds import MissingFeeds
from caramel.runtime.steps.user_feeds import whole_feeds_of
from caramel.runtime.variables import SharedState
from caramel.runtime.worker_copies import WorkerCopies


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job on its workers.

    Attributes:
        job: its first step, whose plan also does what is no training step.
        runner: runs parts of the distributed graph.
        state: variables and tables on the workers.
        controllers: do the steps.
        missing_feeds: looks for what is not fed.
        worker_copies: what all workers evaluate with.
    """

    job: Job
    runner: Runner
    state: SharedState
    controllers: Controllers
    missing_feeds: MissingFeeds = field(default_factory=MissingFeeds)
    worker_copies: WorkerCopies = field(default_factory=WorkerCopies)

    def settle(self) -> None:
        """Do what is pending of the last step; then all replicas are equal.

        Raises:
            WorkerLostError, tf.errors.OpError: what was pending has failed.
        """
        with self.state.torn_by_failures():
            self.controllers.active.flush()
        self.state.mend()


class Origin(Protocol):
    """Where a session has its variables from, if not from their initial values."""

    def check(self, plan: Plan) -> None:
        """Raise unless it has what a plan needs."""

    def containers(self) -> Containers | None:
        """Where the session has its state; None for new containers."""

    @property
    def container(self) -> str | None:
        """What outlives the session, for as long as its client goes on; None for nothing."""

    @property
    def looks(self) -> bool:
        """Whether it looks at what clients that are gone have left on the workers."""

    def given(self, plan: Plan) -> frozenset[str]:
        """The names of the variables that are not initialised."""

    def prepare(self, job: Job, runner: Runner, cluster: Cluster) -> None:
        """Add what it needs to the session's graph."""

    def hand_over(self, job: Job, runner: Runner, state: SharedState, cluster: Cluster) -> None:
        """Give variables their values; all others were initialised."""


def _containers_of(origin: Origin | None) -> Containers:
    """Where a session has its state."""
    if origin is None:
        return Containers()
    kept = () if origin.container is None else (origin.container,)
    return replace(origin.containers() or Containers(), kept=kept)


def start_job(
    jobs: Mapping[StepName, Job],
    cluster: Cluster,
    parts: ExitStack,
    *,
    settings: ControlSettings,
    start_timeout_s: float,
    step_timeout_s: float,
    lost_after_s: float,
    config: Any,
    stopwatch: Stopwatch,
    initial_feeds: Mapping[Any, Any] | None,
    origin: Origin | None = None,
    earlier: Controllers | None = None,
) -> RunningJob:
    """Reach the workers, place the graph, and give variables their initial values.

    Args:
        parts: gets what is to be closed in the end, in reverse order, also if this fails.
        origin: where variables are from that are not initialised.
        earlier: what did the steps of these very jobs before, and is gone on with.

    For the other arguments, and what is raised, see `caramel.runtime.session.Session`.
    """
    job = next(iter(jobs.values()))
    initial = whole_feeds_of(job, initial_feeds)
    check_initial_feeds(job.context.op_graph, job.context.job, initial)
    devices = job.plan.hosts
    if origin is not None:
        origin.check(job.plan)
    runner = Runner(
        job.graph,
        devices,
        cluster,
        start_timeout_s=start_timeout_s,
        call_timeout_s=step_timeout_s,
        lost_after_s=lost_after_s,
        config=config,
        containers=_containers_of(origin),
        looks=origin is not None and origin.looks,
    )
    parts.callback(runner.close)
    if origin is not None:
        origin.prepare(job, runner, cluster)
    available = runner.available_devices(start_timeout_s)
    is_soft = config is not None and config.allow_soft_placement
    check_devices(job.context, devices, available, is_soft=is_soft)
    controllers = Controllers(jobs, settings, runner, cluster, earlier)
    parts.callback(controllers.close)  # before the runner: it has threads that read marks
    stopwatch.note("connect")
    state = SharedState(job, runner)
    runner.extend()
    stopwatch.note("place")
    given = frozenset() if origin is None else origin.given(job.plan)
    state.initialise(initial, besides=controllers.preparation, given=given)
    if origin is not None:
        origin.hand_over(job, runner, state, cluster)
    runner.tell_losses(partial(told_of_loss, job, cluster))
    stopwatch.note("initialise")
    return RunningJob(job, runner, state, controllers)
