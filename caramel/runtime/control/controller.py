"""Which plan does the next training step? One of a session's plans, or each in its turn.

Every step is an ordinary exact one. Before another plan takes over, what is pending of the last
step is done. Where the job is to plan while it runs, some steps are traced, the planner is asked
for plans, and these are tried.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from caramel.core.errors import CaramelError, PlanError
from caramel.runtime.control.drift import DriftMonitor
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.control.probation import GivenUpError, Probation
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.control.trials import Trials, TrialSettings, TrialState
from caramel.runtime.execution.calls import CallOptions
from caramel.runtime.execution.distributed_graph import MEMORY_SHARE
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job, LivePlanning
from caramel.runtime.stalls.watchdog import Watchdog
from caramel.runtime.steps.factor_comparison import Unlike
from caramel.runtime.steps.feeds import SplitFeeds
from caramel.runtime.steps.plan_executor import PlanExecutor
from caramel.runtime.steps.step_result import Fetch, StepResult

_RECENT_STEPS = 50

_log = logging.getLogger(__name__)


class Controller:
    """Runs training steps.

    Args:
        job: the distributed graph with its plans; more may be added to it.
        runner: runs parts of the graph.
        plan: the name of the plan that does the first step.
        settings: how plans are tried, and when the job plans.
        planning: what there is to plan while it runs; None for nothing.
        watchdog: looks into steps that take too long; None for nobody.
    """

    def __init__(
        self,
        job: Job,
        runner: Runner,
        plan: str,
        settings: ControlSettings,
        planning: LivePlanning | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._job, self._runner, self._plans = job, runner, job.plans
        self._settings, self._planning, self._watchdog = settings, planning, watchdog
        self._drift: DriftMonitor | None = None
        if planning is not None:
            self._drift = DriftMonitor(
                settings.replanning, begins=planning.begins, again=planning.again
            )
            self._drift.expected_s = planning.expected_s
        self._may_factor = True
        self._traces: list[list[Any]] = []
        self._trials: Trials | None = None
        self._is_trying = False
        self._are_made = False  # the plans that are tried
        self._steps = 0
        self._recent_s: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._usual_s: deque[float] = deque(maxlen=_RECENT_STEPS)  # likewise, of usual ones only
        self._executor = self._last = PlanExecutor(self._plans.ensure(plan), job, runner)
        self._executors = {plan: self._executor}
        self._beginning: dict[str, PlanExecutor] = {}  # those that were interrupted may begin again
        self._probation = Probation(job, runner)
        self._probation.prepare(plan)
        self._given_up = 0  # how many plans

    @property
    def job(self) -> Job:
        """The distributed graph with the plans of the step."""
        return self._job

    @property
    def preparation(self) -> list[str]:
        """Ops to run before the first step, unless `begin` is called."""
        return self._executor.preparation

    def begin(self) -> None:
        """Prepare the first step of a plan whose graph was added to a session's."""
        self._executor.begin()

    @property
    def executor(self) -> PlanExecutor:
        """What did the last step, or will do the first."""
        return self._last

    def step(self, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        """One training step, by the plan whose turn it is.

        Raises:
            WorkerLostError: a worker was lost.
            tf.errors.OpError: an op has failed; that step does not count.
        """
        self._take_turn()
        if self._drift is not None and not self._is_trying and self._drift.wants_trace:
            return self._traced(fetches, feeds)
        begin_s, given_up = time.perf_counter(), self._given_up
        result = self.step_as_before(fetches, feeds)
        if self._given_up > given_up:  # its time says nothing
            return result
        step_s = time.perf_counter() - begin_s
        self._recent_s.append(step_s)
        if result.is_usual:
            self._usual_s.append(step_s)
        if self._watchdog is not None and result.is_usual:
            self._watchdog.record(self._last.name, step_s)
        if self._is_trying and self._trials is not None:
            self._trials.record(step_s, counts=result.is_usual)
        elif self._drift is not None:
            self._drift.record(step_s, counts=result.is_usual)
            self._tell_drift(self._drift)
        return result

    def step_as_before(
        self, fetches: Sequence[Fetch], feeds: SplitFeeds, traces: list[Any] | None = None
    ) -> StepResult:
        """One training step by the plan of the last one, whose time counts nowhere.

        If that plan defers what is fetched, the step is done by one that defers nothing.

        Args:
            traces: gets the `RunMetadata` of the step's calls; None for no trace.

        Raises:
            InstallationError: TensorFlow does not name what it traces as Caramel reads it; the step
                was not begun.
            WorkerLostError, tf.errors.OpError: as `step`.
        """
        if traces is not None:
            self._runner.check_labels()
        executor = self._executor
        if not executor.serves(fetches):
            self.flush(traces)
            executor = self._executor_of(self._plans.undeferred(factored=self._may_factor))
        self._last = executor
        try:
            with self._watched(executor, self._steps + 1, traces) as options:
                result = self._probation.step(executor, fetches, feeds, self._usual_s, options)
        except GivenUpError as given_up:
            result = self._by_plain(given_up, self._steps + 1, traces)
        self._steps += 1
        return result

    def _by_plain(self, given_up: GivenUpError, last: int, traces: list[Any] | None) -> StepResult:
        """Do steps of a plan that was given up by the plain one, which goes on in its place.

        Args:
            last: the number of the last of them.
            traces: gets the `RunMetadata` of their calls; None for no trace.
        """
        self._given_up += 1
        executor = self._executor_of(self._plans.give_up(given_up.plan))
        if self._trials is not None:
            self._trials.leave_out(given_up.plan)
        if self._executor.name == given_up.plan:
            self._executor = executor
        self._last = executor
        first = last + 1 - len(given_up.steps)
        for number, (fetches, feeds) in enumerate(given_up.steps, first):
            with self._watched(executor, number, traces) as options:
                result = executor.step(fetches, feeds, options)
        return result

    def leave_factors(self, unlike: Unlike) -> None:
        """Go on without factors, from which workers do not compute the same bits.

        Where plans are tried, those that send none take turns from now on. Else the one that is
        like what sent them does the following steps.
        """
        _log.warning(
            "worker %d computes other bits than worker 0 from the same factors (gradient of '%s'): "
            "its processor, its number of threads or its settings differ. Gradients themselves are "
            "sent from now on, and all workers get the variables of worker 0",
            unlike.worker,
            unlike.parameter,
        )
        self._may_factor = False
        names, settings = self._plans.leave_factors(self._executor.name), None
        if self._trials is not None:
            settings = self._trials.settings
            names += [plan.name for plan in self._trials.state().plans]
        if self._planning is not None and self._drift is not None:
            settings = settings or self._settings.trials
            self._drift.expect(None)
            self._traces = []
        if settings is None:
            self._keep(names[0])
            return
        self.try_plans(list(dict.fromkeys(names)), settings)
        self._switch(names[0])

    @contextmanager
    def _watched(
        self, executor: PlanExecutor, number: int, traces: list[Any] | None
    ) -> Iterator[CallOptions]:
        """How to make the calls of a step, by its number, which is watched in this context."""
        if self._watchdog is None:
            yield CallOptions(traces)
            return
        expected_s = self._drift.expected_s if self._drift else None
        is_traced = traces is not None
        with self._watchdog.over(executor, number, expected_s, is_traced=is_traced) as look:
            yield CallOptions(traces, look)

    def use(self, name: str) -> None:
        """Let a plan do all following steps; trials and planning end.

        Raises:
            PlanError: there is no such plan, or it sends factors, which this session has left.
            WorkerLostError, tf.errors.OpError: what was pending has failed.
        """
        self._check(name)
        if not self._may_send(name):
            raise PlanError(
                f"plan '{name}' sends factors, from which the workers of this session do not "
                "compute the same bits"
            )
        self._trials, self._is_trying = None, False
        self._planning = self._drift = None
        self._keep(name)

    def try_plans(self, names: Sequence[str], settings: TrialSettings) -> None:
        """Let plans take turns from the next step on, until one of them is chosen.

        Those that send factors are left out once the session has left these.

        Raises:
            PlanError: there is no such plan, or none is left.
        """
        for name in names:
            self._check(name)
        tried = list(filter(self._may_send, names))
        if names and not tried:
            raise PlanError("all these plans send factors, which this session has left")
        self._trials, self._is_trying, self._are_made = Trials(tried, settings), True, False

    def flush(self, traces: list[Any] | None = None) -> None:
        """Do what is pending of the last step.

        Args:
            traces: gets the `RunMetadata` of the calls; None for no trace.
        """
        try:
            with self._watched(self._executor, self._steps, traces) as options:
                self._probation.flush(self._executor, self._usual_s, options)
        except GivenUpError as given_up:
            self._by_plain(given_up, self._steps, traces)

    def metrics(self) -> Metrics:
        """How training goes; another thread may do a step meanwhile."""
        trials, monitor = self._trials, self._drift
        expected_s = monitor.expected_s if monitor else None
        drift = monitor.drift if monitor else None
        return Metrics(
            self._steps,
            self._last.name,
            tuple(self._recent_s),
            trials.state() if trials else None,
            expected_s,
            drift,
            self._watchdog.stalls if self._watchdog else (),
            tuple(sorted(self._job.context.job.whole_feeds)),
        )

    def close(self) -> None:
        """End all threads: first those that look into steps, then those of the executors."""
        with ExitStack() as ending:
            for executor in (*self._executors.values(), *self._beginning.values()):
                ending.callback(executor.close)
            if self._watchdog is not None:
                ending.callback(self._watchdog.close)

    def _take_turn(self) -> None:
        """Let the plan whose turn it is, or the one that was chosen, do the next step."""
        if self._trials is None or not self._is_trying:
            return
        if not self._trials.is_over:
            if self._are_made or self._trials.turn in self._executors or self._make_tried():
                self._switch(self._trials.turn)
            return
        state = self._trials.state()
        self._keep(state.turn)
        self._is_trying = False
        if len(state.plans) == 1:  # nothing was compared
            return
        _log.info("plan '%s' is kept: %s", state.turn, _told(state))
        if self._planning is not None and self._drift is not None:
            self._plans.keep(state.turn)
            self._drift.expect(next(p.median_s for p in state.plans if p.name == state.turn))

    def _make_tried(self) -> bool:
        """Let all plans that are tried be made, so that TensorFlow has to place them only once.

        What goes wrong in that costs no training: the others are tried without those, and without
        those for which there is not enough memory. Says whether there is more than one to try; if
        not, the trials end here.
        """
        assert self._trials is not None
        _log.info("making the plans that are tried; a large job takes a while")
        made, left_out = [], []
        for plan in self._trials.state().plans:
            if not self._plans.has_room_for(plan.name):
                left_out.append(f"'{plan.name}'")
                continue
            try:
                made.append(self._plans.ensure(plan.name).name)
            except CaramelError:
                _log.warning("plan '%s' cannot be made, and is not tried", plan.name, exc_info=True)
        if left_out:
            _log.warning(
                "not tried: %s; with more plans, graphs would take more than %.0f %% of this "
                "machine's memory",
                ", ".join(left_out),
                100 * MEMORY_SHARE,
            )
        if len(made) == 1:
            self._trials, self._is_trying = None, False
            if self._planning is not None and self._drift is not None:
                self._plans.go_on(made[0])
                self._drift.expect(median(self._recent_s) if self._recent_s else None)
        elif len(made) < len(self._trials.state().plans):
            self._trials = Trials(made, self._trials.settings)
        self._are_made = True
        return self._is_trying

    # Planning while the job runs

    def _traced(self, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        """A step that is traced; after the last of them, plans are made and tried."""
        assert self._drift is not None
        traces: list[Any] = []
        result = self.step_as_before(fetches, feeds, traces)
        self._traces.append([metadata.step_stats for metadata in traces])
        self._drift.record_trace()
        if self._drift.wants_plan:
            self._plan()
        return result

    def _plan(self) -> None:
        """Make plans from what was traced, and try them. What goes wrong costs no training."""
        assert self._settings.trials is not None
        assert self._drift is not None
        traces, self._traces = self._traces, []
        self._drift.expect(self._drift.usual_s)  # tells better than a prediction of the same steps
        _log.info("planning from %d traced steps", len(traces))
        try:
            offsets_s = self._runner.clock_offsets_s()
            names, expected_s = self._plans.replan(self._executor.name, traces, offsets_s)
        except CaramelError as error:
            _log.info("the job goes on without a new plan: %s", error)
            return
        except Exception:  # the step itself was done
            _log.warning("planning has failed; the job goes on without a new plan", exc_info=True)
            return
        if self._watchdog is not None:
            self._watchdog.forget_forecasts()
        if names:
            self._drift.expected_s = expected_s
            self.try_plans([self._executor.name, *names], self._settings.trials)

    def _tell_drift(self, monitor: DriftMonitor) -> None:
        drift = monitor.take_news()
        if drift is not None and monitor.expected_s is not None:
            what = "replan='auto' would plan again"
            if monitor.wants_trace:
                what = "planning again from fresh measurements"
            elif monitor.plans_again:
                what = "they are too short for planning again to pay"
            _log.warning(
                "steps take %.2f times as long as expected (%.4f s); %s",
                drift,
                monitor.expected_s,
                what,
            )

    def _switch(self, name: str) -> None:
        """Let a plan do the next step."""
        executor = self._executor_of(name)
        if executor is not self._executor:
            self.flush()
            self._executor = self._last = executor

    def _keep(self, name: str) -> None:
        """Let a plan do all steps; the others let go of what they keep."""
        self._switch(name)
        for executor in self._executors.values():
            if executor is not self._executor:
                executor.free()

    def _executor_of(self, name: str) -> PlanExecutor:
        """A plan's executor, made when it is first asked for."""
        if name not in self._executors:
            if name not in self._beginning:
                variant = self._plans.ensure(name)
                self._probation.prepare(name)
                self._beginning[name] = PlanExecutor(variant, self._job, self._runner)
            self._beginning[name].begin()
            self._executors[name] = self._beginning.pop(name)
        return self._executors[name]

    def _may_send(self, name: str) -> bool:
        """Whether a plan sends nothing that this session has left."""
        return self._may_factor or not self._plans.plan(name).factored

    def _check(self, name: str) -> None:
        if name not in self._plans.names:
            known = ", ".join(f"'{each}'" for each in self._plans.names)
            raise PlanError(f"the session has no plan called '{name}'; there are {known}")


def _told(state: TrialState) -> str:
    """The medians in one line."""
    return ", ".join(
        f"'{plan.name}' " + ("untimed" if plan.median_s is None else f"{plan.median_s:.4f} s")
        for plan in state.plans
    )
