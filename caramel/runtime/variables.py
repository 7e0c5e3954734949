"""The variables that all plans of a session work on: initialised, read, broadcast, merged.

Everything runs on the nodes of the first plan. Whoever calls has done what is pending before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np

from caramel.capture.initial_values import in_order
from caramel.core import names
from caramel.core.facts import Variable
from caramel.core.names import TensorRef
from caramel.core.util.progress import working
from caramel.modifiers import variable_ops
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job

_CHUNK_BYTES = 256 * 2**20  # of variables that travel to or from the client in one call


class SharedState:
    """Variables and tables on the workers.

    Args:
        job: the distributed graph and what is known of it.
        runner: runs parts of it.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self._job, self._runner, self._plan = job, runner, job.plan
        self._refreshed = True  # whether the evaluation copy has what local variables are together
        self._torn = False  # whether a failure may have kept updates from some workers

    @working("initialising variables")
    def initialise(
        self,
        fed: Mapping[TensorRef, np.ndarray],
        besides: Sequence[str] = (),
        *,
        given: Collection[str] = frozenset(),
    ) -> None:
        """Fill all tables and give all variables their initial values.

        Args:
            fed: what their initial values depend on besides the graph.
            besides: further ops to run. Each call of another part of a large graph takes TensorFlow
                a second, so they run in one that is made anyway.
            given: names of variables that get their values otherwise.
        """
        plan, job = self._plan, self._job.context.job
        prefix = variable_ops.source_prefix(plan)
        prefixes = {prefix, *(names.replica_prefix(worker) for worker in range(plan.workers))}
        tables = [names.in_copy(p, op) for op in job.table_initializers for p in sorted(prefixes)]
        self._run(tables, "filling lookup tables", self._initial_feeds(fed, prefixes))
        first, *others = (
            [variable for variable in portion if variable.name not in given]
            for portion in in_order(self._job.context.op_graph, plan.job.variables)
        )
        initial = [names.in_copy(prefix, variable.initializer) for variable in first]
        initial += [
            names.in_replica(worker, variable.initializer)
            for variable in plan.job.variables
            if variable.name in plan.job.constant and variable.name not in given
            for worker in variable_ops.broadcast_targets(variable, plan)
        ]
        fed_here = self._initial_feeds(fed, {prefix})
        self._run([*initial, *besides], "initialising variables", fed_here)
        for portion in others:
            initial = [names.in_copy(prefix, variable.initializer) for variable in portion]
            self._run(initial, "initialising variables", fed_here)
        own = plan.job.constant.union(given)
        self.broadcast(v for v in plan.job.variables if v.name not in own)

    def values(
        self, variables: Sequence[Variable], worker: int | None = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Names and values of variables: of one worker, or of all (`variable_ops.is_merged`).

        The user's, of which servers may have parts.
        """
        splits = self._job.context.row_splits
        for chunk in chunks(variables):
            parts = {v.name: splits.parts(v) for v in chunk}
            tensors = [self._value_of(part, worker) for own in parts.values() for part in own]
            values = iter(self._runner.run(tensors, [], {}, "reading variables"))
            for name, several in parts.items():
                first, *others = [next(values) for _ in several]
                yield name, np.concatenate([first, *others]) if others else first

    def _value_of(self, variable: Variable, worker: int | None) -> TensorRef:
        if worker is not None:
            return variable_ops.value_on(self._plan, worker, variable)
        return self.value(variable)

    def value(self, variable: Variable) -> TensorRef:
        """What a variable is on all workers together; of integers that differ, worker 0's."""
        if variable_ops.is_merged(variable, self._plan):
            return variable_ops.merged_value(variable)
        return variable_ops.value_on(self._plan, 0, variable)

    def assign(self, variables: Sequence[Variable], values: Mapping[str, np.ndarray]) -> None:
        """Give the user's variables new values, on all workers and servers."""
        splits = self._job.context.row_splits
        own = {p.name: rows for v in variables for p, rows in splits.slices(v, values[v.name])}
        variables = [part for v in variables for part in splits.parts(v)]
        for chunk in chunks(variables):
            fed = {variable_ops.restored_value(v): own[v.name] for v in chunk}
            targets = [variable_ops.restore_op(variable) for variable in chunk]
            self._runner.run([], targets, fed, "restoring variables")
        self.broadcast(variables)
        self._refreshed = True

    def broadcast(self, variables: Iterable[Variable]) -> None:
        """Send variables from their source to all workers."""
        for chunk in chunks(list(variables)):
            targets = [
                variable_ops.broadcast_op(worker, variable)
                for variable in chunk
                for worker in variable_ops.broadcast_targets(variable, self._plan)
            ]
            self._run(targets, "broadcasting variables")

    def may_change(self) -> None:
        """A step is about to be done."""
        self._refreshed = False

    @contextmanager
    def torn_by_failures(self) -> Iterator[None]:
        """What fails in this context may have updated a variable on some workers only."""
        try:
            yield
        except BaseException:
            self._torn, self._refreshed = True, False
            raise

    @property
    def is_torn(self) -> bool:
        """Whether a failure may have kept updates from some workers."""
        return self._torn

    def tear(self) -> None:
        """A step has left other values on some workers than on the others."""
        self._torn = True

    def mend(self) -> None:
        """Make the replicas equal again if a failure may have torn them: all are as worker 0's is.

        As on one device, updates that ran before the failure stay. Nothing may be pending.
        """
        if self._torn:  # variables on servers never are
            self.broadcast(
                v for v in self._plan.job.variables if v.name not in self._plan.job.local
            )
            self._torn = False

    def refresh(self) -> None:
        """Give the evaluation copy what local variables are together, if a step changed them."""
        plan = self._plan
        if self._refreshed or not plan.consequences.evaluation:
            return
        local = [variable for variable in plan.job.variables if variable.name in plan.job.local]
        if local:
            self._run([variable_ops.refresh_op(v) for v in local], "merging local variables")
        self._refreshed = True

    def _initial_feeds(
        self, fed: Mapping[TensorRef, np.ndarray], prefixes: Iterable[str]
    ) -> dict[TensorRef, np.ndarray]:
        """What is fed to copies, as far as they have it."""
        return {
            names.tensor_in_copy(prefix, tensor): value
            for tensor, value in fed.items()
            for prefix in sorted(prefixes)
            if names.in_copy(prefix, tensor.op) in self._job.graph
        }

    def _run(
        self,
        targets: Sequence[str],
        what: str,
        fed: Mapping[TensorRef, np.ndarray] = MappingProxyType({}),
    ) -> None:
        if targets:
            self._runner.run([], targets, fed, what)


def chunks(variables: Sequence[Variable]) -> Iterator[list[Variable]]:
    """Variables in portions that one message may carry."""
    chunk: list[Variable] = []
    size = 0
    for variable in variables:
        own = variable.spec.bytes or 0
        if chunk and size + own > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(variable)
        size += own
    if chunk:
        yield chunk
