"""Runs a distributed job: training steps, evaluation, variables, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from caramel import names
from caramel.access import handle_of
from caramel.checkpoint import SavedTensor, read_checkpoint, write_checkpoint
from caramel.cluster import Cluster
from caramel.context import Context
from caramel.errors import CheckpointError, FeedError, SessionError
from caramel.facts import InputPipelines, ReplicaState, StateAccess, Variable
from caramel.feeds import Feed, SplitFeeds, split_feeds, to_array
from caramel.late import LateFetches, StepValue
from caramel.modifiers import synchronise as programs
from caramel.modifiers.aggregated import aggregated_tensors, aggregated_values
from caramel.modifiers.defer import step_ops
from caramel.modifiers.weigh import counts, share, uneven
from caramel.names import TensorRef
from caramel.pending import Pending
from caramel.plan import Plan
from caramel.results import combine
from caramel.runner import Runner
from caramel.step_trace import timeline_of
from caramel.timeline import Timeline

_CHUNK_BYTES = 256 * 2**20  # of variables that travel to or from the client in one call
_PLACEHOLDERS_WITHOUT_DEFAULT = ("Placeholder", "PlaceholderV2")


@dataclass(frozen=True, slots=True)
class Job:
    """What a session runs: the distributed graph, and what is known of it."""

    context: Context
    plan: Plan
    graph: tf.Graph
    state: ReplicaState
    access: StateAccess
    pipelines: InputPipelines


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch of a step: a tensor of the single-device graph, or an op (`tensor` is None)."""

    op: str
    tensor: TensorRef | None


