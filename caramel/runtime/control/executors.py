"""The executors of a session's plans, each made when its plan is first asked for."""

from __future__ import annotations

from contextlib import ExitStack

from caramel.runtime.control.probation import Probation
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.steps.plan_executor import PlanExecutor


class Executors:
    """What runs the steps of each plan.

    Args:
        job: the distributed graph with its plans.
        runner: runs parts of the graph.
        probation: is told of a plan before its graph is sent.
        first: the name of the plan that does the first step; whoever calls lets it begin.
    """

    def __init__(self, job: Job, runner: Runner, probation: Probation, first: str) -> None:
        self._job, self._runner, self._probation = job, runner, probation
        self._ready = {first: PlanExecutor(job.plans.ensure(first), job, runner)}
        self._beginning: dict[str, PlanExecutor] = {}  # what was interrupted may begin again
        probation.prepare(first)

    def __contains__(self, plan: str) -> bool:
        """Whether the executor of a plan, by its name, is ready to do steps."""
        return plan in self._ready

    def of(self, plan: str) -> PlanExecutor:
        """The executor of a plan, by its name.

        Raises:
            TrafficError, GraphError: the plan's graph cannot be made.
            WorkerLostError, tf.errors.OpError: its first step could not be prepared.
        """
        if plan not in self._ready:
            if plan not in self._beginning:
                variant = self._job.plans.ensure(plan)
                self._probation.prepare(plan)
                self._beginning[plan] = PlanExecutor(variant, self._job, self._runner)
            self._beginning[plan].begin()
            self._ready[plan] = self._beginning.pop(plan)
        return self._ready[plan]

    def free_all_but(self, kept: PlanExecutor) -> None:
        """Let the others let go of what they keep on the workers."""
        for executor in self._ready.values():
            if executor is not kept:
                executor.free()

    def close(self) -> None:
        """End the threads of all, each also if another one's end is interrupted."""
        with ExitStack() as ending:
            for executor in (*self._ready.values(), *self._beginning.values()):
                ending.callback(executor.close)
