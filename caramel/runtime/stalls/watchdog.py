"""Looks into steps that take too long while they run, and says what they wait for.

While the caller of a step waits, a thread asks each worker for its marks, by a call of its own that
nobody waits long for: a worker that hangs can hold up neither the step nor the others' answers.
What the marks mean is decided in `diagnosis`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.devices import task_of
from caramel.core.errors import StepTimeoutError
from caramel.core.names import server_place
from caramel.core.plan import Plan
from caramel.runtime.execution.calls import CallThread, Look
from caramel.runtime.execution.liveness import unanswering
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.stalls.diagnosis import (
    Course,
    Forecast,
    Leg,
    Marks,
    Stall,
    StallSettings,
    course_of,
    find_stall,
    legs_of,
    over,
)
from caramel.runtime.steps.marks import Done
from caramel.runtime.steps.plan_executor import PlanExecutor

_USUAL_STEPS, _LEAST_STEPS = 20, 3  # at most, and at least, for what a step usually takes
_ASK_AGAIN = 0.2  # of a step; workers are not asked more often
_CLOSE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """A step under way."""

    number: int
    executor: PlanExecutor
    expected_s: float | None
    compiled: int
    is_traced: bool
    is_usual: bool | None = None  # not known until it is looked at
    is_looked_into: bool = False
    took_s: float | None = None  # once it is over
    has_failed: bool = False
    ask_again_s: float = 0.0
    told: tuple[Stall, ...] = ()
    is_told: bool = False  # that the whole step is late


class Watchdog:
    """Watches the steps of a session.

    Args:
        runner: runs the steps.
        cluster: the workers.
        job: what the steps are of.
        settings: when something counts as stalled.
    """

    def __init__(self, runner: Runner, cluster: Cluster, job: Job, settings: StallSettings) -> None:
        self._runner, self._cluster, self._job, self._settings = runner, cluster, job, settings
        self._legs: dict[str, tuple[Leg, ...]] = {}  # by the plan's name
        self._forecasts: dict[str, Forecast] = {}  # likewise
        self._usual_s: dict[str, deque[float]] = {}
        self._thread: CallThread | None = None
        self._askers: dict[int, CallThread] = {}
        self._asked: dict[int, Future[Marks]] = {}
        self._is_closed = threading.Event()
        self._last: _Step | None = None
        self.stalls: tuple[Stall, ...] = ()

    @contextmanager
    def over(
        self, executor: PlanExecutor, number: int, expected_s: float | None, *, is_traced: bool
    ) -> Iterator[Look]:
        """Watch a step, whose calls are to be made with what this yields.

        Args:
            executor: does it.
            number: of the step in the session.
            expected_s: how long it should take; None if not known.
            is_traced: whether its calls are traced, which makes them slower.
        """
        step = _Step(number, executor, expected_s, self._runner.compiled, is_traced)
        begin_s = time.monotonic()
        try:
            after_s = self._settings.worth_a_look_s(self._usual_of(step))
            yield Look(partial(self._look, step), after_s)
        except StepTimeoutError as error:
            step.has_failed = True
            if step.told:
                raise StepTimeoutError(f"{error}; {step.told[-1].text}") from error
            raise
        except BaseException:
            step.has_failed = True
            raise
        finally:
            step.took_s = time.monotonic() - begin_s
        if step.told:
            _log.info("step %d was done after %.1f s", number, step.took_s)

    def record(self, plan: str, step_s: float) -> None:
        """A usual step of a plan has taken so long."""
        self._usual_s.setdefault(plan, deque(maxlen=_USUAL_STEPS)).append(step_s)

    def forget_forecasts(self) -> None:
        """More is known of the job than before: what was predicted of its plans is out of date."""
        self._forecasts = {}

    def close(self) -> None:
        """End the threads. Those whose workers do not answer end when the session is closed, which
        cancels their calls; nothing is told of that.
        """
        self._is_closed.set()
        if self._thread is not None:
            self._thread.end(_CLOSE_TIMEOUT_S)
        for worker, thread in self._askers.items():
            thread.end(_CLOSE_TIMEOUT_S if self._asked[worker].done() else 0.0)

    # While a step runs

    def _look(self, step: _Step, elapsed_s: float, unreachable: tuple[Task, ...]) -> None:
        """Let the thread look into a step that takes long; returns at once."""
        if step.is_usual is None:
            is_first = self._runner.compiled != step.compiled
            step.is_usual = not is_first and not step.is_traced
        if step.is_looked_into or not (step.is_usual or elapsed_s > self._settings.unknown_s):
            return
        step.is_looked_into = True
        if self._thread is None:
            self._thread = CallThread("caramel-stalls")
        done = step.executor.marks.done
        self._thread.submit(lambda: self._look_into(step, done, elapsed_s, unreachable))

    def _look_into(
        self, step: _Step, done: Done, elapsed_s: float, unreachable: tuple[Task, ...]
    ) -> None:
        try:
            stall = self._stall_of(step, done, elapsed_s, unreachable)
            if stall is not None:
                self._tell(step, stall)
        except Exception:  # whatever it is, it must not disturb training
            _log.warning("step %d could not be looked into", step.number, exc_info=True)
        finally:
            step.is_looked_into = False

    def _stall_of(
        self, step: _Step, done: Done, elapsed_s: float, unreachable: tuple[Task, ...]
    ) -> Stall | None:
        course = self._course(step, done)
        if self._is_closed.is_set() or not self._is_worth_asking(step, course, elapsed_s):
            return None
        begin_s = time.monotonic()
        marks = self._ask(step.executor, done, unreachable)
        if self._is_closed.is_set():
            return None
        elapsed_s += time.monotonic() - begin_s
        step.ask_again_s = elapsed_s + _ASK_AGAIN * (course.step_s or 0.0)
        if step.took_s is not None:  # the marks may be those of a later step
            elapsed_s = min(elapsed_s, step.took_s)
            is_late = course.is_late(elapsed_s, self._settings) and not step.has_failed
            return over(course, elapsed_s) if is_late else None
        step.is_told = course.is_late(elapsed_s, self._settings)
        job = step.executor.plan.job
        names = [self._describe(*each) for each in enumerate((*job.devices, *job.servers))]
        driver = self._on(self._cluster.tasks[0], step.executor.plan)
        return find_stall(
            course,
            marks,
            elapsed_s,
            self._settings,
            names,
            driver=min(driver, default=0),
            servers=len(job.servers),
        )

    def _is_worth_asking(self, step: _Step, course: Course, elapsed_s: float) -> bool:
        """A step is told of once when a group is late, and once when it is late itself."""
        if course.is_late(elapsed_s, self._settings):
            return not step.is_told
        if step.told or elapsed_s < step.ask_again_s:
            return False
        return any(course.due(elapsed_s, self._settings))

    def _course(self, step: _Step, done: Done) -> Course:
        name = step.executor.name
        forecast = self._forecast(step.executor)
        usual_s = self._usual_of(step)
        if not step.is_usual:
            # It may take much longer, so nothing is expected of it in particular.
            forecast = None
            if self._settings.due_s(usual_s) < self._settings.unknown_s:
                usual_s = None
        return course_of(
            step.number,
            name,
            self._legs_of(step.executor),
            forecast,
            usual_s,
            computes=done.does_step,
            pending=done.does_part,
        )

    def _usual_of(self, step: _Step) -> float | None:
        """How long the step should take by what is known of others; None if nothing is."""
        times_s = self._usual_s.get(step.executor.name, ())
        found_s = [] if step.expected_s is None else [step.expected_s]
        found_s += [median(times_s)] if len(times_s) >= _LEAST_STEPS else []
        return max(found_s, default=None)

    def _legs_of(self, executor: PlanExecutor) -> tuple[Leg, ...]:
        if executor.name not in self._legs:
            self._legs[executor.name] = legs_of(executor.plan, self._positions)
        return self._legs[executor.name]

    def _forecast(self, executor: PlanExecutor) -> Forecast | None:
        """What is predicted of a plan; if nothing is yet, it is asked for again in a later step."""
        known = self._forecasts  # of now: another thread may put another one in its place
        if executor.name not in known:
            forecast = self._job.plans.forecast(executor.name)
            if forecast is None:
                return None
            known[executor.name] = forecast
        return known[executor.name]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {
            name: number
            for number, name in enumerate(self._job.context.op_graph.topological_order())
        }

    # Workers

    def _ask(
        self, executor: PlanExecutor, done: Done, unreachable: tuple[Task, ...]
    ) -> list[Marks | None]:
        """The marks of each worker, and behind them of each parameter server; None of those that do
        not answer in time."""
        plan = executor.plan
        places = [*range(plan.workers), *map(server_place, range(len(plan.job.servers)))]
        cut_off = {worker for task in unreachable for worker in self._on(task, plan)}
        if plan.job.servers and self._cluster.kind != "embedded":
            # Not all servers leave marks, and none of them does where agents only infer.
            silent = unanswering(self._cluster, self._settings.answer_s)
            cut_off.update(place for task in silent for place in self._on(task, plan))
        if not plan.marked:
            return [None if place in cut_off else Marks(is_server=place < 0) for place in places]
        asked: dict[int, Future[Marks]] = {}
        for worker in places:
            before = self._asked.get(worker)
            if worker in cut_off or (before is not None and not before.done()):
                continue
            if worker not in self._askers:
                self._askers[worker] = CallThread(f"caramel-marks-{worker}")
            read = partial(executor.marks.read, worker, done)
            asked[worker] = self._asked[worker] = self._askers[worker].submit(read)
        wait(asked.values(), self._settings.answer_s)
        return [_answer(asked.get(worker)) for worker in places]

    def _on(self, task: Task, plan: Plan) -> Iterator[int]:
        """The workers whose replica is on a task, or the place of the server that it is."""
        yield from (w for w, dev in enumerate(plan.job.devices) if task_of(dev) == task.device)
        for number, device in enumerate(plan.job.servers):
            if task_of(device) == task.device:
                yield server_place(number)

    def _describe(self, worker: int, device: str) -> str:
        """What to call a worker whose replica is on a device, or a server, which is behind them."""
        tasks = (*self._cluster.devices, *self._cluster.server_devices)
        task = tasks.index(task_of(device) or "")
        where = self._cluster.describe(task)
        is_server = task >= self._cluster.size
        return where if is_server or task == worker else f"replica {worker} on {where}"

    # News

    def _tell(self, step: _Step, stall: Stall) -> None:
        """Log a stall, unless the step before had the same; `stalls` has it in any case."""
        before = self._last
        is_news = not (
            before is not None
            and before.number in (step.number - 1, step.number)
            and any(_kind(stall) == _kind(other) for other in before.told)
        )
        step.told = (*step.told, stall)
        self._last = step
        self.stalls = (*self.stalls, stall)[-self._settings.kept :]
        _log.log(logging.WARNING if is_news else logging.DEBUG, "%s", stall.text)


def _answer(asked: Future[Marks] | None) -> Marks | None:
    if asked is None or not asked.done() or asked.exception() is not None:
        return None
    return asked.result()


def _kind(stall: Stall) -> tuple[object, ...]:
    """What is equal in stalls that have the same reason."""
    return (stall.plan, stall.group, stall.cause, stall.workers)