class Session:
    """A running job. Made by `ARModel.session()`; a context manager.

    Variables are initialised when it is opened. They live on the workers, and are gone when it is
    closed: save a checkpoint before.

    Args:
        job: the distributed graph and what is known of it.
        cluster: the workers.
        start_timeout_s: how long to wait for the workers, in seconds.
        step_timeout_s: how long one step, or any other call, may take, in seconds.
        config: options of the TensorFlow session, such as thread counts.
        report: called with the name and the seconds of each part of the opening.

    Raises:
        WorkerStartError: a worker cannot be reached, or is none of this cluster.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        *,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 1800.0,
        config: Any = None,
        report: Callable[[str], Any] | None = None,
    ) -> None:
        self._job = job
        self._closed = False
        self._refreshed = True  # whether the evaluation copy has the mean of the local variables
        self._checked: set[Any] = set()  # fetches and feeds that were found complete
        self._by_handle = {variable.handle: variable for variable in job.plan.variables}
        self._late = LateFetches(job.context.op_graph, job.plan, job.access)
        self._aggregated = [aggregated_tensors(job.plan, w) for w in range(job.plan.workers)]
        note = report or (lambda part: None)
        self._runner = Runner(
            job.graph,
            job.plan.devices,
            cluster,
            start_timeout_s=start_timeout_s,
            call_timeout_s=step_timeout_s,
            config=config,
        )
        note("connect")
        self._pending = Pending(self._runner, job.plan)
        try:
            self._initialise()
            self._pending.begin()
        except BaseException:
            self.close()
            raise
        note("initialise")

    # Training

    def step(self, feed_dict: Mapping[Any, Any] | None = None, fetches: Any = None) -> Any:
        """One synchronous training step.

        Args:
            feed_dict: values by tensor or name. Batches are split over the workers on their first
                dimension, as evenly as possible; scalars and `replicated_feeds` go to every one.
            fetches: tensors, operations or names, or a structure of them; the loss by default.

        Returns:
            What `fetches` asks for, in the same structure: floating scalars averaged over the
            examples, results with one entry for each example concatenated in worker order, anything
            else a list with one value for each worker.

        Raises:
            FeedError: something fed does not fit; nothing has run.
            WorkerLostError: a worker was lost.
            tf.errors.OutOfRangeError: an input pipeline has ended on a worker; nothing has been
                updated.
            tf.errors.OpError: an op has failed.
        """
        self._check_open()
        wanted = self._job.context.job.loss if fetches is None else fetches
        structure = str(wanted) if isinstance(wanted, TensorRef) else wanted
        flat = [self._fetch(item) for item in tf.nest.flatten(structure)]
        feeds = split_feeds(self._feeds(feed_dict or {}), self._job.plan.workers)
        self._check_fed(flat, feeds.values[0])
        values, examples = self._run_both_parts(flat, feeds)
        self._refreshed = False
        results = [
            None if fetch.tensor is None else self._combine(fetch.tensor, column, examples)
            for fetch, column in zip(flat, values, strict=True)
        ]
        return tf.nest.pack_sequence_as(structure, results)

    def trace(
        self, steps: int = 3, feed_dict: Mapping[Any, Any] | None = None
    ) -> tuple[Timeline, ...]:
        """What every worker does when, in each of some training steps.

        They are ordinary steps, but tracing makes them slower. In each, the deferred part of the
        step before is seen.

        Args:
            steps: how many.
            feed_dict: as for `step`, for each of them.

        Raises:
            FeedError, WorkerLostError, tf.errors.OpError: as `step`.
        """
        timelines = []
        for _ in range(steps):
            with self._runner.traced() as traces:
                self.step(feed_dict)
            stats = [metadata.step_stats for metadata in traces]
            timelines.append(timeline_of(stats, self._job.plan.devices))
        return tuple(timelines)

    def _run_both_parts(
        self, flat: Sequence[_Fetch], feeds: SplitFeeds
    ) -> tuple[list[list[Any]], Sequence[int] | None]:
        """A step; if something is fetched of its deferred part, that too, instead of later."""
        late = [fetch for fetch in flat if self._late.is_late(fetch.op, fetch.tensor)]
        if any(self._late.is_beside(fetch.op) for fetch in flat):
            self._flush()
        if not late:
            values, examples, _ = self._run_step(flat, feeds)
            return values, examples
        early = [fetch for fetch in flat if fetch not in late]
        workers = range(self._job.plan.workers)
        inputs = [
            self._value_on(worker, value)
            for value in self._late.inputs(fetch.op for fetch in late)
            for worker in workers
        ]
        values, examples, extra = self._run_step(early, feeds, inputs)
        fed = dict(zip(inputs, extra, strict=True))
        tensors = [
            self._tensor_on(worker, fetch.tensor)
            for fetch in late
            for worker in workers
            if fetch.tensor is not None
        ]
        targets = [
            names.in_replica(worker, fetch.op)
            for fetch in late
            for worker in workers
            if fetch.tensor is None
        ]
        results = iter(self._pending.flush("a step's deferred part", tensors, targets, fed))
        columns = dict(zip(early, values, strict=False)) | {
            fetch: [next(results) for _ in workers] if fetch.tensor is not None else []
            for fetch in late
        }
        return [columns[fetch] for fetch in flat], examples

    def _run_step(
        self, flat: Sequence[_Fetch], feeds: SplitFeeds, beside: Sequence[TensorRef] = ()
    ) -> tuple[list[list[Any]], Sequence[int] | None, list[Any]]:
        """For each fetch its value on every worker, the workers' numbers of examples, `beside`."""
        plan, workers = self._job.plan, range(self._job.plan.workers)
        fed = {
            names.tensor_in_replica(worker, tensor): value
            for worker in workers
            for tensor, value in feeds.values[worker].items()
        }
        fed |= self._share_feeds(feeds.examples)
        tensors = [
            self._tensor_on(worker, fetch.tensor)
            for fetch in flat
            for worker in workers
            if fetch.tensor is not None
        ]
        tensors += beside
        counted = plan.examples is not None and plan.workers > 1 and plan.reduction == "mean"
        if counted:
            tensors.append(counts(0))
        extra = [fetch.op for fetch in flat if fetch.tensor is None]
        targets = step_ops(plan)
        targets += [names.in_replica(worker, op) for op in extra for worker in workers]
        results = self._pending.step(tensors, targets, fed, "a training step")
        examples: Sequence[int] | None = feeds.examples
        if counted:
            examples = [int(count) for count in results.pop()]
        elif examples is None and self._job.pipelines.fixed_examples is not None:
            examples = [self._job.pipelines.fixed_examples] * plan.workers
        remaining = iter(results)
        values = [
            [next(remaining) for _ in workers] if fetch.tensor is not None else [] for fetch in flat
        ]
        return values, examples, list(remaining)

    def _share_feeds(self, examples: Sequence[int] | None) -> dict[TensorRef, Any]:
        """How much each worker's part counts; nothing is fed while all count alike."""
        plan = self._job.plan
        if plan.reduction != "mean" or examples is None or len(set(examples)) == 1:
            return {}
        total = sum(examples)
        fed: dict[TensorRef, Any] = {}
        for worker, count in enumerate(examples):
            fed[share(worker)] = np.array(count * plan.workers / total)
            fed[uneven(worker)] = np.array(True)
        return fed

    def _combine(
        self, tensor: TensorRef, values: Sequence[Any], examples: Sequence[int] | None
    ) -> Any:
        job = self._job.context.job
        spec = self._job.context.op_graph.spec(tensor)
        return combine(
            values,
            examples=examples,
            is_batch=tensor.op in self._job.state.worker_dependent
            and tensor not in self._aggregated[0]
            and spec.shape != (),
            add_up=job.reduction == "sum" and tensor == job.loss,
        )

    # Anything but training

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run part of the graph once, without training, as `tf.Session.run` would.

        It runs on worker 0, on variables that are equal on all workers and on the mean of those
        that are not (moving averages). What it assigns to variables is sent to all workers; what
        it does to input pipelines and tables of the training step is done on all of them.

        Args:
            fetches: tensors, operations or names, or a structure of them.
            feed_dict: values by tensor or name, none of them split.

        Raises:
            FeedError: the train op is among what would run, or something fed does not fit.
        """
        self._check_open()
        flat = [self._fetch(item) for item in tf.nest.flatten(fetches)]
        feeds = {feed.tensor: to_array(feed) for feed in self._feeds(feed_dict or {})}
        self._check_fed(flat, feeds, training=False)
        closure = self._job.context.op_graph.ancestors(
            [fetch.op for fetch in flat], stop=frozenset(tensor.op for tensor in feeds)
        )
        self._refuse_training(flat, closure)
        self._flush()
        self._refresh()
        prefix = programs.source_prefix(self._job.plan)
        tensors = [self._readable(prefix, f.tensor) for f in flat if f.tensor is not None]
        targets = [names.in_copy(prefix, fetch.op) for fetch in flat if fetch.tensor is None]
        fed = {names.tensor_in_copy(prefix, t): value for t, value in feeds.items()}
        results = iter(self._run(tensors, targets, fed, "session.run"))
        self._repeat_on_workers(flat, feeds)
        self._broadcast(self._written(closure))
        return tf.nest.pack_sequence_as(
            fetches, [None if fetch.tensor is None else next(results) for fetch in flat]
        )

    def _refuse_training(self, flat: Sequence[_Fetch], closure: set[str]) -> None:
        """Raise if a fetch belongs to training: it would be that of one worker, or of none."""
        if self._job.context.job.train_op in closure:
            raise FeedError(
                f"session.run would run the train op '{self._job.context.job.train_op}' on one "
                "worker only; use session.step"
            )
        consumers = {name for g in self._job.plan.gradients for name in g.consumers}
        for fetch in flat:
            name = names.in_copy(programs.source_prefix(self._job.plan), fetch.op)
            of_training = not self._exists(name) or (
                self._job.plan.workers > 1 and closure.intersection(consumers)
            )
            if of_training:
                raise FeedError(
                    f"'{fetch.op}' is computed from gradients, which only a training step has; "
                    "fetch it with session.step"
                )

    def _exists(self, name: str) -> bool:
        try:
            self._job.graph.get_operation_by_name(name)
        except KeyError:
            return False
        return True

    def _repeat_on_workers(
        self, flat: Sequence[_Fetch], feeds: Mapping[TensorRef, np.ndarray]
    ) -> None:
        """Do to every worker's pipelines and tables what was done to the source's."""
        prefix = programs.source_prefix(self._job.plan)
        prefixes = [names.replica_prefix(worker) for worker in range(self._job.plan.workers)]
        ops = [fetch.op for fetch in flat if self._prepares_workers(fetch.op)]
        targets = [names.in_copy(p, op) for op in ops for p in prefixes if p != prefix]
        if targets:
            fed = {
                names.tensor_in_copy(p, tensor): value
                for p in prefixes
                for tensor, value in feeds.items()
                if p != prefix
            }
            self._run([], targets, fed, "session.run on all workers")

    def _prepares_workers(self, op: str) -> bool:
        """Whether an op starts an input pipeline of the step, or fills a table."""
        graph = self._job.context.op_graph
        tables = set(self._job.context.job.table_initializers)
        iterators = set(self._job.pipelines.iterators)
        for name in graph.ancestors([op]):
            if name in tables:
                return True
            if graph[name].kind == "MakeIterator":
                return handle_of(graph, graph[name].inputs[1]) in iterators
        return False

    def _written(self, closure: Iterable[str]) -> list[Variable]:
        writes = self._job.access.writes
        written = {name for op in closure for name in writes.get(op, ())}
        return [variable for variable in self._job.plan.variables if variable.name in written]

    # Variables

    def variables(self, worker: int | None = None) -> dict[str, np.ndarray]:
        """The values of all variables, by the names the user gave them.

        Args:
            worker: whose replica's; by default those that are equal on all workers, and the mean
                of those that are not.
        """
        self._check_open()
        plan = self._job.plan
        if worker is not None and not 0 <= worker < plan.workers:
            raise FeedError(f"there is no worker {worker}; they are 0 to {plan.workers - 1}")
        self._flush()
        return dict(self._values(plan.variables, worker))

    def _values(
        self, variables: Sequence[Variable], worker: int | None = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        for chunk in _chunks(variables):
            tensors = []
            for variable in chunk:
                if worker is not None:
                    tensors.append(programs.value_on(worker, variable))
                elif programs.has_mean(variable, self._job.plan):
                    tensors.append(programs.mean_value(variable))
                else:
                    tensors.append(programs.value_on(0, variable))
            values = self._run(tensors, [], {}, "reading variables")
            yield from zip((variable.name for variable in chunk), values, strict=True)

    def save(self, path: str | os.PathLike[str], *, global_step: int | None = None) -> str:
        """Write a checkpoint that `tf.compat.v1.train.Saver` of the user's graph can restore.

        It holds the user's global variables and nothing else, is written by this process, and
        replaces an earlier one of that path only when it is whole.

        Args:
            path: its path, without the endings that TensorFlow adds.
            global_step: a number to append to the path, as ``-100``.

        Returns:
            The path that restores it.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._check_open()
        self._flush()
        saved = [variable for variable in self._job.plan.variables if variable.saved]
        values = dict(self._values(saved))
        prefix = os.fspath(path) if global_step is None else f"{os.fspath(path)}-{global_step}"
        return write_checkpoint(
            prefix, [SavedTensor(v.full_name, v.slice_spec, values[v.name]) for v in saved]
        )

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Give all global variables the values of a checkpoint, also of the single-device graph's.

        Args:
            path: what `save` returned, or a directory, whose latest checkpoint is taken.

        Raises:
            CheckpointError: it does not exist or does not fit; the variables are untouched.
        """
        self._check_open()
        saved = [variable for variable in self._job.plan.variables if variable.saved]
        if not saved:
            raise CheckpointError("the graph has no global variables to restore")
        values = read_checkpoint(path, saved)
        self._flush()
        for chunk in _chunks(saved):
            fed = {programs.restored_value(v): values[v.name] for v in chunk}
            self._run([], [programs.restore_op(v) for v in chunk], fed, "restoring variables")
        self._broadcast(saved)
        self._refreshed = True

    # Programs beside the step

    def _initialise(self) -> None:
        plan, job = self._job.plan, self._job.context.job
        prefix = programs.source_prefix(plan)
        prefixes = {prefix, *(names.replica_prefix(worker) for worker in range(plan.workers))}
        tables = [names.in_copy(p, op) for op in job.table_initializers for p in sorted(prefixes)]
        if tables:
            self._run([], tables, {}, "filling lookup tables")
        initial = [names.in_copy(prefix, variable.initializer) for variable in plan.variables]
        initial += [
            names.in_replica(worker, variable.initializer)
            for variable in plan.variables
            if variable.name in plan.constant
            for worker in programs.broadcast_targets(variable, plan)
        ]
        self._run([], initial, {}, "initialising variables")
        self._broadcast(v for v in plan.variables if v.name not in plan.constant)

    def _broadcast(self, variables: Iterable[Variable]) -> None:
        """Send variables from their source to all workers."""
        plan = self._job.plan
        for chunk in _chunks(list(variables)):
            targets = [
                programs.broadcast_op(worker, variable)
                for variable in chunk
                for worker in programs.broadcast_targets(variable, plan)
            ]
            if targets:
                self._run([], targets, {}, "broadcasting variables")

    def _flush(self) -> None:
        """Do what is pending of the last step."""
        self._pending.flush("the last step's deferred updates")

    def _refresh(self) -> None:
        """Give the evaluation copy the mean of the local variables, if a step changed them."""
        plan = self._job.plan
        if self._refreshed or not plan.evaluation:
            return
        local = [variable for variable in plan.variables if variable.name in plan.local]
        if local:
            targets = [programs.refresh_op(variable) for variable in local]
            self._run([], targets, {}, "averaging local variables")
        self._refreshed = True

    # Names

    def _fetch(self, given: Any) -> _Fetch:
        op, index = self._job.context.tensor_or_operation(given, "fetches")
        is_operation = isinstance(given, tf.Operation) or (
            index is None and not self._job.context.op_graph[op].outputs
        )
        if is_operation or (index is None and isinstance(given, str)):
            return _Fetch(op, None)
        return _Fetch(op, TensorRef(op, index or 0))

    def _feeds(self, feed_dict: Mapping[Any, Any]) -> list[Feed]:
        """What the user feeds, with what is known of each tensor."""
        context, state = self._job.context, self._job.state
        feeds = []
        for given, value in feed_dict.items():
            tensor = context.tensor(given, "feed_dict")
            spec = context.op_graph.spec(tensor)
            is_input = context.op_graph[tensor.op].kind.startswith("Placeholder")
            differs = tensor.op in state.worker_dependent
            feeds.append(
                Feed(
                    tensor,
                    spec,
                    tf.as_dtype(spec.dtype).as_numpy_dtype,
                    value,
                    whole=tensor.op in context.job.replicated_feeds,
                    must_be_scalar=tensor.op in state.scalar_only or not (is_input or differs),
                )
            )
        return feeds

    def _check_fed(
        self, flat: Sequence[_Fetch], fed: Mapping[TensorRef, Any], *, training: bool = True
    ) -> None:
        """Raise unless every placeholder that is needed is fed."""
        context = self._job.context
        roots = [fetch.op for fetch in flat]
        if training:
            roots += [context.job.train_op, context.job.loss.op]
        given = frozenset(tensor.op for tensor in fed)
        key = (tuple(roots), given)
        if key not in self._checked:
            needed = context.op_graph.ancestors(roots, stop=given) - given
            missing = [
                name
                for name in context.op_graph.ops
                if name in needed and context.op_graph[name].kind in _PLACEHOLDERS_WITHOUT_DEFAULT
            ]
            if missing:
                raise FeedError(
                    "nothing is fed for " + ", ".join(f"'{name}:0'" for name in missing)
                )
            self._checked.add(key)

    def _value_on(self, worker: int, value: StepValue) -> TensorRef:
        """Where a value of a step is found on a worker."""
        own = names.tensor_in_replica(worker, value.tensor)
        if not value.aggregated:
            return own
        return aggregated_values(self._job.plan, worker).get(value.tensor, own)

    def _tensor_on(self, worker: int, tensor: TensorRef) -> TensorRef:
        """Where a tensor of the single-device graph is found on a worker."""
        replaced = self._aggregated[worker].get(tensor)
        return replaced or self._readable(names.replica_prefix(worker), tensor)

    def _readable(self, prefix: str, tensor: TensorRef) -> TensorRef:
        """A tensor in a copy; in place of a variable's handle its value."""
        variable = self._by_handle.get(tensor.op)
        if variable is None:
            return names.tensor_in_copy(prefix, tensor)
        if prefix == programs.source_prefix(self._job.plan):
            return programs.source_value(variable)
        return programs.value_on(names.worker_of(prefix) or 0, variable)

    def _run(
        self,
        tensors: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Mapping[TensorRef, Any],
        what: str,
    ) -> list[Any]:
        return self._runner.run(tensors, targets, fed, what)

    # Life

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed; open another with model.session()")

    def close(self) -> None:
        """End the session; the variables are gone. Closing it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._pending.close()
        self._runner.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _chunks(variables: Sequence[Variable]) -> Iterator[list[Variable]]:
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
