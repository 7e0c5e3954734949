"""Which plan does the next training step? One of a session's plans, or each in its turn.

Every step is an ordinary exact one. Before another plan takes over, what is pending of the last
step is done. Where the job is to plan while it runs, some steps are traced, the planner is asked
for plans, and these are tried.

A controller is in one of five phases. These methods lead from one to another:

======== =============== ======== ==============================================================
from     by              to       when
======== =============== ======== ==============================================================
Settled  `_trace`        Tracing  the drift monitor wants a plan
Tracing  `_weigh`        Measured enough steps were traced, and to plan from them may pay later
Tracing  `_weigh`        Settled  likewise, but nothing can be learnt from them, or nothing gained
Measured `_plan`         Settled  it may pay now, but nothing better is found
Measured `_plan`         Trying   it does, and there are plans to try
Measured `_plan`         Waiting  likewise, but to try them does not pay yet
Waiting  `_take_turn`    Trying   it does
Trying   `_make_tried`   Trying   it is the turn of a plan without a graph: all graphs are made
Trying   `_go_on`        Settled  only one of their graphs could be made
Trying   `_settle`       Settled  trials are over
any      `try_plans`     Trying   the user, the planner or `leave_factors` asks for it
any      `use`           Settled  the user has chosen a plan; nothing is planned from now on
======== =============== ======== ==============================================================
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from caramel.core.errors import CaramelError, PlanError
from caramel.core.orders import Orders
from caramel.core.timeline import Timeline
from caramel.core.util.progress import tell, working
from caramel.runtime.control.drift import DriftMonitor
from caramel.runtime.control.executors import Executors
from caramel.runtime.control.metrics import Metrics, Spent
from caramel.runtime.control.payback import payback_of
from caramel.runtime.control.phases import Measured, Phase, Settled, Tracing, Trying, Waiting
from caramel.runtime.control.probation import GivenUpError, Probation
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.control.step_times import StepTimes
from caramel.runtime.control.trials import Trials, TrialSettings
from caramel.runtime.execution.calls import CallOptions
from caramel.runtime.execution.distributed_graph import MEMORY_SHARE
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job, LivePlanning
from caramel.runtime.stalls.watchdog import Watchdog
from caramel.runtime.steps.factor_comparison import Unlike
from caramel.runtime.steps.feeds import SplitFeeds
from caramel.runtime.steps.plan_executor import PlanExecutor
from caramel.runtime.steps.step_result import Fetch, StepResult
from caramel.runtime.traces.step_timeline import traced_timeline

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
        earlier: what did the steps of this job before a worker was lost, and is gone on with.
    """

    def __init__(
        self,
        job: Job,
        runner: Runner,
        plan: str,
        settings: ControlSettings,
        planning: LivePlanning | None = None,
        watchdog: Watchdog | None = None,
        earlier: Controller | None = None,
    ) -> None:
        self._job, self._runner, self._plans = job, runner, job.plans
        self._settings, self._watchdog = settings, watchdog
        self._drift: DriftMonitor | None = None  # where nothing is planned while the job runs
        if planning is not None:
            self._drift = DriftMonitor(
                settings.replanning,
                begins=planning.begins,
                again=planning.again,
                expected_s=planning.expected_s,
            )
        self._phase: Phase = Settled()
        self._may_factor = True
        self._times = StepTimes()
        self._orders: Orders | None = None
        self._probation = Probation(job, runner)
        self._executors = Executors(job, runner, self._probation, plan)
        self._executor = self._last = self._executors.of(plan)
        if earlier is not None:
            self._go_on_from(earlier)

    @property
    def job(self) -> Job:
        """The distributed graph with the plans of the step."""
        return self._job

    def _go_on_from(self, earlier: Controller) -> None:
        """Know what another one knew: its trials go on, and what it has measured counts."""
        phase = earlier._phase
        if isinstance(phase, Trying):
            self._phase = Trying(phase.trials)
        elif isinstance(phase, Measured | Waiting):
            self._phase = phase
        else:  # steps that were traced are traced again
            self._phase = Settled(phase.trials)
        self._drift, self._may_factor = earlier._drift, earlier._may_factor
        self._times, self._orders = earlier._times, earlier._orders

    @property
    def plan(self) -> str:
        """The name of the plan that does the next step, unless plans are tried."""
        return self._executor.name

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
        if isinstance(self._phase, Tracing):
            return self._traced_step(self._phase, fetches, feeds)
        begin_s = time.perf_counter()
        result, is_as_planned = self._step(fetches, feeds)
        if is_as_planned:
            self._record(time.perf_counter() - begin_s, is_usual=result.is_usual)
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
        return self._step(fetches, feeds, traces)[0]

    def _step(
        self, fetches: Sequence[Fetch], feeds: SplitFeeds, traces: list[Any] | None = None
    ) -> tuple[StepResult, bool]:
        """A step, and whether no plan was given up in it: else its time says nothing."""
        if traces is not None:
            self._runner.check_labels()
        executor, is_as_planned = self._executor, True
        if not executor.serves(fetches):
            is_as_planned = self._flush(traces)
            executor = self._executors.of(self._plans.undeferred(factored=self._may_factor))
        self._last = executor
        number, usual_s = self._times.steps + 1, self._times.usual_s
        try:
            with self._watched(executor, number, traces) as options:
                result = self._probation.step(executor, fetches, feeds, usual_s, options)
        except GivenUpError as given_up:
            result, is_as_planned = self._by_plain(given_up, number, traces), False
        self._times.steps += 1
        return result, is_as_planned

    def _by_plain(self, given_up: GivenUpError, last: int, traces: list[Any] | None) -> StepResult:
        """Do steps of a plan that was given up by the plain one, which goes on in its place.

        Args:
            last: the number of the last of them.
            traces: gets the `RunMetadata` of their calls; None for no trace.
        """
        executor = self._executors.of(self._plans.give_up(given_up.plan))
        if self._phase.trials is not None:
            self._phase.trials.leave_out(given_up.plan)
        if self._executor.name == given_up.plan:
            self._executor = executor
        self._last = executor
        first = last + 1 - len(given_up.steps)
        for number, (fetches, feeds) in enumerate(given_up.steps, first):
            with self._watched(executor, number, traces) as options:
                result = executor.step(fetches, feeds, options)
        return result

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

    def _record(self, step_s: float, *, is_usual: bool) -> None:
        """A step that was not traced took so long, in seconds."""
        self._times.record(step_s, is_usual=is_usual)
        if self._watchdog is not None and is_usual:
            self._watchdog.record(self._last.name, step_s)
        if isinstance(self._phase, Trying):
            self._phase.trials.record(step_s, counts=is_usual)
        elif self._drift is not None:
            self._drift.record(step_s, counts=is_usual)
            self._tell_drift(self._drift)

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
        if (trials := self._phase.trials) is not None:
            settings = trials.settings
            names += [plan.name for plan in trials.state().plans]
        if self._drift is not None:
            settings = settings or self._settings.trials
            self._drift.expect(None)
        if settings is None:
            self._keep(names[0])
            return
        self.try_plans(list(dict.fromkeys(names)), settings)
        self._switch(names[0])

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
        self._phase, self._drift = Settled(), None
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
        self._phase = Trying(Trials(tried, settings))

    def flush(self) -> None:
        """Do what is pending of the last step.

        Raises:
            WorkerLostError, tf.errors.OpError: it has failed.
        """
        self._flush()

    def _flush(self, traces: list[Any] | None = None) -> bool:
        """Do what is pending of the last step; whether no plan was given up in that.

        Args:
            traces: gets the `RunMetadata` of the calls; None for no trace.
        """
        try:
            with self._watched(self._executor, self._times.steps, traces) as options:
                self._probation.flush(self._executor, self._times.usual_s, options)
        except GivenUpError as given_up:
            self._by_plain(given_up, self._times.steps, traces)
            return False
        return True

    def tell_traced(self, timelines: Sequence[Timeline]) -> None:
        """Some steps were traced, for what metrics tell of the last plan that did any of them."""
        own = [each for each in timelines if each.plan == timelines[-1].plan]
        self._orders = self._plans.orders(own) or self._orders

    def metrics(self) -> Metrics:
        """How training goes; another thread may do a step meanwhile."""
        trials, drift = self._phase.trials, self._drift
        return Metrics(
            self._times.steps,
            self._last.name,
            tuple(self._times.recent_s),
            trials.state() if trials else None,
            drift.expected_s if drift else None,
            drift.drift if drift else None,
            self._watchdog.stalls if self._watchdog else (),
            tuple(sorted(self._job.context.job.whole_feeds)),
            self._orders,
            spent=Spent(first_step_s=self._times.first_s, planning_s=self._times.paused_s),
        )

    def close(self) -> None:
        """End all threads: first those that look into steps, then those of the executors."""
        with ExitStack() as ending:
            ending.callback(self._executors.close)
            if self._watchdog is not None:
                ending.callback(self._watchdog.close)

    # From one phase to another

    def _take_turn(self) -> None:
        """Let the plan whose turn it is, or the one that was chosen, do the next step."""
        phase = self._phase
        if isinstance(phase, Measured) and self._times.steps >= phase.begins:
            self._plan(phase)
            phase = self._phase
        if isinstance(phase, Waiting) and self._times.steps >= phase.begins:
            self._begin_trials(phase.names, phase.expected_s)
            phase = self._phase
        if isinstance(phase, Trying):
            if phase.trials.is_over:
                self._settle(phase.trials)
            elif not phase.are_made and phase.trials.turn not in self._executors:
                self._make_tried(phase.trials)
        if isinstance(self._phase, Trying):
            self._switch(self._phase.trials.turn)
        elif (
            isinstance(self._phase, Settled | Measured)
            and self._drift is not None
            and self._drift.wants_plan
        ):
            self._trace(self._phase)

    @working("making the plans that are tried")
    def _make_tried(self, trials: Trials) -> None:
        """Let all plans that are tried be made, so that TensorFlow has to place them only once.

        What goes wrong in that costs no training: the others are tried without those, and without
        those for which there is not enough memory.
        """
        _log.info("making the plans that are tried; a large job takes a while")
        tried = [plan.name for plan in trials.state().plans]
        with self._times.paused():
            made = self._made(tried)
        if len(made) == 1:
            self._go_on(made[0])
        else:
            trials = Trials(made, trials.settings) if len(made) < len(tried) else trials
            self._phase = Trying(trials, are_made=True)
            tell(f"trying {len(made)} plans in the next steps: {', '.join(made)}")

    def _made(self, names: Sequence[str]) -> list[str]:
        """Those of some plans whose graphs are there or could be made."""
        made, left_out = [], []
        for name in names:
            if not self._plans.has_room_for(name):
                left_out.append(f"'{name}'")
                continue
            try:
                made.append(self._plans.ensure(name).name)
            except CaramelError:
                _log.warning("plan '%s' cannot be made, and is not tried", name, exc_info=True)
        if left_out:
            _log.warning(
                "not tried: %s; with more plans, graphs would take more than %.0f %% of this "
                "machine's memory",
                ", ".join(left_out),
                100 * MEMORY_SHARE,
            )
        return made

    def _go_on(self, name: str) -> None:
        """Go on with the only plan that there is, by its name, and without trials."""
        self._phase = Settled()
        if self._drift is not None:
            self._plans.go_on(name)
            self._drift.expect(self._times.recent_median_s)

    def _settle(self, trials: Trials) -> None:
        """Let the plan that trials have chosen do all steps."""
        state = trials.state()
        self._keep(state.turn)
        self._phase = Settled(trials)
        if len(state.plans) == 1:  # nothing was compared
            return
        _log.info("plan '%s' is kept: %s", state.turn, state.medians_told)
        tell(f"kept the plan '{state.turn}'{state.gain_told}")
        if self._settings.trials is not None:  # else the user has asked for these alone
            self._plans.keep(state.turn)
        if self._drift is not None:
            self._drift.expect(next(p.median_s for p in state.plans if p.name == state.turn))

    def _trace(self, before: Settled | Measured) -> None:
        """Let the next steps be traced."""
        self._phase = Tracing(before.trials)
        tell(f"measuring the job in the next {self._settings.replanning.traced} steps")

    def _traced_step(
        self, tracing: Tracing, fetches: Sequence[Fetch], feeds: SplitFeeds
    ) -> StepResult:
        """A step that is traced; after the last of them, plans are made and tried."""
        traces: list[Any] = []
        result = self.step_as_before(fetches, feeds, traces)
        tracing.add(traces, feeds)
        if len(tracing.traces) >= self._settings.replanning.traced:
            self._weigh(tracing)
        return result

    @contextmanager
    def _costing_no_training(self) -> Iterator[None]:
        """What goes wrong in this context leaves the job without a new plan."""
        try:
            yield
        except CaramelError as error:
            _log.info("the job goes on without a new plan: %s", error)
        except Exception:  # steps themselves were done
            _log.warning("planning has failed; the job goes on without a new plan", exc_info=True)

    def _weigh(self, tracing: Tracing) -> None:
        """Plan from what was traced, now or when that may pay."""
        assert self._drift is not None
        self._phase = Settled(tracing.trials)
        self._drift.expect(self._drift.usual_s)  # tells better than a prediction of the same steps
        with self._costing_no_training(), self._times.paused():
            offsets_s = self._runner.clock_offsets_s()
            self._tell_orders(tracing, offsets_s)
            measured = Measured(tracing.trials, tracing, offsets_s)
            factor, usual_s = self._settings.replanning.payback, self._times.recent_median_s
            prospect = self._plans.prospect(tracing.traces, offsets_s) if factor else None
            if prospect is not None:
                measured = replace(measured, begins=factor * prospect.steps)
                if not math.isfinite(measured.begins):
                    tell("nothing to plan: no plan can make these steps shorter")
                    return
                if self._times.steps < measured.begins:
                    tell(
                        f"a plan may save at most {1e3 * prospect.saved_s:.2g} ms of a step of "
                        f"{1e3 * (usual_s or 0):.2g} ms, and to look for one pauses training for "
                        f"about {prospect.pause_s:.2g} s, so it is done after "
                        f"{measured.begins:,.0f} steps"
                    )
            self._phase = measured
        if isinstance(self._phase, Measured) and self._times.steps >= self._phase.begins:
            self._plan(self._phase)

    @working("planning from the steps that were measured")
    def _plan(self, measured: Measured) -> None:
        """Make plans from what was traced, and try them."""
        tracing = measured.tracing
        self._phase = Settled(measured.trials)
        _log.info("planning from %d traced steps", len(tracing.traces))
        names, expected_s = list[str](), None
        with self._costing_no_training(), self._times.paused():
            names, expected_s = self._plans.replan(
                self._executor.name, tracing.traces, measured.clock_offsets_s, tracing.examples
            )
        if self._watchdog is not None:
            self._watchdog.forget_forecasts()
        if not names:
            return
        running, factor = self._executor.name, self._settings.replanning.payback
        payback = payback_of(names, running, self._plans, self._times, self._runner.placing_s)
        begins = factor * payback.steps if payback is not None and factor else 0.0
        tried = (running, *names)
        if self._times.steps >= begins:
            self._begin_trials(tried, expected_s)
            return
        assert payback is not None, "else it is now"
        tell(
            f"plans were found that may save {1e3 * payback.saved_s:.2g} ms a step; to try them "
            f"pauses training for about {payback.pause_s:.2g} s, so it is done after {begins:,.0f} "
            "steps"
        )
        self._phase = Waiting(tracing.trials, tried, begins, expected_s)

    def _begin_trials(self, names: Sequence[str], expected_s: float | None) -> None:
        """Try plans that were found."""
        assert self._settings.trials is not None
        assert self._drift is not None
        self._drift.expected_s = expected_s
        self.try_plans(names, self._settings.trials)

    def _tell_orders(self, tracing: Tracing, clock_offsets_s: Sequence[float]) -> None:
        plan = self._job.plan
        if plan.job.servers:
            found = (traced_timeline(plan, stats, clock_offsets_s) for stats in tracing.traces)
            self.tell_traced([replace(each, plan=self._executor.name) for each in found])

    def _tell_drift(self, monitor: DriftMonitor) -> None:
        drift = monitor.take_news()
        if drift is not None and monitor.expected_s is not None:
            what = "replan='auto' would plan again"
            if monitor.wants_plan:
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
        executor = self._executors.of(name)
        if executor is not self._executor:
            self.flush()
            self._executor = self._last = executor

    def _keep(self, name: str) -> None:
        """Let a plan do all steps; the others let go of what they keep."""
        self._switch(name)
        self._executors.free_all_but(self._executor)

    def _may_send(self, name: str) -> bool:
        """Whether a plan sends nothing that this session has left."""
        return self._may_factor or not self._plans.plan(name).factored

    def _check(self, name: str) -> None:
        if name not in self._plans.names:
            known = ", ".join(f"'{each}'" for each in self._plans.names)
            raise PlanError(f"the session has no plan called '{name}'; there are {known}")
