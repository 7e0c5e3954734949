"""What workers evaluate with, beside the evaluation copy: made when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from caramel.core.names import TensorRef
from caramel.modifiers.evaluating import copy_for_evaluation, op_evaluated
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job


@dataclass(slots=True)
class Copies:
    """Copies of what computes some ops, one on each worker.

    Attributes:
        job: whose ops they are.
        number: theirs.
        refreshes: ops that give local variables in them their values.
        are_fresh: whether these were run, and variables have not changed since.
        are_apart: whether they read what each worker has for itself.
    """

    job: Job
    number: int
    refreshes: Sequence[str] = ()
    are_fresh: bool = False
    are_apart: bool = False

    def on(self, worker: int, tensor: TensorRef) -> TensorRef:
        """Where a worker evaluates a tensor of the user's graph."""
        plan = self.job.plan
        op = op_evaluated(plan, worker, self.number, tensor.op, apart=self.are_apart)
        return TensorRef(op, tensor.index)

    def refresh(self, runner: Runner) -> None:
        """Give local variables what they are on all workers together."""
        if self.refreshes and not self.are_fresh:
            runner.run([], self.refreshes, {}, "merging local variables")
        self.are_fresh = True


@dataclass(slots=True)
class WorkerCopies:
    """The copies in a session's graph, by what they compute."""

    _made: dict[tuple[bool, tuple[str, ...]], Copies] = field(default_factory=dict)

    def of(self, job: Job, runner: Runner, ops: Sequence[str], *, apart: bool = False) -> Copies:
        """Those that compute some ops.

        Args:
            apart: whether they read what each worker has for itself; else what all have together.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.extend`.
        """
        apart = apart and job.plan.workers > 1
        key = apart, tuple(ops)
        if key not in self._made:
            copies = Copies(job, len(self._made), are_apart=apart)
            if job.plan.workers > 1:
                graph_def = tf.compat.v1.GraphDef()
                graph_def.ParseFromString(job.graph.parts[0].graph_def)
                nodes = {node.name: node for node in graph_def.node}
                added, copies.refreshes = copy_for_evaluation(
                    nodes, job.plan, ops, copies.number, apart=apart
                )
                runner.add(added.SerializeToString(), 0)
                runner.extend()
            self._made[key] = copies
        return self._made[key]

    def expire(self) -> None:
        """Steps may have changed variables: what copies have of local ones does not count."""
        for copies in self._made.values():
            copies.are_fresh = False
