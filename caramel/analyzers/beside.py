"""What do fetches write beside a step, and may each worker do that by itself?

A fetch may run ops that the step does not run: another train op, an assignment, the update of a
metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from caramel.analyzers.dependence import cut_by, spread
from caramel.core import op_types
from caramel.core.errors import FeedError
from caramel.core.facts import (
    GradientFrontier,
    InputPipelines,
    ReplicaState,
    StateAccess,
    TrainingJob,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.variable_access import fills_table, handle_of

_NOTHING: frozenset[str] = frozenset()


class Beside:
    """Tells the fetches of a step apart.

    Args:
        graph: the single-device graph.
        job: whose step it is.
        access: which variables each op touches.
        inputs: what differs between workers by itself.
        frontier: what the step aggregates.
        state: which variables differ between workers, whatever the step.
        pipelines: the input pipelines of all steps.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        inputs: WorkerInputs,
        frontier: GradientFrontier,
        state: ReplicaState,
        pipelines: InputPipelines,
    ) -> None:
        self._graph, self._access, self._worker_inputs = graph, access, inputs
        self._state, self._pipelines = state, pipelines
        self._step = frozenset(graph.ancestors([job.train_op, job.loss.op]))
        self._local = frozenset(state.local)
        self._is_aggregated = cut_by(frontier)

    def to_join(self, fetched: Sequence[str], served: frozenset[str] = _NOTHING) -> tuple[str, ...]:
        """The fetched ops that cannot run beside the step, but have to be joined with it.

        These are analysed together with the step: gradients in them are to be aggregated, unordered
        reads and writes to be ordered.

        Args:
            fetched: the ops that are fetched.
            served: the variables that live on parameter servers, which only a step writes there.

        Raises:
            FeedError: a fetch reads an input pipeline that is no step's.
        """
        writing: dict[str, set[str]] = {}
        for name in dict.fromkeys(fetched):
            extra = self._graph.ancestors([name], stop=self._step) - self._step
            self._refuse_foreign_pipelines(name, extra)
            if any(self._writes(op) for op in extra):
                writing[name] = extra
        if writing and self._pipelines.iterators:  # a step whose pipeline has ended writes nothing
            return tuple(writing)
        # A fetch may run beside the step if it writes local variables only, or if all workers write
        # the same and nothing else in the step touches the variable.
        others = {name: extra for name, extra in writing.items() if not self._is_local(extra)}
        if not others or self._are_alike(set().union(*others.values())):
            return tuple(name for name, extra in others.items() if self._writes_any(served, extra))
        return tuple(others)

    def _writes_any(self, variables: frozenset[str], ops: Iterable[str]) -> bool:
        return any(not variables.isdisjoint(self._access.writes.get(op, _NOTHING)) for op in ops)

    def _writes(self, op: str) -> bool:
        return op in self._access.writes or fills_table(self._graph[op])

    def _is_local(self, extra: Iterable[str]) -> bool:
        """Whether ops write nothing but variables of which each worker has its own."""
        return all(
            self._access.writes.get(op, _NOTHING) <= self._local
            and not fills_table(self._graph[op])
            for op in extra
        )

    def _are_alike(self, extra: set[str]) -> bool:
        """Whether ops write the same on all workers, in the same order as anything else."""
        reads = self._access.reads
        sources = [*self._worker_inputs.reasons, *sorted(self._worker_inputs.scalar_only)]
        sources += [op for op, read in reads.items() if not read.isdisjoint(self._local)]
        reached = spread(
            self._graph,
            sources,
            self._access,
            within=self._step | extra,
            is_cut=self._is_aggregated,
        )
        if not self._local.issuperset(reached.variables):
            return False
        if any(fills_table(self._graph[op]) and op in reached.came_from for op in extra):
            return False
        return not any(self._is_unordered(*each) for each in self._touching(extra).items())

    def _touching(self, extra: set[str]) -> Mapping[str, list[str]]:
        """For each variable that the ops touch all ops of the step that touch it, too."""
        touched: dict[str, list[str]] = {}
        for op in extra:
            for variable in self._touched(op):
                touched.setdefault(variable, []).append(op)
        for op in self._step:
            for variable in self._touched(op) & touched.keys():
                touched[variable].append(op)
        return touched

    def _touched(self, op: str) -> frozenset[str]:
        return self._access.reads.get(op, _NOTHING) | self._access.writes.get(op, _NOTHING)

    def _is_unordered(self, variable: str, ops: Sequence[str]) -> bool:
        """Whether one of the ops writes the variable, and not all of them follow each other."""
        writes = self._access.writes
        if not any(variable in writes.get(op, _NOTHING) for op in ops):
            return False
        # A fetch that runs beside the step is in no order with the step's own ops.
        if any(op in self._step for op in ops):
            return True
        before = {op: self._graph.ancestors([op], stop=self._step) for op in ops}
        return any(
            one not in before[other] and other not in before[one] for one in ops for other in ops
        )

    def _refuse_foreign_pipelines(self, name: str, extra: Iterable[str]) -> None:
        graph = self._graph
        for op in extra:
            if graph[op].kind not in op_types.ITERATOR_READS:
                continue
            iterator = handle_of(graph, graph[op].inputs[0])
            if iterator not in self._pipelines.iterators:
                raise FeedError(
                    f"'{name}', which is fetched, reads the input pipeline '{iterator}', which no "
                    "step reads, so that it is not sharded over the workers; run it by session.run"
                )
