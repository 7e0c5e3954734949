"""The variables as they were before a step that may be given up."""

from __future__ import annotations

import tensorflow as tf

from caramel.core.names import Copy
from caramel.modifiers.variable_copies import copies, ops_of, original_of, remember
from caramel.runtime.execution.runner import Runner
from caramel.runtime.execution.variant_runner import VariantRunner
from caramel.runtime.job import Job


class Remembered:
    """Copies of a job's variables on the workers; there are none until they are taken.

    Nothing may be pending when they are taken or put back.

    Args:
        job: the distributed graph and what is known of it.
        runner: runs parts of it.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self._job, self._all = job, runner
        self._variant = job.own.number
        self._runner = VariantRunner(runner, self._variant)
        self._is_there = False  # what takes them

    def prepare(self) -> None:
        """Let what takes them be sent with whatever is sent next: TensorFlow places all at once."""
        if not self._is_there:
            self._add()
            self._is_there = True

    def take(self) -> None:
        """Copy all variables.

        Raises:
            WorkerLostError, tf.errors.OpError: as `Runner.run`.
        """
        self.prepare()
        self._all.extend()
        self._run("take", "copying variables")

    def put_back(self) -> None:
        """Give variables the values of their copies: equal ones on worker 0 only."""
        self._run("put_back", "putting variables back")

    def drop(self) -> None:
        """Let go of the copies."""
        self._run("drop", "letting go of copies")

    def _run(self, what: Copy, told: str) -> None:
        self._runner.run([], ops_of(self._job.plan, what), {}, told)

    def _add(self) -> None:
        plan, nodes = self._job.plan, tf.compat.v1.GraphDef()
        handles = {original_of(plan, worker, variable) for worker, variable in copies(plan)}
        parts = self._job.graph.parts
        nodes.ParseFromString(next(p.graph_def for p in parts if p.variant == self._variant))
        found = {node.name: node for node in nodes.node if node.name in handles}
        added = remember(plan, found, self._variant)
        self._all.add(added.SerializeToString(), self._variant)
